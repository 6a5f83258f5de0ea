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
from typing import Any, Protocol

from kernbench.memory.settings import LARGE_SEGMENT, MIB, AllocatorSettings
from kernbench.memory.statistics import SMALL_LIMIT, Statistics

SMALL_SEGMENT = 2 * MIB
MIN_LARGE_SEGMENT = 10 * MIB
"""Requests below share a segment of 20 MiB; others have one of their own, rounded up to 2 MiB."""
ROUND_LARGE = 2 * MIB
_FOLD_AT = 1 << 17
"""Numbers that the statistics note before they are summed up."""

SPLIT_LESS, SPLIT_SAME, SPLIT_MORE = (Statistics.encode_split(0, count, small=False) for count in (-1, 0, 1))

Trace = Callable[[str, int, int, str, "Extent | None"], None]
"""Told of what happens: the action as torch names it, address, bytes, stream, and the block if it is one."""


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


class Pool:
    """Free blocks of one stream and one kind, sorted by size, then address.

    Attributes:
        owner: number of the program's own pool that they are of; 0: none.
        free: (bytes, address, block).
        unmapped: of expandable segments, (address, block).
    """

    __slots__ = ("free", "owner", "small", "stream", "unmapped")

    def __init__(self, stream: str, *, small: bool, owner: int = 0) -> None:
        self.stream = stream
        self.small = small
        self.owner = owner
        self.free: list[tuple[int, int, Extent]] = []
        self.unmapped: list[tuple[int, Extent]] = []

    def insert(self, extent: Extent) -> None:
        """Keep a free block."""
        insort(self.free, (extent.size, extent.address, extent))

    def remove(self, extent: Extent) -> None:
        """Take a block out."""
        del self.free[bisect_left(self.free, (extent.size, extent.address))]


class Extent:
    """Consecutive addresses of a segment: what torch calls a block.

    Attributes:
        pool: it belongs to.
        address: of its first byte.
        size: bytes.
        idle: whether it is free, and no stream uses it.
        prev, next: neighbours in the segment.
        requested: bytes that were asked for when it was given out last.
        awaited: whether it was taken back, and streams still use it.
        mapped: whether there is memory behind it, in an expandable segment.
        arena: the expandable segment, None if it is none.
        streams: others that it was used on, as far as its holder has said; None: none.
        kept_at: how often a large block had been looked for when it became free.
        context: what was noted of its owner.
        segment_context: the same of the segment's creator; of the first block.
    """

    prev: Extent | None = None
    next: Extent | None = None
    idle = False
    awaited = False
    requested = 0
    mapped = True
    arena: Arena | None = None
    streams: set[str] | None = None
    kept_at = 0
    context: Any = None
    segment_context: object = None

    def __init__(self, pool: Pool, address: int, size: int) -> None:
        self.pool = pool
        self.address = address
        self.size = size

    @property
    def is_split(self) -> bool:
        """Whether it is a part of its segment."""
        return self.prev is not None or self.next is not None

    @property
    def free_to_use(self) -> bool:
        """Whether it is free, mapped or not."""
        return self.idle or not self.mapped


