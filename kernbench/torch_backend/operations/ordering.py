"""What torch's operations touch, for the order of events: races, undefined memory, weak memory.

What an operation reads and writes is in its row of :mod:`~kernbench.torch_backend.operations.operators`. What is on a GPU is
touched by the stream that the operation is put on, what is on the host by the host itself; a copy that does not block, from
or to pinned memory, touches both on the stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from kernbench.order import ByteRegion, MemoryAccess, RankOrder, Undefined
from kernbench.simulation.memory.tensor_queries import listed_tensors, made_tensors
from kernbench.simulation.order.shadow_memory import allocated, escapes, region_in, shadow_of, touch
from kernbench.simulation.order.weak_memory import OlderView, as_before, older_of, writes_of, written_anew
from kernbench.simulation.ranks.listeners import Listener
from kernbench.torch_backend.gpu.device.rank_device import RankDevice
from kernbench.torch_backend.gpu.tensors.pinning import is_pinned
from kernbench.torch_backend.gpu.tensors.placement import block_of
from kernbench.torch_backend.operations.calls import OperatorCall
from kernbench.torch_backend.operations.captured_touches import CapturedTouches
from kernbench.torch_backend.operations.operators import TRANSFER, VIEW, TorchOperator
from kernbench.torch_backend.operations.semantics import GIVES_MEMORY

_MOST_POLLED = 8
"""Bytes of memory that ranks share up to which a look is taken to be one of many, by a host that waits for a word to change."""


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


def touches(call: OperatorCall) -> None:
    """Note what an operation that has been recorded touches. Raises RaceError."""
    device, operator, args, kwargs, result = call.device, call.operator, call.args, call.kwargs, call.result
    host = device.host
    order = host.order
    if order is None or device.doing.in_custom_operation:
        return
    if operator.allocates:
        if device.simulation.engine.enable_data:
            allocated(order, result, operator.name)
        return
    if operator.kind == TRANSFER and device.doing.moving and block_of(args[0]) is None:
        return  # on its way to a GPU: see `sent`
    order.one = not host.uses_gpu
    graph = host.capture
    written = operator.written(args, kwargs)
    mine = {id(tensor) for tensor in written}
    title = operator.title.removesuffix(".default")
    stage: _Touches | CapturedTouches
    if graph is None:
        together = operator.kind == TRANSFER and _does_not_block(operator, args, kwargs, result)
        stage = _Touches(order, host.stream, title, changes=operator.changes)
    else:
        together = operator.kind == TRANSFER  # its nodes have all come from pinned memory
        stage = CapturedTouches(order, title, changes=operator.changes)
    for tensor in operator.read(args, kwargs, written):
        stage.add(tensor, together=together)
    for tensor in written:
        stage.add(tensor, together=together, writes=True)
    made = made_tensors(result)
    fresh = [tensor for tensor in made if id(tensor) not in mine]
    for tensor in fresh:
        stage.add(tensor, together=together, writes=True, fresh=True)
    passes_on = not operator.chooses and not any(isinstance(arg, list) for arg in args)
    if isinstance(stage, CapturedTouches):
        stage.have_done_again(host, passes_on=passes_on)
    elif stage.undefined is not None and passes_on:
        stage.made_of(stage.undefined, (*written, *fresh))


def _does_not_block(operator: TorchOperator, args: Any, kwargs: Any, result: Any) -> bool:
    """Whether a copy between pinned memory of the host and a GPU goes on while the host does."""
    if not operator.is_non_blocking(args, kwargs):
        return False
    sides = (args[0], args[1]) if operator.name == "copy_" else (args[0], result)
    return all(block_of(side) is not None or is_pinned(side) for side in sides)


class Touches(Listener):
    """Notes what operations touch, and what the host looks at."""

    def looking(self, call: OperatorCall) -> None:
        """See :class:`Listener`."""
        looks(call.device, call.operator.name, call.args)

    def recorded(self, call: OperatorCall) -> None:
        """See :class:`Listener`."""
        touches(call)


def looks(device: RankDevice, name: str, values: Any) -> None:
    """The host has got values, by a copy from the current stream or out of its own memory. Raises RaceError."""
    order = device.host.order
    if order is not None:
        order.one = not device.host.uses_gpu
        tensors = listed_tensors(values)
        stage = _Touches(order, _stream_of(device, tensors), name)
        for tensor in tensors:
            kept = shadow_of(order, tensor)
            if kept is not None and kept.shadow.shared and tensor.nbytes <= _MOST_POLLED:
                offset = int(tensor.storage_offset()) * tensor.element_size()
                if order.follows:
                    kept.shadow.poll(order.of_host(name), ByteRegion(offset, offset + tensor.nbytes))
                look = order.of_host(name)
                kept.shadow.words.access(look, offset, sem="acquire", scope="sys", reads=True, writes=False)
            else:
                stage.add(tensor)
                if name in GIVES_MEMORY and kept is not None and kept.shadow.unwritten:
                    escapes(tensor)
                else:
                    stage.look(tensor)


def _stream_of(device: RankDevice, tensors: Sequence[torch.Tensor]) -> str:
    """The stream that is current on the GPU of tensors, where the host's copies of them are."""
    sips = (block.own_sip for block in map(block_of, tensors) if block is not None)
    own = next((sip for sip in sips if sip is not None), device.host.sip)
    return device.host.stream_on(own)


def sent(device: RankDevice, sources: Sequence[torch.Tensor], made: Sequence[torch.Tensor], *, goes_on: bool) -> None:
    """Tensors of the host, or of another GPU, have been copied to a GPU, on the current stream; from pinned memory, the host
    may have gone on. Raises RaceError."""
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


class WeakReads(Listener):
    """Operations read what nothing orders behind a write as it was before. It listens after :class:`Touches`."""

    def computing(self, call: OperatorCall) -> AbstractContextManager[Any] | None:
        """See :class:`Listener`."""
        device, operator = call.device, call.operator
        host, order = device.host, device.host.order
        launches = operator.kind > VIEW and not operator.allocates
        if (
            order is None
            or not launches
            or host.unrecorded
            or host.capture is not None
            or device.doing.in_custom_operation
        ):
            return None
        order.one = not host.uses_gpu
        written = operator.written(call.args, call.kwargs)
        read = operator.read(call.args, call.kwargs, written) + (written if operator.changes else [])
        call.kept[self] = writes_of(order, written)
        return as_before(_older_here(device, operator.title, read), written)

    def recorded(self, call: OperatorCall) -> None:
        """See :class:`Listener`."""
        order = call.device.host.order
        if order is not None and call.device.host.capture is None:
            for each in call.kept.get(self, ()):
                write = each.shadow.writer(each.region)
                if write is not None:
                    each.written(write)
            written_anew(order, made_tensors(call.result))


def _older_here(device: RankDevice, name: str, tensors: Sequence[torch.Tensor]) -> list[OlderView]:
    """What an operation on the current stream sees instead of what is in these tensors; those on the host are read by that."""
    order = device.host.order
    assert order is not None
    stream = order.stream(_stream_of(device, tensors))
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
    weak = order is not None and order.weak is not None and name not in GIVES_MEMORY
    older = _older_here(device, name, (tensor,)) if weak else []
    with device.host.as_one() if older else nullcontext(), as_before(older):
        yield


def order_listeners(*, weak: bool) -> list[Listener]:
    """What listens to torch's operations where the order of events matters."""
    return [Touches(), WeakReads()] if weak else [Touches()]
