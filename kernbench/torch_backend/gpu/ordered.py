"""Recorders that tell the order of events what torch's operations touch, where somebody wants to know it.

What an operation reads and writes is said by its schema. What is on a GPU is touched by the stream that the operation is put
on, what is on the host by the host itself; a copy that does not block, from or to pinned memory, touches both on the stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from kernbench.order import ByteRegion, MemoryAccess, RankOrder, Undefined
from kernbench.simulation.shadows import allocated, escapes, region_in, shadow_of, touch
from kernbench.simulation.tensors import listed_tensors
from kernbench.simulation.weak_memory import FutureWrite, OlderView, as_before, older_of, writes_of, written_anew
from kernbench.torch_backend.gpu.captured_touches import CapturedTouches
from kernbench.torch_backend.gpu.pinning import is_pinned
from kernbench.torch_backend.gpu.placement import block_of
from kernbench.torch_backend.gpu.rank_device import RankDevice
from kernbench.torch_backend.gpu.recording import TRANSFER, VIEW, Recorded, Recorder
from kernbench.torch_backend.hollow.recorder import HollowRecorder
from kernbench.torch_backend.relies_on import Reliance


def _says_what_is_written(overload: Any) -> bool:
    written = [each.alias_info is not None and each.alias_info.is_write for each in overload._schema.arguments]
    return written[:2] == [True, False] and overload._opname == "add_"


RELIES_ON = (
    Reliance("torch.ops.aten.add_.Tensor", "its schema says which arguments an operation writes", has=("_opname", "_schema"),
             holds=_says_what_is_written),
    Reliance("torch._ops.OpOverload", "other callables have no schema"),
)  # fmt: skip


_OVERWRITE = frozenset((
    "copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "geometric_", "log_normal_",
    "cauchy_", "set_", "resize_", "resize_as_", "masked_fill_", "masked_scatter_", "scatter_", "index_copy_", "index_fill_",
    "index_put_", "_index_put_impl_", "put_", "fill_diagonal_", "squeeze_", "unsqueeze_", "transpose_", "t_", "as_strided_",
    "detach_", "swapaxes_", "swapdims_",
))  # fmt: skip
"""Operations in place that write all, or a part, of what they are given without a look at what was there."""

_OF_SEVERAL = frozenset(
    ("where", "masked_fill", "masked_scatter", "scatter", "index_put", "index_copy", "lerp", "cat", "stack")
)
"""Operations whose result need not have anything of each tensor that they are given."""

_GIVES_MEMORY = frozenset(("numpy", "__array__"))
"""Looks by which the host may write, too."""

_MOST_POLLED = 8
"""Bytes of memory that ranks share up to which a look is taken to be one of many, by a host that waits for a word to change."""


class _Touched:
    """What an operation touches, whatever its arguments: found out when it is first seen.

    Attributes:
        nothing: it takes shapes only from what it is given.
        written: arguments that it writes, by place and name.
        changes: whether what it writes depends on what was there: ``add_`` does, ``copy_`` and what writes ``out`` do not.
    """

    __slots__ = ("changes", "nothing", "written")

    def __init__(self, func: Any) -> None:
        self.written: list[tuple[int, str]] = []
        self.nothing = False
        self.changes = False
        if isinstance(func, torch._ops.OpOverload):
            name = func._opname
            self.nothing = name.endswith("_like") or name.startswith("new_")
            self.written = [
                (at, argument.name) for at, argument in enumerate(func._schema.arguments)
                if argument.alias_info is not None and argument.alias_info.is_write
            ]  # fmt: skip
            self.changes = (
                func.namespace == "aten" and name.endswith("_") and name not in _OVERWRITE and [
                    at for at, _ in self.written
                ] == [0]
            )  # fmt: skip

    def mutated(self, args: Any, kwargs: Any) -> list[torch.Tensor]:
        """The arguments that it writes."""
        found: list[torch.Tensor] = []
        for at, name in self.written:
            value = args[at] if at < len(args) else (kwargs or {}).get(name)
            if isinstance(value, torch.Tensor):
                found.append(value)
            elif value is not None:
                found += listed_tensors((value,))
        return found

    def read(self, args: Any, kwargs: Any, mutated: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The arguments that it only reads; ``mutated``: those that it writes."""
        if self.nothing:
            return []
        written = {id(tensor) for tensor in mutated}
        given = listed_tensors((*args, *kwargs.values()) if kwargs else args)
        return [tensor for tensor in given if id(tensor) not in written]


class _TouchedByOperator(dict[Any, _Touched]):
    def __missing__(self, func: Any) -> _Touched:
        found = self[func] = _Touched(func)
        return found


_touched = _TouchedByOperator()


