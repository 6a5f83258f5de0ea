"""What a capture leaves behind: nothing. On a GPU nothing runs while a graph is captured; here values are computed then.

So what is written meanwhile is kept before it is written for the first time, and is as it was again when the capture ends: a
gradient that is added to, an optimizer's state, a cache. What comes of values that the capture itself has made does not matter:
they may not be read before a replay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

from kernbench.simulation.memory.storages import NOTE, Block
from kernbench.simulation.memory.tensor_queries import storage_of
from kernbench.simulation.ranks.hosts import Host
from kernbench.triton_engine.memory import AllocationMap, HostAllocation


def keep(host: Host, tensors: Iterable[torch.Tensor]) -> None:
    """Before tensors are written by what ``host`` captures: keep what GPUs have in their memory."""
    assert host.capture is not None
    for tensor in tensors:
        storage = storage_of(tensor)
        block = getattr(storage, NOTE, None)
        if host.capture.memory.pool.owns(tensor):
            continue
        if type(block) is Block and not block.hollow and storage.nbytes() and id(storage) not in host.capture.kept:
            with host.as_one(), torch.no_grad():
                host.capture.kept[id(storage)] = storage, _bytes_of(storage).clone()


def undo(host: Host) -> None:
    """At the end of a capture: put back what was kept, and the states of generators.

    Memory that has been given back meanwhile has nothing to be put back.
    """
    assert host.capture is not None
    with host.as_one(), torch.no_grad():
        for storage, before in host.capture.kept.values():
            if storage.nbytes() == before.numel():
                _bytes_of(storage).copy_(before)
    host.capture.kept.clear()
    for generator, state in host.capture.random.values():
        generator.set_state(state)


class _MemoryBehindPointers:
    """What a kernel finds behind pointers that it has from memory: peers' buffers, signals. Kept when it is found."""

    def __init__(self, memory: AllocationMap) -> None:
        self._memory = memory
        self.kept: dict[int, tuple[HostAllocation, torch.Tensor]] = {}
        self.multicast_range = memory.multicast_range
        self.checks = memory.checks

    def find(self, address: int) -> HostAllocation | None:
        found = self._memory.find(address)
        if found is not None:
            found.words = None
            if found.base not in self.kept:
                self.kept[found.base] = found, found.flat(torch.uint8).clone()
        return found

    def words(self, address: int) -> None:
        """No listener is notified that a capture has written there."""


@contextmanager
def behind_pointers(memory: AllocationMap) -> Iterator[AllocationMap]:
    """For the length of a block, in which a captured kernel runs: memory whose contents are as they were when it ends, but
    those of the tensors that the kernel is given (:func:`keep`)."""
    kept = _MemoryBehindPointers(memory)
    try:
        yield kept
    finally:
        for found, before in kept.kept.values():
            found.flat(torch.uint8).copy_(before)


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)
