"""Blocks of a device's memory: consecutive addresses, their neighbours, and the pools that they are kept in while free."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Any


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


def room_of(extent: Extent) -> int:
    """Bytes of a free block, and of what it can grow by."""
    after = extent.next
    return extent.size + (after.size if after is not None and not after.mapped else 0)


def link(before: Extent | None, extent: Extent, after: Extent | None) -> None:
    """Put a block between two neighbours."""
    extent.prev, extent.next = before, after
    if before is not None:
        before.next = extent
    if after is not None:
        after.prev = extent
