"""The caching allocator of pinned host memory: blocks of powers of two, which are kept when they are free again.

A block is free again as soon as its tensor is gone: whether a copy on some stream still reads it is not looked at. Making
blocks takes no time.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from kernbench.memory.statistics import Stat

_STATS = ("allocations", "allocated_bytes", "active_requests", "active_bytes")
_TIMES = ("host_alloc_time", "host_free_time")


class PinnedMemory:
    """One process's."""

    def __init__(self) -> None:
        self._free: Counter[int] = Counter()
        self._stats = {name: Stat() for name in _STATS}
        self._made = self._returned = 0

    def take(self, nbytes: int) -> PinnedBlock | None:
        """A block of at least ``nbytes``, for as long as it is referenced; None for none."""
        if not nbytes:
            return None
        size = 1 << (nbytes - 1).bit_length()
        if self._free[size]:
            self._free[size] -= 1
        else:
            self._made += 1
            self._own(1, size)
        self._use(1, size)
        return PinnedBlock(self, size)

    def give_back(self, size: int) -> None:
        """A block is free again."""
        self._free[size] += 1
        self._use(-1, size)

    def empty(self) -> None:
        """Give blocks that are free back to the system."""
        for size, count in self._free.items():
            self._returned += count
            self._own(-count, size)
        self._free.clear()

    def as_nested_dict(self) -> dict[str, Any]:
        """``torch.cuda.host_memory_stats_as_nested_dict``."""
        duration = dict.fromkeys(("total", "max", "min", "count", "avg"), 0)
        return {
            **{name: stat.as_dict() for name, stat in self._stats.items()},
            "num_host_alloc": self._made, "num_host_free": self._returned,
            **{name: dict(duration) for name in _TIMES},
        }  # fmt: skip

    def reset_peaks(self) -> None:
        """Peaks are what is now."""
        for stat in self._stats.values():
            stat.peak = stat.current

    def reset_accumulated(self) -> None:
        """Sums and counts begin anew."""
        for stat in self._stats.values():
            stat.allocated = stat.freed = 0
        self._made = self._returned = 0

    def _own(self, count: int, size: int) -> None:
        self._stats["allocations"].change(count)
        self._stats["allocated_bytes"].change(count * size)

    def _use(self, count: int, size: int) -> None:
        self._stats["active_requests"].change(count)
        self._stats["active_bytes"].change(count * size)


class PinnedBlock:
    """A block that is in use: it is free again when nothing refers to this."""

    __slots__ = ("_memory", "_size")

    def __init__(self, memory: PinnedMemory, size: int) -> None:
        self._memory, self._size = memory, size

    def __del__(self) -> None:
        self._memory.give_back(self._size)
