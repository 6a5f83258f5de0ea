"""Recorders that tell the order of events what torch's operations touch, where somebody wants to know it.

What an operation reads and writes is said by its schema. What is on a GPU is touched by the stream that the operation is put
on, what is on the host by the host itself; a copy that does not block, from or to pinned memory, touches both on the stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kernbench.order import MemoryAccess, RankOrder
from kernbench.simulation.shadows import shadow_of, touch
from kernbench.simulation.tensors import listed_tensors
from kernbench.torch_backend.gpu.pinning import is_pinned
from kernbench.torch_backend.gpu.placement import block_of
from kernbench.torch_backend.gpu.rank_device import RankDevice
from kernbench.torch_backend.gpu.recording import TRANSFER, Recorded, Recorder
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


_MOST_POLLED = 8
"""Bytes of memory that ranks share up to which a look is taken to be one of many, by a host that waits for a word to change."""


class _Touched:
    """What an operation touches, whatever its arguments: found out when it is first seen.

    Attributes:
        nothing: it takes shapes only from what it is given.
        written: arguments that it writes, by place and name.
    """

    __slots__ = ("nothing", "written")

    def __init__(self, func: Any) -> None:
        self.written: list[tuple[int, str]] = []
        self.nothing = False
        if isinstance(func, torch._ops.OpOverload):
            name = func._opname
            self.nothing = name.endswith("_like") or name.startswith("new_")
            self.written = [
                (at, argument.name) for at, argument in enumerate(func._schema.arguments)
                if argument.alias_info is not None and argument.alias_info.is_write
            ]  # fmt: skip


class _TouchedByOperator(dict[Any, _Touched]):
    def __missing__(self, func: Any) -> _Touched:
        found = self[func] = _Touched(func)
        return found


_touched = _TouchedByOperator()


class _Touches:
    """What one operation touches, by the host and on its stream."""

    def __init__(self, order: RankOrder, stream: str, name: str) -> None:
        self._order = order
        self._stream = stream
        self._name = name
        self._on_stream: MemoryAccess | None = None
        self._on_host: MemoryAccess | None = None

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
        touch(kept, tensor, access, writes=writes, fresh=fresh)


def touches(device: RankDevice, operation: Recorded, args: Any, kwargs: Any, result: Any) -> None:
    """Tell what an operation that has been recorded touches. Raises RaceError."""
    host = device.host
    order = host.order
    if order is None or host.capture is not None or operation.allocates or device.in_custom_operation:
        return
    if operation.kind == TRANSFER and device.moving and block_of(args[0]) is None:
        return  # on its way to a GPU: see `sent`
    order.one = not host.uses_gpu
    found = _touched[operation.func]
    mutated: list[torch.Tensor] = []
    for at, name in found.written:
        value = args[at] if at < len(args) else (kwargs or {}).get(name)
        if isinstance(value, torch.Tensor):
            mutated.append(value)
        elif value is not None:
            mutated += listed_tensors((value,))
    written = {id(tensor) for tensor in mutated}
    together = operation.kind == TRANSFER and _does_not_block(operation, args, kwargs, result)
    stage = _Touches(order, host.stream, operation.title.removesuffix(".default"))
    if not found.nothing:
        for tensor in listed_tensors((*args, *kwargs.values()) if kwargs else args):
            if id(tensor) not in written:
                stage.add(tensor, together=together)
    for tensor in mutated:
        stage.add(tensor, together=together, writes=True)
    for tensor in (result,) if isinstance(result, torch.Tensor) else listed_tensors((result,)):
        if id(tensor) not in written:
            stage.add(tensor, together=together, writes=True, fresh=True)


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
                kept.shadow.words.access(order.host, offset, sem="acquire", scope="sys", reads=True, writes=False)
            else:
                stage.add(tensor)


def sent(device: RankDevice, sources: Sequence[torch.Tensor], made: Sequence[torch.Tensor], *, goes_on: bool) -> None:
    """Tensors of the host have been copied to a GPU; from pinned memory, the host may have gone on. Raises RaceError."""
    order = device.host.order
    if order is None or device.host.capture is not None:
        return
    order.one = False
    stage = _Touches(order, device.host.stream, "copy to the GPU")
    for source in sources:
        stage.add(source, together=bool(goes_on) and is_pinned(source))
    for tensor in made:
        stage.add(tensor, writes=True, fresh=True)


class OrderedRecorder(_Tells, Recorder):
    """Records operations, and tells what they touch."""


class OrderedHollowRecorder(_Tells, HollowRecorder):
    """Records operations that are not computed, and tells what they would touch."""
