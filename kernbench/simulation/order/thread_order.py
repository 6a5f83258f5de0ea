"""Threads of one program: what a kernel does to memory between two places where they meet.

A tile is spread over the threads of a program, and which thread has an element follows from its place in the tile. So a store
and a later load of the same bytes are one thread's own if they have them at the same place of tiles that lie alike; at another
place, another thread reads, and only a barrier between them says that it reads what was stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from kernbench.order import ByteRegion, MemoryAccess, Strand, region_of, share_bytes
from kernbench.triton_engine.access import Access, Piece
from kernbench.triton_engine.frontend.program import OpInfo

_MOST_KEPT = 32
"""Accesses between two meetings that are kept; of more, the oldest are forgotten, which hides a race and invents none."""

_MOST_COMPARED = 16
"""Programs of two accesses whose bytes are compared one by one."""


class MetTile(NamedTuple):
    """An access that touches what an earlier one has touched elsewhere in its tile.

    Attributes:
        first: the earlier instruction.
        first_writes: whether it writes.
        key: the number of the program.
        region: the bytes that the later one touches.
    """

    first: OpInfo
    first_writes: bool
    key: int
    region: ByteRegion


class _Tiles:
    """One access of a tile by many programs."""

    def __init__(self, access: Access, piece: Piece, keys: np.ndarray, writes: bool) -> None:
        self.piece, self.keys, self.writes, self.info, self.item = piece, keys, writes, access.info, access.item
        foot, lanes = piece.foot, len(piece.lanes)
        extents = zip(access.tile, foot.strides[lanes:], strict=True)
        self.strides = tuple([stride * self.item for extent, stride in extents if extent > 1])

    def same_elements(self, other: _Tiles) -> bool:
        """Whether every program touches the very same elements, at the same places."""
        mine, its = self.piece, other.piece
        return (
            mine.offset * self.item - mine.foot.shift == its.offset * other.item - its.foot.shift
            and self.strides == other.strides
            and mine.foot.strides[: len(mine.lanes)] == its.foot.strides[: len(its.lanes)]
            and mine.lanes == its.lanes
            and (self.keys is other.keys or np.array_equal(self.keys, other.keys))
        )

    def without(self, keys: np.ndarray) -> bool:
        """Forget what the programs ``keys`` did; whether anything is left."""
        left = ~np.isin(self.keys, keys)
        if not left.any():
            return False
        self.keys = np.where(left, self.keys, -1)
        return True

    def origins(self) -> Any:
        """Of each lane, the byte at which the first element of its tile lies."""
        foot, lanes = self.piece.foot, len(self.piece.lanes)
        out = np.full(self.keys.shape, self.piece.offset * self.item - foot.shift, dtype=np.int64)
        for axis, (stride, size) in enumerate(zip(foot.strides[:lanes], foot.sizes[:lanes], strict=True)):
            if size > 1:
                steps = np.arange(size, dtype=np.int64) * (stride * self.item)
                out = out + steps.reshape([-1 if at == axis else 1 for at in range(lanes)])
        return out.reshape(-1)

    def region(self, origin: int) -> ByteRegion | None:
        """What a program touches whose tile begins at this byte."""
        foot, lanes = self.piece.foot, len(self.piece.lanes)
        sizes, strides = foot.sizes[lanes:], foot.strides[lanes:]
        back = sum(s * (n - 1) for s, n in zip(strides, sizes, strict=True) if s < 0)
        at = (origin + foot.shift) // self.item + back
        return region_of(sizes, foot.steps[lanes:], at, self.item)

    def meets(self, old: _Tiles) -> MetTile | None:
        """A program that has touched the same bytes at another place of its tile."""
        if self.same_elements(old):
            return None
        mine, its = self.origins(), old.origins()
        keys, here, there = np.intersect1d(self.keys.reshape(-1), old.keys.reshape(-1), return_indices=True)
        mine, its = mine[here], its[there]
        apart = (mine != its) if self.strides == old.strides else np.ones(len(keys), dtype=bool)
        one, other = self.region(0), old.region(0)
        if one is None or other is None:
            return None
        close = (mine + one.lo < its + other.hi) & (its + other.lo < mine + one.hi) & apart & (keys >= 0)
        for at in np.nonzero(close)[0][:_MOST_COMPARED]:
            region, earlier = self.region(int(mine[at])), old.region(int(its[at]))
            if region is not None and earlier is not None and share_bytes(region, earlier):
                return MetTile(old.info, old.writes, int(keys[at]), region)
        return None


class ThreadOrder:
    """What the programs of one execution have done since their threads met."""

    def __init__(self) -> None:
        self._tiles: list[_Tiles] = []
        self._told: set[tuple[int, int]] = set()
        self._alone: dict[Strand, list[MemoryAccess]] = {}
        self._threads: dict[Strand, Strand] = {}

    def touched(self, access: Access, piece: Piece, keys: np.ndarray, *, writes: bool) -> Iterator[MetTile]:
        """Programs ``keys``, one for each lane of a piece, touch it; gives what they have touched elsewhere in a tile."""
        new = _Tiles(access, piece, keys, writes)
        for old in self._tiles:
            pair = old.info.index, access.info.index
            if (writes or old.writes) and old.piece.allocation.base == piece.allocation.base and pair not in self._told:
                found = new.meets(old)
                if found is not None:
                    self._told.add(pair)
                    yield found
        if len(self._tiles) >= _MOST_KEPT:
            del self._tiles[0]
        self._tiles.append(new)

    def spread(self, access: MemoryAccess) -> None:
        """All threads of a program have a share in an access."""
        kept = self._alone.setdefault(access.strand, [])
        if not kept or kept[-1] is not access:
            kept.append(access)

    def met(self, keys: np.ndarray, strands: dict[int, Strand | None]) -> None:
        """The threads of the programs ``keys`` have met, whose strands are in ``strands``."""
        self._tiles = [tiles for tiles in self._tiles if tiles.without(keys)]
        for key in np.unique(keys).tolist() if self._alone or self._threads else ():
            strand = strands.get(key)
            if strand is not None:
                self._alone.pop(strand, None)
                threads = self._threads.get(strand)
                if threads is not None:
                    strand.acquire({threads: threads.n})

    def releases(self, strand: Strand) -> None:
        """One thread of a program is about to release: what others have had a share in since they met is not in it."""
        alone = self._alone.pop(strand, None)
        if not alone:
            return
        threads = self._threads.get(strand)
        if threads is None:
            threads = self._threads[strand] = Strand(strand.name, strand.rank, strand.world, launch=strand.launch)
            threads.threads_of, threads.recent = strand, strand.recent
        for access in alone:
            access.strand, threads.n = threads, max(threads.n, access.n)
