"""Segments that grow: addresses for more than a device has, and memory mapped behind those that are in use.

As torch's ``expandable_segments:True`` has them.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable

from kernbench.memory.extents import Arena, Extent, Pool, link
from kernbench.memory.physical_memory import PhysicalMemory
from kernbench.memory.settings import LARGE_SEGMENT, SMALL_SEGMENT


class ExpandableSegments:
    """Those of one allocator.

    Args:
        device: whose memory is mapped; also an attribute.
        heads: the first block of each segment of the allocator, by its address.
        count: called with a block, bytes that were mapped with it, and 1; -1: unmapped.
        trace: called with torch's name of what has happened, and the block.
    """

    def __init__(
        self,
        device: PhysicalMemory,
        heads: dict[int, Extent],
        count: Callable[[Extent, int, int], None],
        trace: Callable[[str, Extent], None],
    ) -> None:
        self.device = device
        self._heads = heads
        self._count = count
        self._trace = trace

    def expand(self, pool: Pool, size: int) -> Extent | None:
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
            link(extent, rest, extent.next)
            insort(pool.unmapped, (rest.address, rest))
            extent.size = nbytes
        extent.mapped = True
        self._trace("segment_map", extent)
        self._join(extent)
        extent.idle = True
        pool.insert(extent)
        self._count(extent, nbytes, 1)
        return True

    def unmap(self, extent: Extent) -> None:
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
            link(extent.prev, head, extent)
            if head.prev is None:
                self._heads[head.address] = head
            pool.insert(head)
        if end < extent.address + extent.size:
            tail = Extent(pool, end, extent.address + extent.size - end)
            tail.arena, tail.idle = arena, True
            link(extent, tail, extent.next)
            pool.insert(tail)
        extent.address, extent.size = begin, end - begin
        self._trace("segment_unmap", extent)
        extent.mapped = extent.idle = False
        self._join(extent)
        self.device.give_back(end - begin)
        self._count(extent, end - begin, -1)
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
