"""What a rank's collectives and messages bring and get, in memory that it shares with the simulation.

Inputs are copied into it when a call is posted, outputs out of it at the first reply after the simulation has moved the
values. Replies come at points of the program that do not depend on the host, so neither does what the program sees.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch._C import DisableTorchFunctionSubclass

from kernbench.processes.shared_memory import NO_BYTES, SharedMemory, SharedRegion
from kernbench.sim_engine import Operation
from kernbench.simulation.memory.storages import StorageTable
from kernbench.simulation.memory.tensor_queries import plain, storage_of
from kernbench.simulation.values.collective_values import Brought, Effect, brought_by, note


@dataclass(eq=False, slots=True)
class _Run:
    """Tensors that lie one behind the other in memory, and the region that they share."""

    whole: torch.Tensor
    region: SharedRegion
    written: bool


@dataclass(eq=False, slots=True)
class Posted:
    """A call that has been posted, whose values may be to come.

    Attributes:
        op: this rank's part.
        inputs, outputs: where they are in shared memory.
        copied: whether the outputs have come.
        brought: in a simulation without data, what is known of the tensors.
        tensors: then, the inputs and the outputs themselves, until the effect has been noted with them.
    """

    op: Operation
    inputs: list[SharedRegion]
    outputs: list[SharedRegion]
    copied: bool = False
    runs: list[_Run] = field(default_factory=list)
    writes: frozenset[int] = frozenset()
    brought: Brought | None = None
    tensors: tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]] = ((), ())


class Payloads:
    """The payloads of one rank's calls that are under way, in the rank's process.

    Args:
        shared: memory shared with the simulation.
        storages: of the rank's copy of the simulation.
    """

    def __init__(self, shared: SharedMemory, storages: StorageTable) -> None:
        self._shared = shared
        self._storages = storages

    def before(self, inputs: Sequence[torch.Tensor], under_way: Iterable[Posted]) -> Posted | None:
        """The first call under way that writes a part of ``inputs``, whose values must have come before they can be brought.

        One that writes the very tensor need not: both calls use one region, as they would use one piece of memory. Without
        data it must, too: what becomes known of the tensor by it is what the next call brings.
        """
        for posted in under_way:
            if posted.writes.isdisjoint([id(storage_of(tensor)) for tensor in inputs]):
                continue
            if not self._storages.has_data:
                return posted
            touched = [whole for whole, parts in runs(inputs) if id(storage_of(parts[0])) in posted.writes]
            if any(_same(whole, [posted]) is None for whole in touched):
                return posted
        return None

    def bring(
        self,
        op: Operation,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        under_way: Sequence[Posted] = (),
        matter: Sequence[torch.Tensor] | None = None,
    ) -> Posted:
        """Copy the inputs, but those that calls ``under_way`` write, and make room for the outputs.

        ``matter``: the inputs whose values go anywhere, if not all do.
        """
        posted = Posted(op, [], [], writes=frozenset(id(storage_of(tensor)) for tensor in outputs))
        if not self._storages.has_data:
            posted.tensors = inputs, outputs
            posted.brought = brought_by(self._storages, inputs if matter is None else matter, outputs)
            if not posted.brought.has_bytes:  # nothing will move
                posted.inputs, posted.outputs = list(map(_without_bytes, inputs)), list(map(_without_bytes, outputs))
                return posted
        place: dict[int, SharedRegion] = {}
        written = {id(tensor) for tensor in outputs}
        in_place = [tensor for tensor in inputs if id(tensor) in written]
        for tensors, writes, copies in (
            (in_place, True, True),
            ([tensor for tensor in inputs if id(tensor) not in written], False, True),
            (outputs, True, False),
        ):
            new = [tensor for tensor in tensors if id(tensor) not in place]
            for whole, parts in runs(new):
                written_by = _same(whole, under_way)
                if written_by is not None:
                    region = self._shared.keep(written_by.region)
                else:
                    region = self._shared.take(tuple(whole.shape), whole.dtype, whole.numel())
                offset = region.offset
                for part in parts:
                    place[id(part)] = SharedRegion(offset, tuple(part.shape), part.dtype)
                    offset += part.numel() * part.element_size()
                if copies and whole.numel() and written_by is None:
                    self._shared.tensor(region).copy_(whole)
                posted.runs.append(_Run(whole, region, writes))
        posted.inputs = [place[id(tensor)] for tensor in inputs]
        posted.outputs = [place[id(tensor)] for tensor in outputs]
        return posted

    def take_outputs(self, posted: Posted, effect: Effect | None = None) -> None:
        """Its values have been moved: copy the outputs to where the program has them.

        Without data, ``effect`` says whether they have, and is noted.
        """
        posted.copied = True
        for run in posted.runs if effect is None or effect.moved else ():
            if run.written and run.whole.numel():
                values = self._shared.tensor(run.region)
                with torch.inference_mode(run.whole.is_inference()):  # it may be another block's
                    run.whole.copy_(values)
        if effect is not None:
            note(self._storages, *posted.tensors, effect)
        self.drop(posted)

    def drop(self, posted: Posted) -> None:
        """Give back its room."""
        for run in posted.runs:
            self._shared.give_back(run.region)
        posted.runs.clear()
        posted.tensors = ((), ())


def _without_bytes(tensor: torch.Tensor) -> SharedRegion:
    with DisableTorchFunctionSubclass():
        return SharedRegion(NO_BYTES, tuple(tensor.shape), tensor.dtype)


def _same(whole: torch.Tensor, under_way: Sequence[Posted]) -> _Run | None:
    """What the last of some calls writes that is the very memory of ``whole``, in the same order of elements."""
    look = (whole.data_ptr(), whole.shape, whole.stride(), whole.dtype)
    for posted in reversed(under_way):
        for run in posted.runs:
            there = run.whole
            if run.written and (there.data_ptr(), there.shape, there.stride(), there.dtype) == look and whole.numel():
                return run
    return None


def runs(tensors: Iterable[torch.Tensor]) -> list[tuple[torch.Tensor, list[torch.Tensor]]]:
    """Tensors, those that lie one behind the other as one (the cells of a larger one): that, past autograd, and its parts."""
    found: list[tuple[torch.Tensor, list[torch.Tensor]]] = []
    end, first, total = -1, None, 0
    for tensor in tensors:
        bare = plain(tensor).data
        there = bare.is_contiguous() and bare.numel() > 0
        if there and bare.data_ptr() == end and first is not None and first.dtype is bare.dtype:
            total += bare.numel()
            parts = found[-1][1]
            parts.append(tensor)
            found[-1] = first.as_strided((total,), (1,)), parts
        else:
            found.append((bare, [tensor]))
            first, total = (bare, bare.numel()) if there else (None, 0)
        end = bare.data_ptr() + bare.numel() * bare.element_size() if there else -1
    return found
