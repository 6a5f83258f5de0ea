"""A device's memory as PyTorch's caching allocator uses it.

Requests are rounded up to 512 bytes and served from free blocks of the same stream and pool (small: up to 1 MiB), the smallest
that fits first; what is left over is split off, and free neighbours join again. Without one, a **segment** is taken from the
device, which the program keeps ("reserved") after its blocks are free, until the device is full or the cache is emptied.

The rules and their figures are those of torch 2.13 (c10/cuda/CUDACachingAllocator.cpp). Left out: memory
shared between processes. A program's own pool, and one of CUDA graphs, has segments of its own, which are kept as long as the
program keeps the pool, or a graph of it.

A block that streams other than its own have used is free when they have: its freer says which **uses** are open, and the
allocator asks at its next request which have ended.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from kernbench.memory.expandable_segments import ExpandableSegments
from kernbench.memory.extents import Extent, Pool, room_of
from kernbench.memory.physical_memory import ROUND_LARGE, PhysicalMemory
from kernbench.memory.settings import LARGE_SEGMENT, MIB, SMALL_SEGMENT, AllocatorSettings
from kernbench.memory.statistics import SMALL_LIMIT, Statistics

MIN_LARGE_SEGMENT = 10 * MIB
"""Requests below share a segment of 20 MiB; others have one of their own, rounded up to 2 MiB."""
_FOLD_AT = 1 << 17
"""Numbers that the statistics note before they are summed up."""

SPLIT_LESS, SPLIT_SAME, SPLIT_MORE = (Statistics.encode_split(0, count, small=False) for count in (-1, 0, 1))

Trace = Callable[[str, int, int, str, Extent | None], None]
"""A listener to what happens: the action as torch names it, address, bytes, stream, and the block if it is one."""


class NoRoomError(Exception):
    """Neither the device nor the cache has room.

    Attributes:
        requested: bytes that the device was asked for last.
    """

    def __init__(self, requested: int) -> None:
        super().__init__(requested)
        self.requested = requested


class Use(Protocol):
    """Work of a stream that still uses a block."""

    def ended(self) -> bool:
        """Whether it has ended by now."""

    def finish(self) -> bool:
        """Wait for it; whether it has ended."""


class CachingAllocator:
    """What one process has of one device.

    Args:
        device: whose memory it is.
        settings: of the process.

    Attributes:
        allocated: bytes of the blocks that are given out.
        reserved, peak_reserved: bytes of all segments, now and at most.
        limit: bytes that this process may reserve; None: all that there is.
        statistics: torch's.
        trace: receives each action; None: no listener.
    """

    def __init__(self, device: PhysicalMemory, settings: AllocatorSettings | None = None) -> None:
        self.device = device
        self.limit: int | None = None
        self.allocated = 0
        self.reserved = self.peak_reserved = 0
        self.statistics = Statistics()
        self.trace: Trace | None = None
        self._small: dict[str, Pool] = {}
        self._large: dict[str, Pool] = {}
        self._owned: dict[int, tuple[dict[str, Pool], dict[str, Pool]]] = {}
        self._kept_pools: set[int] = set()
        self._awaiting: list[tuple[Extent, list[Use]]] = []
        self._heads: dict[int, Extent] = {}
        self._expandable = ExpandableSegments(device, self._heads, self._count_segment, self._trace_segment)
        self._looks = 0
        self._plain = True
        self.configure(settings or AllocatorSettings())

    def configure(self, settings: AllocatorSettings) -> None:
        """Have other settings from now on."""
        self.settings = settings
        self._collects = settings.garbage_collection_threshold > 0.0
        self._plain = self._plain and settings.max_split_size is None and not settings.expandable_segments
        self._plain = self._plain and not self._collects
        self._rounds = bool(settings.roundup_power2_divisions)
        if settings.fraction is not None:
            self.limit = int(settings.fraction * self.device.capacity)

    def move_to(self, device: PhysicalMemory) -> None:
        """Have the memory of another device from now on."""
        self.device = self._expandable.device = device

    # -- giving out --------------------------------------------------------------------------------------------------

    def allocate(self, nbytes: int, stream: str, owner: int = 0) -> Extent:
        """A block of at least ``nbytes`` (> 0) for work on ``stream``, of the program's own pool number ``owner`` (0: of none).
        Raises :class:`NoRoomError`; nothing is lost then."""
        if self._awaiting:
            self._take_back(lambda use: use.ended())
        size = self.settings.rounded(nbytes) if self._rounds else (nbytes + 511) & -512 or 512
        small = size <= SMALL_LIMIT
        pools = self._small if small else self._large
        if owner:
            self._kept_pools.add(owner)
            pools = self._owned.setdefault(owner, ({}, {}))[not small]
        pool = pools.get(stream)
        if pool is None:
            pool = pools[stream] = Pool(stream, small=small, owner=owner)
        statistics = self.statistics
        if self._plain:
            free = pool.free
            at = bisect_left(free, (size,))
            extent = free.pop(at)[2] if at < len(free) else self._more(pool, size)
        else:
            extent = self._find(pool, size) or self._more(pool, size)
        left = extent.size - size
        before, after = extent.prev, extent.next
        if left > (511 if small else SMALL_LIMIT) if self._plain else self._may_split(pool, size, left):
            extent, rest = Extent(pool, extent.address, size), extent
            if before is not None:
                extent.prev = before
                before.next = extent
            else:
                extent.segment_context, rest.segment_context = rest.segment_context, None
                self._heads[extent.address] = extent
            extent.next = rest
            rest.prev = extent
            rest.address += size
            rest.size = left
            insort(pool.free, (left, rest.address, rest))
            if self._collects:
                rest.kept_at = self._looks
            if rest.arena is not None:
                extent.arena = rest.arena
            elif before is None and after is None:
                statistics.splits.append(left + SPLIT_MORE + small)
            else:
                statistics.splits.append(SPLIT_SAME + small - size)
        else:
            extent.idle = False
            size = extent.size
            if (before is not None or after is not None) and extent.arena is None:
                statistics.splits.append(SPLIT_LESS + small - size)
        extent.requested = nbytes
        self.allocated += size
        blocks = statistics.blocks
        blocks.append(size)
        statistics.requests.append(nbytes)
        if statistics.active is not None:
            statistics.active.append(size)
        if len(blocks) > _FOLD_AT:
            statistics.fold()
        if not self._plain:
            self._count_oversize(size, 1)
        if self.trace is not None:
            self.trace("alloc", extent.address, nbytes, stream, extent)
        return extent

    def _may_split(self, pool: Pool, size: int, left: int) -> bool:
        settings = self.settings
        if pool.small or settings.expandable_segments:
            return left >= 512
        return (settings.max_split_size is None or size < settings.max_split_size) and left > SMALL_LIMIT

    def _find(self, pool: Pool, size: int) -> Extent | None:
        """A free block for a request, where settings have a say in it; it is taken out of the pool."""
        settings, free = self.settings, pool.free
        if self._collects and not pool.small:
            self._looks += 1
        at = bisect_left(free, (size,))
        if at == len(free):
            return None
        if free[at][2].arena is not None and settings.expandable_segments:
            # of blocks that can grow, the one that can grow least
            while at + 1 < len(free) and free[at][2].arena is not None:
                if room_of(free[at + 1][2]) >= room_of(free[at][2]):
                    break
                at += 1
        elif free[at][2].arena is not None:
            while at < len(free) and free[at][2].arena is not None:
                at += 1
            if at == len(free):
                return None
        found = free[at][2]
        most = settings.max_split_size
        if most is not None and (
            size < most <= found.size or (size >= most and found.size >= size + settings.max_non_split_rounding)
        ):
            return None
        del free[at]
        return found

    def _count_oversize(self, size: int, change: int) -> None:
        most = self.settings.max_split_size
        if most is not None and size >= most:
            self.statistics.single["oversize_allocations"].change(change)

    # -- taking back -------------------------------------------------------------------------------------------------

    def free(self, extent: Extent, uses: Sequence[Use] = ()) -> None:
        """Take a block back; it can be given out again when ``uses`` of other streams have ended."""
        size, requested = extent.size, extent.requested
        self.allocated -= size
        open_uses = [use for use in uses if not use.ended()] if uses else None
        if open_uses:
            self.statistics.part_active()
        self.statistics.blocks.append(-size)
        if not self._plain:
            self._count_oversize(size, -1)
        if self.trace is not None:
            self.trace("free_requested", extent.address, requested, extent.pool.stream, extent)
        if open_uses:
            self._awaiting.append((extent, open_uses))
            extent.awaited = True
        else:
            self._make_idle(extent)

    def _make_idle(self, extent: Extent) -> None:
        """Put a block among the free ones, joined with its neighbours that are."""
        pool, statistics = extent.pool, self.statistics
        size = extent.size
        statistics.requests.append(-extent.requested)
        if statistics.active is not None:
            statistics.active.append(-size)
        if self.trace is not None:
            self.trace("free_completed", extent.address, extent.requested, pool.stream, extent)
        extent.context = None
        before, after, free = extent.prev, extent.next, pool.free
        joined = count = 0
        if before is not None and before.idle:
            del free[bisect_left(free, (before.size, before.address))]
            joined += before.size
            count -= 1
            extent.address = before.address
            extent.segment_context = before.segment_context
            extent.prev = before = before.prev
            if before is not None:
                before.next = extent
            else:
                self._heads[extent.address] = extent
        if after is not None and after.idle:
            del free[bisect_left(free, (after.size, after.address))]
            joined += after.size
            count -= 1
            extent.next = after = after.next
            if after is not None:
                after.prev = extent
        extent.idle = True
        extent.size = size = size + joined
        if self._collects:
            extent.kept_at = self._looks
        insort(free, (size, extent.address, extent))
        if extent.arena is not None:
            return
        if before is not None or after is not None:
            count += 1
            joined -= size
        if count or joined:
            statistics.splits.append(SPLIT_SAME + 2 * count + pool.small - joined)

    def _take_back(self, ended: Callable[[Use], bool]) -> None:
        """Blocks that were given back while other streams used them are idle once all their uses have ``ended``."""
        still = []
        for extent, uses in self._awaiting:
            left = [use for use in uses if not ended(use)]
            if left:
                still.append((extent, left))
            else:
                extent.awaited = False
                self._make_idle(extent)
        self._awaiting = still

    # -- segments ----------------------------------------------------------------------------------------------------

    def _more(self, pool: Pool, size: int) -> Extent:
        """A block of a new segment, or of a longer one."""
        if self._collects:
            self._collect()
        if size <= SMALL_LIMIT:
            wanted = SMALL_SEGMENT
        elif size < MIN_LARGE_SEGMENT:
            wanted = LARGE_SEGMENT
        else:
            wanted = -(-size // ROUND_LARGE) * ROUND_LARGE
        extent = self._reserve(pool, size, wanted)
        if extent is None and self._give_back_oversize(pool, size):
            extent = self._reserve(pool, size, wanted)
        if extent is None:
            self._give_back_cached()
            self.statistics.counters["num_alloc_retries"] += 1
            extent = self._reserve(pool, size, wanted)
        if extent is None:
            self.statistics.counters["num_ooms"] += 1
            if self.trace is not None:
                self.trace("oom", self.device.capacity - self.device.reserved, size, pool.stream, None)
            raise NoRoomError(wanted)
        return extent

    def _reserve(self, pool: Pool, size: int, wanted: int) -> Extent | None:
        if self.limit is not None and self.reserved + wanted > self.limit:
            return None
        if self.settings.expandable_segments:
            return self._expandable.expand(pool, size)
        if not self.device.take(wanted):
            return None
        extent = Extent(pool, self.device.addresses(wanted), wanted)
        extent.idle = True
        self._heads[extent.address] = extent
        self._count_segment(extent, wanted, 1)
        self._trace_segment("segment_alloc", extent)
        return extent

    def _count_segment(self, extent: Extent, nbytes: int, change: int) -> None:
        statistics, small = self.statistics, extent.pool.small
        self.reserved += change * nbytes
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        statistics.groups["reserved_bytes"].change(change * nbytes, small=small)
        statistics.counters["num_device_alloc" if change > 0 else "num_device_free"] += 1
        if extent.arena is None:
            statistics.groups["segment"].change(change, small=small)
            most = self.settings.max_split_size
            if most is not None and nbytes >= most:
                statistics.single["oversize_segments"].change(change)

    def _trace_segment(self, action: str, extent: Extent) -> None:
        if self.trace is not None:
            self.trace(action, extent.address, extent.size, extent.pool.stream, extent)

    def empty_cache(self) -> None:
        """Give segments that are not used back to the device: ``torch.cuda.empty_cache``. Pools that the program keeps stay."""
        self._give_back_cached()

    def let_go(self, owner: int) -> None:
        """The program keeps its own pool no longer: what is free of it goes back now, the rest as any other memory."""
        self._kept_pools.discard(owner)
        if owner in self._owned:
            self._give_back_cached(owner)

    def unkeep(self, owner: int) -> None:
        """The last graph of a pool is gone: what is free of it goes back when the cache is emptied."""
        self._kept_pools.discard(owner)

    def _give_back_cached(self, owner: int = 0) -> None:
        """Of all pools that have no owner, or of one."""
        self.statistics.counters["num_sync_all_streams"] += 1
        self._take_back(lambda use: use.finish())
        owned = [pair for number, pair in self._owned.items() if number not in self._kept_pools]
        chosen = [self._owned[owner]] if owner else [(self._large, self._small), *owned]
        for pools in itertools.chain.from_iterable(chosen):
            for pool in pools.values():
                for _, _, extent in list(pool.free):
                    if extent.arena is not None:
                        self._expandable.unmap(extent)
                    elif extent.prev is None and extent.next is None:
                        self._release(extent)

    def _release(self, extent: Extent) -> None:
        """Give a segment back that is one free block."""
        self._trace_segment("segment_free", extent)
        extent.pool.remove(extent)
        del self._heads[extent.address]
        self.device.give_back(extent.size)
        self._count_segment(extent, extent.size, -1)

    def _give_back_oversize(self, pool: Pool, size: int) -> bool:
        """Give blocks back that are too large to be split: as few as make room for ``size``; whether they do."""
        most = self.settings.max_split_size
        if most is None:
            return False
        wanted = max(size, most)
        at = bisect_left(pool.free, (wanted,))
        if at < len(pool.free):
            extent = pool.free[at][2]
            if extent.arena is None and not extent.is_split:
                self._release(extent)
            return True
        released = 0
        for nbytes, _, extent in reversed(pool.free.copy()):
            if released >= wanted or nbytes < most:
                break
            if extent.arena is None and not extent.is_split:
                self._release(extent)
                released += nbytes
        return released >= wanted

    def _collect(self) -> None:
        """Give back large blocks that were looked past for longest, down to the threshold."""
        if self.limit is None:  # as in torch: a share of what the process was allowed
            return
        target = self.reserved - int(self.settings.garbage_collection_threshold * self.limit)
        if target <= 0:
            return
        pools = self._large.values()
        candidates = [item[2] for pool in pools for item in pool.free if not item[2].is_split and item[2].arena is None]
        reclaimed = 0
        while reclaimed < target and candidates:
            mean = sum(extent.kept_at for extent in candidates) / len(candidates)
            old = [extent for extent in candidates if extent.kept_at <= mean]
            candidates = [extent for extent in candidates if extent.kept_at > mean]
            for extent in old:
                reclaimed += extent.size
                self._release(extent)

    # -- looking -----------------------------------------------------------------------------------------------------

    def pieces(self) -> list[int]:
        """Bytes of the free blocks that are reserved, largest first."""
        return sorted((extent.size for run in self.segments() for extent in run if extent.idle), reverse=True)

    def segments(self) -> Iterator[list[Extent]]:
        """The blocks of each segment in the order of addresses, segments too; of an expandable one, each mapped range."""
        for address in sorted(self._heads):
            run: list[Extent] = []
            extent: Extent | None = self._heads[address]
            while extent is not None:
                if extent.mapped:
                    run.append(extent)
                elif run:
                    yield run
                    run = []
                extent = extent.next
            if run:
                yield run
