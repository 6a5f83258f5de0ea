"""Weak memory: what a read sees that nothing orders behind a write.

A run computes one thing after the other, and memory holds what was written last. On hardware a read that has not waited for a
write may see what was there before. So a storage keeps what its last writes have replaced, twice as many bytes as it has
itself, and a read is shown that where it may be so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from kernbench.order.findings import MemoryAccess, excuse_of
from kernbench.order.regions import ByteRegion, share_bytes

Pick = Callable[..., int]
"""Says what goes first (:meth:`kernbench.order.Choices.pick`)."""

Reader = tuple[ByteRegion, Callable[[MemoryAccess], bool]]
"""Bytes that are read, and whether that comes after a write: what the write has replaced, and all before it, is gone."""


class ReplacedBytes(NamedTuple):
    """What a write has replaced.

    Attributes:
        write: what has replaced it.
        region: where it was.
        values: the bytes, as their keeper has them; None: unwritten.
        nbytes: of these values.
    """

    write: MemoryAccess
    region: ByteRegion
    values: Any = None
    nbytes: int = 0


class EarlierBytes:
    """What the last writes to one storage have replaced.

    Args:
        nbytes: of the storage: twice as many are kept, so that more than what the last write has replaced is.
    """

    __slots__ = ("_kept", "_room", "_taken")

    def __init__(self, nbytes: int) -> None:
        self._room = 2 * nbytes
        self._taken = 0
        self._kept: deque[ReplacedBytes] = deque()

    def add(self, replaced: ReplacedBytes) -> None:
        """A write has replaced some."""
        kept = self._kept
        kept.append(replaced)
        self._taken += replaced.nbytes
        while len(kept) > _MOST or self._taken > self._room:
            self._taken -= kept.popleft().nbytes

    def under(self, readers: Sequence[Reader]) -> list[ReplacedBytes]:
        """What all of several readers may see instead of what is there, the last that was replaced first.

        They read at once, and are shown the same memory.
        """
        found = []
        fixed: list[ByteRegion] = []
        for each in reversed(self._kept):
            sharing = [(region, follows) for region, follows in readers if share_bytes(region, each.region)]
            behind = [region for region, follows in sharing if follows(each.write)]
            fixed += behind
            if sharing and not any(share_bytes(region, each.region) for region in fixed):
                found.append(each)
        return found


_MOST = 1 << 8
"""Writes to one storage that are remembered at most."""


class WeakMemory:
    """Says which of the reads that could see something older do.

    Args:
        pick: the schedule; None: there is none, and all of them see the oldest that they may.
        remark: receives, as a sentence, each line that has seen something older.

    Attributes:
        reading: what operations see, that read later than they are called: by operation.
    """

    def __init__(self, pick: Pick | None, remark: Callable[[str], object]) -> None:
        self.reading: dict[object, Any] = {}
        self._pick = pick
        self._remark = remark

    def seen(self, reader: MemoryAccess, may: Iterable[ReplacedBytes]) -> list[ReplacedBytes]:
        """What a reader sees of what it may see (:meth:`EarlierBytes.under`), the last that was replaced first."""
        older = [each for each in may if excuse_of((each.write, reader)) is None]
        if not older:
            return []
        latest = _issued(older[0].write)
        last = [each for each in older if _issued(each.write) is latest]
        options = ["what was written last", "what was there before"]
        if len(last) < len(older):
            options.append(f"what was there before {older[0].write}")
        taken = 1
        if self._pick is not None:
            taken = self._pick(f"v{reader.strand.rank}", options, lambda: f"{reader}, behind {older[0].write}")
        if not taken:
            return []
        told = last if taken == 2 else older
        write = told[-1].write
        self._remark(f"Memory was weak: {reader}, on {reader.strand}, saw what was there before {write}.")
        return told


def _issued(write: MemoryAccess) -> object:
    """What all programs of a launch have written is seen, or not, together."""
    return write if write.strand.launch is None else write.strand.launch
