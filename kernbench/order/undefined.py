"""Undefined memory: bytes that are unwritten since they were allocated, and what was made of nothing else.

What is kept errs on the side of silence. A write defines all bytes between its first and its last one, and a result is
undefined only if all bytes of one of the tensors that it was made of are: a buffer whose padding is unwritten is copied,
reduced and sent without a word.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from kernbench.order.findings import MemoryAccess, Place
from kernbench.order.regions import ByteRegion


class Undefined:
    """The bytes of one storage that are undefined.

    Args:
        origin: what allocated the unwritten memory.
        region: the bytes.
        through: what made undefined bytes of others; None: they are those that were allocated.
        zeros: whether they are zeros all the same, as words that are counted up must be.
    """

    __slots__ = ("_ends", "_starts", "origin", "through", "zeros")

    def __init__(
        self, origin: MemoryAccess, region: ByteRegion, through: MemoryAccess | None = None, *, zeros: bool = False
    ) -> None:
        self.origin = origin
        self.through = through
        self.zeros = zeros
        self._starts = [region.lo]
        self._ends = [region.hi]

    def define(self, region: ByteRegion) -> bool:
        """Bytes are written; false if no unwritten ones are left."""
        lo, hi = region.lo, region.hi
        starts, ends = self._starts, self._ends
        first, last = bisect_right(ends, lo), bisect_left(starts, hi)
        if first < last:
            kept = [(starts[first], lo), (hi, ends[last - 1])]
            left = [(begin, end) for begin, end in kept if begin < end]
            starts[first:last] = [begin for begin, _ in left]
            ends[first:last] = [end for _, end in left]
        return bool(starts)

    def whole(self, region: ByteRegion) -> bool:
        """Whether every byte between the first and the last one of a region is undefined."""
        at = bisect_right(self._starts, region.lo) - 1
        return at >= 0 and region.hi <= self._ends[at]

    def any(self, region: ByteRegion) -> bool:
        """Whether some byte of a dense region is, or all of one that leaves gaps."""
        if not region.dense:
            return self.whole(region)
        at = bisect_right(self._ends, region.lo)
        return at < len(self._starts) and self._starts[at] < region.hi


class UndefinedRead:
    """A read of unwritten bytes.

    Attributes:
        access: the reader; what it does: ``"reads"`` or ``"adds to"``.
        what: the memory, and which part of it.
        origin, through: see :class:`Undefined`.
        excuse: the reason that a comment beside the look gives; None: there is none.
    """

    kind = "read of unwritten memory"

    def __init__(
        self, access: MemoryAccess, does: str, what: str, origin: MemoryAccess, through: MemoryAccess | None,
        excuse: str | None,
    ) -> None:  # fmt: skip
        self.access = access
        self.does = does
        self.what = what
        self.origin = origin
        self.through = through
        self.excuse = excuse

    @property
    def where(self) -> Place:
        """The line that looks."""
        return self.access.where

    @property
    def remedy(self) -> str:
        """What would define it."""
        return f"write it before {self.access}, or allocate zeros (torch.zeros, zeros_like, new_zeros) at {self.origin.where}."

    def __str__(self) -> str:
        made = [] if self.through is None else [f"  made by:      {self.through}, of nothing else"]
        return "\n".join(
            [
                f"{self.kind}: {self.what}.",
                f"  looked at by: {self.access.strand}: {self.access.name} {self.does} it, at {self.access.where}",
                *made,
                f"  allocated by: {self.origin}",
                f"To define it: {self.remedy}",
            ]
        )

    @property
    def key(self) -> tuple[object, ...]:
        """The same for all looks of one line at what another one has allocated."""
        return self.kind, self.access.where, self.access.name, self.origin.where

    @property
    def record(self) -> dict[str, object]:
        """As JSON has it."""
        steps = [(self.origin, "allocates"), (self.through, "makes"), (self.access, self.does)]
        return {
            "kind": self.kind, "what": self.what, "remedy": self.remedy,
            "accesses": [each.as_record(does) for each, does in steps if each is not None],
        }  # fmt: skip