class Arena:
    """An expandable segment: many addresses from ``base`` on, memory behind some of them, in pages of ``page`` bytes."""

    def __init__(self, base: int, page: int) -> None:
        self.base = base
        self.page = page


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
                if _room(free[at + 1][2]) >= _room(free[at][2]):
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
            return self._expand(pool, size)
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
                        self._unmap(extent)
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

    # -- expandable segments -----------------------------------------------------------------------------------------

    def _expand(self, pool: Pool, size: int) -> Extent | None:
        """A block at the least address where ``size`` bytes are free or can be mapped; None if there is no memory."""
        block = self._find_expandable(pool, size)
        if not block.mapped and not self._map(block, min(block.size, size)):
            return None
        while block.size < size:
            following = block.next
            assert following is not None
            if not self._map(following, min(size - block.size, following.size)):
                return None
            block = following
        pool.remove(block)
        return block

    def _find_expandable(self, pool: Pool, size: int) -> Extent:
        for _, extent in pool.unmapped:
            first = extent
            if extent.prev is not None and extent.prev.free_to_use:
                first = extent.prev
            room, at = 0, first
            while room < size and at is not None and at.free_to_use:
                room += at.size
                at = at.next  # type: ignore[assignment]
            if room >= size:
                return first
        page = SMALL_SEGMENT if pool.small else LARGE_SEGMENT
        pages = -(-(self.device.capacity + self.device.capacity // 8) // page)  # room to move pages to the end
        extent = Extent(pool, self.device.addresses(pages * page), pages * page)
        extent.mapped = False
        extent.arena = Arena(extent.address, page)
        self._heads[extent.address] = extent
        insort(pool.unmapped, (extent.address, extent))
        return extent

    def _map(self, extent: Extent, nbytes: int) -> bool:
        """Put memory behind the first ``nbytes``, in whole pages, and join it with what is free beside it."""
        arena, pool = extent.arena, extent.pool
        assert arena is not None
        nbytes = -(-nbytes // arena.page) * arena.page
        if not self.device.take(nbytes):
            return False
        pool.unmapped.remove((extent.address, extent))
        if nbytes < extent.size:
            rest = Extent(pool, extent.address + nbytes, extent.size - nbytes)
            rest.mapped, rest.arena = False, arena
            _link(extent, rest, extent.next)
            insort(pool.unmapped, (rest.address, rest))
            extent.size = nbytes
        extent.mapped = True
        self._trace_segment("segment_map", extent)
        self._join(extent)
        extent.idle = True
        pool.insert(extent)
        self._count_segment(extent, nbytes, 1)
        return True

    def _unmap(self, extent: Extent) -> None:
        """Take the memory away behind the whole pages of a free block."""
        arena, pool = extent.arena, extent.pool
        assert arena is not None
        offset = extent.address - arena.base
        begin = arena.base - (-offset // arena.page) * arena.page
        end = arena.base + (offset + extent.size) // arena.page * arena.page
        if begin >= end:
            return
        pool.remove(extent)
        if begin > extent.address:
            head = Extent(pool, extent.address, begin - extent.address)
            head.arena, head.idle = arena, True
            _link(extent.prev, head, extent)
            if head.prev is None:
                self._heads[head.address] = head
            pool.insert(head)
        if end < extent.address + extent.size:
            tail = Extent(pool, end, extent.address + extent.size - end)
            tail.arena, tail.idle = arena, True
            _link(extent, tail, extent.next)
            pool.insert(tail)
        extent.address, extent.size = begin, end - begin
        self._trace_segment("segment_unmap", extent)
        extent.mapped = extent.idle = False
        self._join(extent)
        self.device.give_back(end - begin)
        self._count_segment(extent, end - begin, -1)
        if extent.prev is None and extent.next is None:
            del self._heads[extent.address]
        else:
            insort(pool.unmapped, (extent.address, extent))

    def _join(self, extent: Extent) -> None:
        """Join a block that is in no list with neighbours that are mapped, or not, as it is."""
        pool = extent.pool
        for other in (extent.prev, extent.next):
            if other is None or not other.free_to_use or other.mapped is not extent.mapped:
                continue
            if other.mapped:
                pool.remove(other)
            else:
                pool.unmapped.remove((other.address, other))
            if other is extent.prev:
                extent.address = other.address
                extent.prev = other.prev
                extent.segment_context = other.segment_context
                if other.prev is not None:
                    other.prev.next = extent
                else:
                    self._heads[extent.address] = extent
            else:
                extent.next = other.next
                if other.next is not None:
                    other.next.prev = extent
            extent.size += other.size

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


def _room(extent: Extent) -> int:
    """Bytes of a free block, and of what it can grow by."""
    after = extent.next
    return extent.size + (after.size if after is not None and not after.mapped else 0)


def _link(before: Extent | None, extent: Extent, after: Extent | None) -> None:
    """Put a block between two neighbours."""
    extent.prev, extent.next = before, after
    if before is not None:
        before.next = extent
    if after is not None:
        after.prev = extent
