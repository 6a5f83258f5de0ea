"""Statistics of an allocator, with the names that torch gives them."""

from __future__ import annotations

from typing import Any

import numpy as np

SMALL_LIMIT = 1 << 20
"""Blocks of at most this many bytes are in the small pool."""

KINDS = ("all", "small_pool", "large_pool")


class Stat:
    """A number that goes up and down.

    Attributes:
        current, peak: now, and at most since the last reset.
        allocated, freed: sums of what it went up and down by since the last reset.
    """

    __slots__ = ("allocated", "current", "freed", "peak")

    def __init__(self) -> None:
        self.current = self.peak = self.allocated = self.freed = 0

    def change(self, amount: int) -> None:
        """Go up or down."""
        self.current += amount
        if amount > 0:
            self.allocated += amount
            self.peak = max(self.peak, self.current)
        else:
            self.freed -= amount

    def change_by(self, amounts: np.ndarray[Any, Any]) -> None:
        """Go up and down, one after the other."""
        if len(amounts):
            reached = np.cumsum(amounts)
            self.peak = max(self.peak, self.current + int(reached.max()))
            self.current += int(reached[-1])
            up = int(amounts[amounts > 0].sum())
            self.allocated += up
            self.freed += up - int(reached[-1])

    def as_dict(self) -> dict[str, int]:
        """As torch shows it."""
        return {"current": self.current, "peak": self.peak, "allocated": self.allocated, "freed": self.freed}


class StatGroup:
    """A :class:`Stat` over all blocks, those of the small pool, and those of the large one."""

    def __init__(self) -> None:
        self.stats = {kind: Stat() for kind in KINDS}

    def change(self, amount: int, *, small: bool) -> None:
        """Go up or down by ``amount`` in one of the pools."""
        self.stats["all"].change(amount)
        self.stats["small_pool" if small else "large_pool"].change(amount)

    def change_by(self, amounts: np.ndarray[Any, Any], small: np.ndarray[Any, Any]) -> None:
        """Go up and down by ``amounts``, each in the pool that ``small`` says."""
        self.stats["all"].change_by(amounts)
        self.stats["small_pool"].change_by(amounts[small])
        self.stats["large_pool"].change_by(amounts[~small])

    def as_dict(self) -> dict[str, dict[str, int]]:
        """As torch shows it."""
        return {kind: stat.as_dict() for kind, stat in self.stats.items()}


_GROUPS = (
    "allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes", "active_bytes",
    "inactive_split_bytes", "requested_bytes",
)  # fmt: skip
_SINGLE = ("oversize_allocations", "oversize_segments")
_COUNTERS = ("num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free",
             "num_oom_rejections")  # fmt: skip

_BIAS = 8


class Statistics:
    """All of one allocator's.

    What changes with each block is noted in lists, and summed up on request: most of a program's time there is none.

    Attributes:
        blocks: bytes of each block that was given out (taken back: negative).
        requests: bytes that were asked for, of each block that came into use (was free again: negative).
        splits: changes of what is free and cannot be given back, see :meth:`encode_split`.
        active: bytes of each block that came into use (was free again: negative). None as long as that is the same as given
            out and taken back: no block has been taken back that a stream still used.
    """

    def __init__(self) -> None:
        self.blocks: list[int] = []
        self.requests: list[int] = []
        self.splits: list[int] = []
        self.active: list[int] | None = None
        self.groups = {name: StatGroup() for name in _GROUPS}
        self.single = {name: Stat() for name in _SINGLE}
        self.counters = dict.fromkeys(_COUNTERS, 0)

    @staticmethod
    def encode_split(nbytes: int, count: int, *, small: bool) -> int:
        """A change by ``nbytes`` in ``count`` blocks, as one number: sizes are multiples of 512."""
        return nbytes + 2 * (count + _BIAS) + small

    def part_active(self) -> None:
        """From now on active blocks are not those that are given out."""
        if self.active is None:
            self.fold()
            self.active = []

    def fold(self) -> None:
        """Sum up what was noted."""
        if self.blocks:
            sizes = np.array(self.blocks, dtype=np.int64)
            self._count("allocation", "allocated_bytes", sizes)
            if self.active is None:
                self._count("active", "active_bytes", sizes)
            self.blocks.clear()
        if self.requests:
            requests = np.array(self.requests, dtype=np.int64)
            self.groups["requested_bytes"].change_by(requests, np.abs(requests) <= SMALL_LIMIT)
            self.requests.clear()
        if self.active:
            self._count("active", "active_bytes", np.array(self.active, dtype=np.int64))
            self.active.clear()
        if self.splits:
            codes = np.array(self.splits, dtype=np.int64)
            low = codes & 511
            small = (low & 1).astype(bool)
            self.groups["inactive_split"].change_by((low >> 1) - _BIAS, small)
            self.groups["inactive_split_bytes"].change_by(codes - low, small)
            self.splits.clear()

    def _count(self, number: str, total: str, sizes: np.ndarray[Any, Any]) -> None:
        small = np.abs(sizes) <= SMALL_LIMIT
        self.groups[number].change_by(np.sign(sizes), small)
        self.groups[total].change_by(sizes, small)

    def as_nested_dict(self, max_split_size: int | None) -> dict[str, object]:
        """``torch.cuda.memory_stats_as_nested_dict``."""
        self.fold()
        return {
            **{name: group.as_dict() for name, group in self.groups.items()},
            **{name: stat.as_dict() for name, stat in self.single.items()},
            **self.counters,
            "max_split_size": -1 if max_split_size is None else max_split_size,
            "reserved_bytes_by_private_pools": {},
        }

    def reset_peaks(self) -> None:
        """Peaks are what is now."""
        self.fold()
        for stat in self._all():
            stat.peak = stat.current

    def reset_accumulated(self) -> None:
        """Sums and counts begin anew."""
        self.fold()
        for stat in self._all():
            stat.allocated = stat.freed = 0
        self.counters = dict.fromkeys(_COUNTERS, 0)

    def _all(self) -> list[Stat]:
        return [*self.single.values(), *(stat for group in self.groups.values() for stat in group.stats.values())]
