"""The flat tensor that torch's groups of NCCL make of a list with one tensor per rank, for all_gather and reduce_scatter.

The library moves one contiguous tensor. Torch allocates it and copies, a kernel per rank on the collective's stream: a
reduce_scatter's parts into it before, an all_gather's results out of it after. (Lists whose tensors differ in size take as many
broadcasts or reductions instead.) Here the values go where the program wants them at once: of the flat tensor there are the
memory, the copies' time, what they do to versions, and its contents where a future or ``result`` shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from kernbench.memory.ledger import COMMUNICATION, claim
from kernbench.sim_engine import Operation
from kernbench.simulation.memory.storages import Block
from kernbench.simulation.ranks.hosts import Host
from kernbench.simulation.simulation import Simulation
from kernbench.torch_backend.gpu.tensors.placement import PLAIN, put
from kernbench.torch_backend.hollow.shapes import Described, allocate
from kernbench.torch_backend.modes import plain_torch
from kernbench.torch_backend.relies_on import Reliance

RELIES_ON = (
    Reliance(
        "torch.autograd.graph.increment_version", "autograd sees that a tensor has been written", parameters=("tensor",)
    ),
)


class FlatList:
    """A list of a GPU's tensors of one size as one tensor beside them, whose memory is held as long as this is.

    Args:
        simulation: of the rank.
        parts: the list.
        block: what the first of them is in.
    """

    def __init__(self, simulation: Simulation, parts: Sequence[torch.Tensor], block: Block) -> None:
        self._simulation = simulation
        self._parts = parts
        self._block: Block = block.memory.hold(sum(part.numel() * part.element_size() for part in parts))
        claim(self._block.entry, COMMUNICATION)

    def copy_before(self, stream: str) -> Operation:
        """The copies from the list, on a group's stream, behind what is on the current one."""
        host = self._simulation.hosts.current()
        with host.driving(self._block.memory.sip):
            stream = self._simulation.streams.name_for(host, stream)
            host.let_wait(stream, host.before(host.stream))
            return self._copy(host, stream)

    def copy_after(self, stream: str) -> Operation:
        """The copies to the list, on the stream of the collective."""
        host = self._simulation.hosts.current()
        with host.driving(self._block.memory.sip):
            return self._copy(host, stream)

    def _copy(self, host: Host, stream: str) -> Operation:
        """One entry of the timeline, and a launch for each for the host."""
        simulation = self._simulation
        copies, first = len(self._parts), self._parts[0]
        shapes = ((first.shape, first.dtype),)
        one = simulation.op_costs.of("aten::copy_", shapes, shapes)
        all_of_them = replace(
            one, seconds=one.seconds * copies, low=one.low * copies, high=one.high * copies, nbytes=one.nbytes * copies
        )
        if host.capture is not None and stream != host.stream:
            host.capture.streams.admit(stream)
        current, host.stream = host.stream, stream
        try:
            made = simulation.streams.enqueue(host, "aten::copy_", all_of_them, cost_then=lambda: all_of_them)
        finally:
            host.stream = current
        host.prepare((copies - 1) * simulation.topology.device.launch.overhead)
        return made

    def write(self) -> None:
        """The list is what the copies write. Raises RuntimeError, as torch does, of a leaf that requires grad."""
        for part in self._parts:
            if part.requires_grad and part.is_leaf and torch.is_grad_enabled():
                raise RuntimeError("a leaf Variable that requires grad is being used in an in-place operation.")
            if not part.is_inference():
                torch.autograd.graph.increment_version(part)

    def tensor(self) -> torch.Tensor:
        """The flat tensor, with what the list has by now."""
        first = self._parts[0]
        shape = torch.Size((len(self._parts), *first.shape))
        with plain_torch(), torch.no_grad():
            flat = allocate(Described(shape, torch.empty(shape, device="meta").stride(), first.dtype))
            if not self._block.hollow:
                torch.stack(list(self._parts), out=flat)
        put(flat.untyped_storage(), self._block.nbytes, self._block.memory)
        return flat


def takes_one(parts: Sequence[torch.Tensor]) -> bool:
    """Whether torch makes one flat tensor of a list: all have the same size and are tensors of their own."""
    return all(type(part) in PLAIN and part.shape == parts[0].shape for part in parts)
