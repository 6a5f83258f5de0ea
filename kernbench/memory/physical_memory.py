"""The memory of a device, and the addresses of what processes reserve of it."""

from __future__ import annotations

from collections.abc import Callable

from kernbench.memory.settings import MIB

ROUND_LARGE = 2 * MIB
"""What a large reservation is rounded up to, bytes, and aligned to."""


class PhysicalMemory:
    """The memory that allocators share: those of the processes that drive one device.

    Args:
        capacity: bytes that they may reserve, together.
        base: the first address.
        reclaim: gives back what processes have left that have ended.
    """

    def __init__(self, capacity: int, base: int, reclaim: Callable[[], object] = lambda: None) -> None:
        self.capacity = capacity
        self.reserved = 0
        self.next_address = base
        self._reclaim = reclaim

    def take(self, nbytes: int) -> bool:
        """Reserve physical memory; whether there is any left."""
        if self.reserved + nbytes > self.capacity:
            self._reclaim()
            if self.reserved + nbytes > self.capacity:
                return False
        self.reserved += nbytes
        return True

    def give_back(self, nbytes: int) -> None:
        """Memory that was reserved is free again."""
        self.reserved -= nbytes

    def occupy(self, name: str, nbytes: int) -> None:
        """A library of a process takes memory besides, named by what it is for."""
        self.capacity -= nbytes

    @property
    def free(self) -> int:
        """Bytes that are unreserved."""
        return max(0, self.capacity - self.reserved)

    def addresses(self, nbytes: int) -> int:
        """Addresses that are unused so far, aligned to 2 MiB."""
        address = self.next_address
        self.next_address += -(-nbytes // ROUND_LARGE) * ROUND_LARGE
        return address