class _Touches:
    """What one operation touches, by the host and on its stream."""

    def __init__(self, order: RankOrder, stream: str, name: str, *, changes: bool = False) -> None:
        self._order = order
        self._stream = stream
        self._name = name
        self._on_stream: MemoryAccess | None = None
        self._on_host: MemoryAccess | None = None
        self.undefined: Undefined | None = None
        self.changes = changes

    def add(self, tensor: torch.Tensor, *, together: bool = False, writes: bool = False, fresh: bool = False) -> None:
        """One tensor; ``together``: also what is on the host is touched by the stream."""
        order = self._order
        kept = shadow_of(order, tensor)
        if kept is None:
            return
        if (together or kept.on_gpu) and not order.one:
            access = self._on_stream
            if access is None:
                access = self._on_stream = order.access(order.stream(self._stream), self._name)
        else:
            access = self._on_host
            if access is None:
                access = self._on_host = order.of_host(self._name)
        if kept.shadow.undefined is not None:
            if fresh:  # by what is not seen
                kept.shadow.undefined = None
            elif self.undefined is None and (self.changes or not writes):
                region = region_in(kept, tensor)
                if region is not None and kept.shadow.undefined.whole(region):
                    self.undefined = kept.shadow.undefined
        touch(kept, tensor, access, writes=writes, fresh=fresh)

    def made_of(self, undefined: Undefined, tensors: Sequence[torch.Tensor]) -> None:
        """What it has written is made of undefined bytes."""
        for tensor in tensors:
            kept = shadow_of(self._order, tensor)
            region = None if kept is None else region_in(kept, tensor)
            access = self._on_stream or self._on_host
            if kept is not None and region is not None and region.dense and access is not None:
                kept.shadow.undefined = Undefined(undefined.origin, region, access)

    def look(self, tensor: torch.Tensor) -> None:
        """The host looks at a tensor."""
        kept = shadow_of(self._order, tensor)
        if kept is not None and kept.shadow.undefined is not None:
            region = region_in(kept, tensor)
            if region is not None:
                self._order.looked(kept.shadow, region, self._on_host or self._order.of_host(self._name))


def touches(device: RankDevice, operation: Recorded, args: Any, kwargs: Any, result: Any) -> None:
    """Tell what an operation that has been recorded touches. Raises RaceError."""
    host = device.host
    order = host.order
    if order is None or device.in_custom_operation:
        return
    if operation.allocates:
        if device.simulation.engine.enable_data:
            allocated(order, result, operation.name)
        return
    if operation.kind == TRANSFER and device.moving and block_of(args[0]) is None:
        return  # on its way to a GPU: see `sent`
    order.one = not host.uses_gpu
    graph = host.capture
    found = _touched[operation.func]
    mutated = found.mutated(args, kwargs)
    written = {id(tensor) for tensor in mutated}
    title = operation.title.removesuffix(".default")
    stage: _Touches | CapturedTouches
    if graph is None:
        together = operation.kind == TRANSFER and _does_not_block(operation, args, kwargs, result)
        stage = _Touches(order, host.stream, title, changes=found.changes)
    else:
        together = operation.kind == TRANSFER  # its nodes have all come from pinned memory
        stage = CapturedTouches(order, title, changes=found.changes)
    for tensor in found.read(args, kwargs, mutated):
        stage.add(tensor, together=together)
    for tensor in mutated:
        stage.add(tensor, together=together, writes=True)
    made = (result,) if isinstance(result, torch.Tensor) else listed_tensors((result,))
    fresh = [tensor for tensor in made if id(tensor) not in written]
    for tensor in fresh:
        stage.add(tensor, together=together, writes=True, fresh=True)
    passes_on = operation.name not in _OF_SEVERAL and not any(isinstance(arg, list) for arg in args)
    if isinstance(stage, CapturedTouches):
        stage.have_done_again(host, passes_on=passes_on)
    elif stage.undefined is not None and passes_on:
        stage.made_of(stage.undefined, (*mutated, *fresh))


def _does_not_block(operation: Recorded, args: Any, kwargs: Any, result: Any) -> bool:
    """Whether a copy between pinned memory of the host and a GPU goes on while the host does."""
    if not operation.is_non_blocking(args, kwargs):
        return False
    sides = (args[0], args[1]) if operation.name == "copy_" else (args[0], result)
    return all(block_of(side) is not None or is_pinned(side) for side in sides)


class _Tells:
    """A recorder that tells it."""

    def _record(
        self, device: RankDevice, operation: Recorded, args: Any, kwargs: Any, result: Any, *, launched: bool = False
    ) -> None:
        super()._record(device, operation, args, kwargs, result, launched=launched)  # type: ignore[misc]
        touches(device, operation, args, kwargs, result)

    def _computed(self, device: RankDevice, operation: Recorded, func: Any, args: Any, kwargs: Any) -> Any:
        if operation.host_reads and not device.host.unrecorded:
            looks(device, operation.name, args)
        return super()._computed(device, operation, func, args, kwargs)  # type: ignore[misc]


