"""Words through which programs signal: what a release leaves there for an acquire.

An acquire learns what the releases knew whose value it reads. Every update (read-modify-write) goes on with what was there; a
store begins anew. A release and an acquire of one GPU meet if both have the scope of the GPU or more, those of two GPUs if both
have that of the system. A relaxed store is a release of what the program knew at its last fence, a relaxed load an acquire at
its next one (PTX ISA, memory consistency model).
"""

from __future__ import annotations

from collections.abc import Mapping

from kernbench.order.findings import MemoryAccess
from kernbench.order.strands import Strand

SCOPES = {"cta": 0, "cluster": 0, "gpu": 1, "sys": 2}
"""Scopes, by how far they reach."""

Known = dict[Strand, int]


class SignalWords:
    """The words of one allocation that programs have signalled through.

    A word has what was released to it, by the rank and the scope of the releases.
    """

    __slots__ = ("_changed", "_left")

    def __init__(self) -> None:
        self._changed: dict[int, MemoryAccess] = {}
        self._left: dict[int, dict[tuple[int, int], Known]] = {}

    def access(
        self, access: MemoryAccess, offset: int, *, sem: str, scope: str, reads: bool, writes: bool, thread: int = 0
    ) -> None:
        """An access reads, writes or updates the word at a byte offset.

        Args:
            thread: which of the program's does it; fences are each thread's own.
            sem: ``"relaxed"``, ``"acquire"``, ``"release"`` or ``"acq_rel"``.
            scope: one of :data:`SCOPES`.
        """
        strand, reach = access.strand, SCOPES[scope]
        left = self._left.get(offset)
        if reads and left:
            for (rank, far), known in left.items():
                if min(reach, far) >= (1 if rank == strand.rank else 2):
                    if sem in ("acquire", "acq_rel"):
                        strand.acquire(known)
                    else:
                        strand.heard(known, thread)
        if not writes:
            return
        self._changed[offset] = access
        if left is None or not reads:
            left = self._left[offset] = {}
        if sem in ("release", "acq_rel"):
            known = strand.everything()
            strand.n += 1
        else:
            fenced = strand.relaxed(thread)
            if fenced is None:
                return
            known = dict(fenced)
        key = strand.rank, reach
        left[key] = joined(left[key], known) if key in left else known

    def changed(self, offset: int) -> MemoryAccess | None:
        """The last one that has signalled through a word."""
        return self._changed.get(offset)

    def wipe(self, lo: int, hi: int) -> None:
        """Bytes ``lo`` to ``hi`` are overwritten by a store that signals nothing."""
        if self._left:
            for offset in [each for each in self._left if lo <= each < hi]:
                del self._left[offset]


def joined(one: Mapping[Strand, int], other: Mapping[Strand, int]) -> Known:
    """What two sides know together, less what follows from the rest."""
    known = dict(one)
    for strand, n in other.items():
        if known.get(strand, 0) < n:
            known[strand] = n
    return {
        strand: n for strand, n in known.items()
        if strand.launch is None or known.get(strand.launch.strand, 0) < strand.launch.n
    }  # fmt: skip
