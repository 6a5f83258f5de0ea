"""Shadows: who touched which bytes of a storage last.

Ranges of bytes are kept in order, each with its last write and, of each strand, the last read since then. An access splits the
ranges that it touches in part; a write makes one range of all that it covers. Accesses that leave gaps are few, and kept beside
them as they are.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kernbench.order.findings import MemoryAccess
from kernbench.order.regions import ByteRegion, covers, share_bytes
from kernbench.order.signal_words import SignalWords
from kernbench.order.strands import Strand
from kernbench.order.undefined import Undefined
from kernbench.order.weak import EarlierBytes, ReplacedBytes

Found = Callable[["Shadow", ByteRegion, MemoryAccess, bool, MemoryAccess, bool], None]
"""Receives two accesses that nothing orders, atomic ones too: the bytes, the earlier one, whether it writes, the later one."""

_MANY = 32
"""Ranges in one access from which on it is worth looking for those that need not be kept apart."""


class Cell:
    """A region, its last write, and the reads since then, one of each strand."""

    __slots__ = ("reads", "region", "write")

    def __init__(
        self, region: ByteRegion, write: MemoryAccess | None = None, reads: dict[Strand, MemoryAccess] | None = None
    ) -> None:
        self.region = region
        self.write = write
        self.reads = reads

    def part(self, lo: int, hi: int) -> Cell:
        """The same, of some of its bytes."""
        return Cell(ByteRegion(lo, hi), self.write, None if self.reads is None else dict(self.reads))

    @property
    def accesses(self) -> Iterator[MemoryAccess]:
        """All that it remembers."""
        if self.write is not None:
            yield self.write
        if self.reads is not None:
            yield from self.reads.values()


class Shadow:
    """What was done to one storage.

    Args:
        found: receives races.
        nbytes: of the storage.
        shared: whether other ranks touch it: else theirs are other memory, which stands at the same place here.

    Attributes:
        made: what touched it first.
        tensor: dtype and shape that it had then.
        words: through which programs signal.
        undefined: unwritten bytes; None: there are none, or not known.
        earlier: what writes have replaced, where memory is weak and has been written.
    """

    __slots__ = (
        "_cells", "_found", "_starts", "_strided", "earlier", "made", "nbytes", "shared", "tensor", "undefined", "words",
    )  # fmt: skip

    def __init__(self, found: Found, nbytes: int, *, shared: bool = False) -> None:
        self._found = found
        self.nbytes = nbytes
        self.shared = shared
        self.made: MemoryAccess | None = None
        self.words = SignalWords()
        self.undefined: Undefined | None = None
        self.tensor: tuple[Any, Sequence[int]] | None = None
        self.earlier: EarlierBytes | None = None
        self._starts: list[int] = []
        self._cells: list[Cell] = []
        self._strided: list[Cell] = []

    @property
    def cells(self) -> Sequence[Cell]:
        """All that is remembered."""
        return [*self._cells, *self._strided]

    def remember(self, cell: Cell) -> None:
        """Take over what was done to these bytes before they were this storage's."""
        self._strided.append(cell)

    def read(self, access: MemoryAccess, region: ByteRegion) -> None:
        """These bytes are read."""
        cells = self._cells
        if len(cells) == 1 and not self._strided and cells[0].region == region:
            self._read(cells[0], access)
            return
        for cell in self._strided:
            if cell.write is not None and share_bytes(cell.region, region):
                self._meets(cell, cell.write, True, access, False)
        if region.strides:
            for cell in self._touched(region):
                if cell.write is not None:
                    self._meets(cell, cell.write, True, access, False)
            self._keep_strided(region).reads = {access.strand: access}
            return
        first = bisect_left(self._starts, region.lo)
        if first < len(cells) and cells[first].region == region:
            self._read(cells[first], access)
            return
        touched = self._split(region)
        for cell in touched:
            self._read(cell, access)
        if len(touched) > _MANY:
            self._join(touched, access)

    def write(self, access: MemoryAccess, region: ByteRegion) -> None:
        """These bytes are written."""
        if self.undefined is not None:
            self.define(region)
        cells = self._cells
        if not self._strided and len(cells) < 2:
            if not cells:
                if not region.strides:
                    cells.append(Cell(region, access))
                    self._starts.append(region.lo)
                    return
            elif cells[0].region == region:
                cell = cells[0]
                self._written(cell, access)
                cell.write, cell.reads = access, None
                return
        kept = []
        for cell in self._strided:
            if share_bytes(cell.region, region):
                self._written(cell, access)
            if not covers(region, cell.region):
                kept.append(cell)
        self._strided = kept
        if region.strides:
            for cell in self._touched(region):
                self._written(cell, access)
            self._keep_strided(region).write = access
            return
        first = last = bisect_left(self._starts, region.lo)
        if not (first < len(cells) and cells[first].region == region):
            touched = self._split(region)
            first = bisect_left(self._starts, region.lo)
            last = first + len(touched)
        else:
            last = first + 1
        for cell in cells[first:last]:
            self._written(cell, access)
        cells[first:last] = [Cell(region, access)]
        self._starts[first:last] = [region.lo]

    def poll(self, access: MemoryAccess, region: ByteRegion) -> None:
        """A host looks whether these bytes have changed."""
        access.polls = True
        for cell in self._sharing(region):
            if cell.write is not None:
                self._meets(cell, cell.write, True, access, False)
        self._strided.append(Cell(region, None, {access.strand: access}))

    def replaced(self, write: MemoryAccess, region: ByteRegion, values: object = None, nbytes: int = 0) -> None:
        """A write has replaced these bytes (:class:`~kernbench.order.weak.ReplacedBytes`)."""
        if self.earlier is None:
            self.earlier = EarlierBytes(self.nbytes)
        self.earlier.add(ReplacedBytes(write, region, values, nbytes))

    def older(self, readers: Sequence[tuple[ByteRegion, Sequence[Strand]]]) -> list[ReplacedBytes]:
        """What readers of these bytes may see instead of what is there (:meth:`~kernbench.order.weak.EarlierBytes.under`).

        Each: the bytes, whose strand reads them, and strands that it comes after besides.
        """
        if self.earlier is None:
            return []
        return self.earlier.under([(region, self._follower(*strands)) for region, strands in readers])

    def _follower(self, strand: Strand, *behind: Strand) -> Callable[[MemoryAccess], bool]:
        def follows(write: MemoryAccess) -> bool:
            other = write.strand
            return any(each.knows(other, write.n) for each in (strand, *behind)) or self._apart(other, strand)

        return follows

    def writer(self, region: ByteRegion) -> MemoryAccess | None:
        """The last writer of exactly these bytes; None: unwritten, or they are not kept together."""
        return next((cell.write for cell in self._sharing(region) if cell.region == region), None)

    def history(self, offset: int) -> str:
        """The last writer of the byte at an offset, and whose signal that has wiped, for people; empty: not known."""
        cells = self._sharing(ByteRegion(offset, offset + 1))
        last = next((cell.write for cell in cells if cell.write is not None), None)
        if last is None:
            return ""
        signal = self.words.changed(offset)
        wiped = "" if signal is None or last.atomic else f", over what {signal.strand} has signalled: {signal}"
        return f"{last.strand} has written it last: {last}{wiped}"

    @property
    def unwritten(self) -> bool:
        """Whether some of its bytes are as they were allocated."""
        return self.undefined is not None and self.undefined.through is None

    def define(self, region: ByteRegion) -> None:
        """These bytes have a value from now on, regardless of the writer."""
        if self.undefined is not None and not self.undefined.define(region):
            self.undefined = None

    def _read(self, cell: Cell, access: MemoryAccess) -> None:
        write = cell.write
        if write is not None and write.strand is not access.strand:
            self._meets(cell, write, True, access, False)
        reads = cell.reads
        if reads is None:
            cell.reads = {access.strand: access}
            return
        reads[access.strand] = access
        count = len(reads)
        if count >= _MANY and not count & count - 1:  # who comes after this one comes after those that it knows, too
            knows = access.strand.knows
            cell.reads = {strand: each for strand, each in reads.items() if each is access or not knows(strand, each.n)}

    def _written(self, cell: Cell, access: MemoryAccess) -> None:
        strand = access.strand
        write = cell.write
        if write is not None and write.strand is not strand:
            self._meets(cell, write, True, access, True)
        if cell.reads is not None:
            for read in cell.reads.values():
                if read.strand is not strand:
                    self._meets(cell, read, False, access, True)

    def _meets(self, cell: Cell, old: MemoryAccess, writes: bool, access: MemoryAccess, new_writes: bool) -> None:
        """Two accesses to the same bytes, by two strands."""
        strand, other = access.strand, old.strand
        if not (strand.knows(other, old.n) or self._apart(other, strand)):
            self._found(self, cell.region, old, writes, access, new_writes)

    def _apart(self, other: Strand, strand: Strand) -> bool:
        """Whether two strands are of worlds that did not run together, or of ranks that do not share this memory."""
        return other.world is not strand.world or (other.rank != strand.rank and not self.shared)

    def _touched(self, region: ByteRegion) -> list[Cell]:
        """Ranges that share a byte with a region; nothing is split."""
        first = max(bisect_right(self._starts, region.lo) - 1, 0)
        last = bisect_left(self._starts, region.hi)
        return [cell for cell in self._cells[first:last] if share_bytes(cell.region, region)]

    def _sharing(self, region: ByteRegion) -> Iterator[Cell]:
        """All that is remembered of bytes of a region; nothing is split."""
        yield from self._touched(region)
        yield from (each for each in self._strided if share_bytes(each.region, region))

    def _keep_strided(self, region: ByteRegion) -> Cell:
        for cell in self._strided:
            if cell.region == region:
                return cell
        if len(self._strided) >= _MANY:
            del self._strided[0]  # the oldest one: what it says is forgotten, which hides a race and invents none
        cell = Cell(region)
        self._strided.append(cell)
        return cell

    def _split(self, region: ByteRegion) -> list[Cell]:
        """The ranges that a dense region consists of: those that are there, cut at its ends, and new ones in between."""
        starts, cells = self._starts, self._cells
        lo, hi = region.lo, region.hi
        first = bisect_right(starts, lo) - 1
        if first < 0 or cells[first].region.hi <= lo:
            first += 1
        last = bisect_left(starts, hi)
        touched: list[Cell] = []
        kept: list[Cell] = []
        at = lo
        for cell in cells[first:last]:
            begin, end = cell.region.lo, cell.region.hi
            if begin < lo:
                kept.append(cell.part(begin, lo))
                begin = lo
            elif begin > at:
                touched.append(Cell(ByteRegion(at, begin)))
            inside = min(end, hi)
            if begin == cell.region.lo and inside == end:
                touched.append(cell)
            else:
                touched.append(cell.part(begin, inside))
            at = inside
            if end > hi:
                rest = cell.part(hi, end)
                cells[first:last] = [*kept, *touched, rest]
                starts[first:last] = [each.region.lo for each in cells[first : first + len(kept) + len(touched) + 1]]
                return touched
        if at < hi:
            touched.append(Cell(ByteRegion(at, hi)))
        cells[first:last] = [*kept, *touched]
        starts[first:last] = [each.region.lo for each in (*kept, *touched)]
        return touched

    def _join(self, touched: list[Cell], access: MemoryAccess) -> None:
        """Make one of neighbours that say the same: a cache that grows is written piece by piece and read as a whole."""
        first = bisect_left(self._starts, touched[0].region.lo)
        joined: list[Cell] = []
        for cell in touched:
            write = cell.write
            if write is not None and known_to_all(write, access.strand):
                cell.write = write = None
            last = joined[-1] if joined else None
            alone = cell.reads is not None and len(cell.reads) == 1
            if last is not None and alone and last.write is write and last.reads is not None and len(last.reads) == 1:
                last.region = ByteRegion(last.region.lo, cell.region.hi)
            else:
                joined.append(cell)
        self._cells[first : first + len(touched)] = joined
        self._starts[first : first + len(touched)] = [cell.region.lo for cell in joined]


def known_to_all(access: MemoryAccess, strand: Strand) -> bool:
    """Whether whatever this rank does from now on happens after an access of its own."""
    other = access.strand
    return other.rank == strand.rank and all(each.knows(other, access.n) for each in strand.siblings)