def looks(device: RankDevice, name: str, values: Any) -> None:
    """The host has got values, by a copy from the current stream or out of its own memory. Raises RaceError."""
    order = device.host.order
    if order is not None:
        order.one = not device.host.uses_gpu
        stage = _Touches(order, device.host.stream, name)
        for tensor in listed_tensors(values):
            kept = shadow_of(order, tensor)
            if kept is not None and kept.shadow.shared and tensor.nbytes <= _MOST_POLLED:
                offset = int(tensor.storage_offset()) * tensor.element_size()
                if order.follows:
                    kept.shadow.poll(order.of_host(name), ByteRegion(offset, offset + tensor.nbytes))
                look = order.of_host(name)
                kept.shadow.words.access(look, offset, sem="acquire", scope="sys", reads=True, writes=False)
            else:
                stage.add(tensor)
                if name in _GIVES_MEMORY and kept is not None and kept.shadow.unwritten:
                    escapes(tensor)
                else:
                    stage.look(tensor)


def sent(device: RankDevice, sources: Sequence[torch.Tensor], made: Sequence[torch.Tensor], *, goes_on: bool) -> None:
    """Tensors of the host have been copied to a GPU; from pinned memory, the host may have gone on. Raises RaceError."""
    host = device.host
    order = host.order
    if order is None:
        return
    order.one = False
    graph, name = host.capture, "copy to the GPU"
    stage = _Touches(order, host.stream, name) if graph is None else CapturedTouches(order, name)
    for source in sources:
        stage.add(source, together=is_pinned(source) and (bool(goes_on) or graph is not None))
    for tensor in made:
        stage.add(tensor, writes=True, fresh=True)
    if order.weak is not None and graph is None:
        written_anew(order, made)
    if isinstance(stage, CapturedTouches):
        stage.have_done_again(host, passes_on=len(sources) == 1)
    elif stage.undefined is not None and len(sources) == 1:
        stage.made_of(stage.undefined, made)


class OrderedRecorder(_Tells, Recorder):
    """Records operations, and tells what they touch."""


class _SeesOlder:
    """A recorder whose operations read what nothing orders behind a write as it was before."""

    _future: Sequence[FutureWrite] = ()

    def _computed(self, device: RankDevice, operation: Recorded, func: Any, args: Any, kwargs: Any) -> Any:
        host, order = device.host, device.host.order
        launches = operation.kind > VIEW and not operation.allocates
        if order is None or not launches or host.unrecorded or host.capture is not None or device.in_custom_operation:
            return super()._computed(device, operation, func, args, kwargs)  # type: ignore[misc]
        order.one = not host.uses_gpu
        touched = _touched[operation.func]
        mutated = touched.mutated(args, kwargs)
        read = touched.read(args, kwargs, mutated) + (mutated if touched.changes else [])
        self._future = writes_of(order, mutated)
        with as_before(_older_here(device, operation.title, read), mutated):
            return super()._computed(device, operation, func, args, kwargs)  # type: ignore[misc]

    def _record(
        self, device: RankDevice, operation: Recorded, args: Any, kwargs: Any, result: Any, *, launched: bool = False
    ) -> None:
        future, self._future = self._future, ()  # another rank may compute before this has been recorded
        super()._record(device, operation, args, kwargs, result, launched=launched)  # type: ignore[misc]
        order = device.host.order
        if order is not None and device.host.capture is None:
            for each in future:
                write = each.shadow.writer(each.region)
                if write is not None:
                    each.written(write)
            written_anew(order, listed_tensors((result,)))


def _older_here(device: RankDevice, name: str, tensors: Sequence[torch.Tensor]) -> list[OlderView]:
    """What an operation on the current stream sees instead of what is in these tensors; those on the host are read by that."""
    host, order = device.host, device.host.order
    assert order is not None
    stream = order.stream(host.stream)
    on_gpu = [tensor for tensor in tensors if not order.one and block_of(tensor) is not None]
    on_host = [tensor for tensor in tensors if order.one or block_of(tensor) is None]
    name = name.removesuffix(".default")
    return [
        *older_of(order, name, on_gpu, stream, order.host),
        *older_of(order, name, on_host, order.host),
    ]


@contextmanager
def looking(device: RankDevice, name: str, tensor: torch.Tensor) -> Iterator[None]:
    """For the length of a block the host gets values, not by an operation of torch: as it sees them."""
    order = device.host.order
    weak = order is not None and order.weak is not None and name not in _GIVES_MEMORY
    older = _older_here(device, name, (tensor,)) if weak else []
    with device.host.as_one() if older else nullcontext(), as_before(older):
        yield


class WeakRecorder(_SeesOlder, OrderedRecorder):
    """Records operations, tells what they touch, and computes them on what they see."""


class OrderedHollowRecorder(_Tells, HollowRecorder):
    """Records operations that are not computed, and tells what they would touch."""
