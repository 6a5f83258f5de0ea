"""What the pointers of kernels point to in a simulation: its tensors, and addresses that stand for several of them."""

from __future__ import annotations

import torch

from kernbench.sim_engine import MemoryStore
from kernbench.sim_engine.memory_store import Allocation as Placed
from kernbench.simulation.order.kernel_order import KernelOrder
from kernbench.simulation.ranks.hosts import Hosts
from kernbench.triton_engine.machine import Execution
from kernbench.triton_engine.memory import HostAllocation, MulticastRanges
from kernbench.triton_engine.signals import Words

_MOST_SIGNAL_BYTES = 1 << 16
"""Allocations of at most this many bytes may be signals or progress counters that a program keeps in plain tensors."""


class KernelMemory:
    """Finds what a kernel's pointers point to: the simulation's tensors, by their address in this process.

    Attributes:
        multicast: the ranges of addresses that stand for several buffers.
        signals: whether the program may signal through memory, so that small allocations remember who wrote their words.
    """

    def __init__(self, memory: MemoryStore, hosts: Hosts) -> None:
        self._memory = memory
        self._hosts = hosts
        self.multicast = MulticastRanges()
        self.signals = False

    def find(self, address: int) -> HostAllocation | None:
        """The live allocation that contains ``address``, if any."""
        found = self._memory.find_host(address)
        if found is None or found.backing is None:
            return None
        allocation = HostAllocation(torch.from_numpy(found.backing), found.name, found.rank)
        allocation.words = self._words_of(found)
        return allocation

    def words(self, address: int) -> Words | None:
        """Who wrote what lies at ``address`` last, if ranks meet there."""
        found = self._memory.find_host(address)
        return None if found is None else self._words_of(found)

    def _words_of(self, found: Placed) -> Words | None:
        if found.words is None and self.signals and found.nbytes <= _MOST_SIGNAL_BYTES:
            found.words = Words(found.sip)
        words: Words | None = found.words
        return words

    def checks(self, execution: Execution) -> KernelOrder | None:
        """Tells the order of events what programs do, where it has a listener."""
        if self._hosts.order is None or all(launch.moment is None for launch in execution.launches):
            return None
        return KernelOrder(execution, self._hosts, self._memory)

    def multicast_range(self, address: int) -> tuple[int, tuple[int, ...], int] | None:
        """Of a multicast address: where its range starts, the buffers it stands for, and their bytes."""
        return self.multicast.bases_of(address)
