"""Who has written the words by which launches signal to each other, and which launch has read whose.

The values of a waiting launch say nothing about time: it may find its signal there because the rank that sends it happened to
be computed first. So memory that is shared between ranks remembers, word by word, the party that wrote it last; a party that
reads such a word has heard that one. When launches end in virtual time follows from that (ADR 0080), not from the order in
which they were computed.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .frontend.program import OpInfo

WORD = 4
"""Bytes of a signal word."""

MOST_BYTES = 1 << 14
"""A range that all programs together load or store with one instruction may be signals up to this length."""

_FEW = 16


def may_signal(info: OpInfo) -> bool:
    """Whether a load or store is short enough, per program, to be of signals: a longer one moves data. (Atomics are looked at
    one by one.)"""
    return prod(info.operand_types[0].shape) <= _FEW and not info.row.atomic


class Party:
    """One launch, or several that run as one batch, as the readers of their signals see them.

    Attributes:
        operations: what it is in virtual time.
        heard: the other parties whose words it has read, in that order, and the SIPs in whose memory these words were.
        met: whether its own launches have read each other's words.
        finished: whether its values are final.
    """

    __slots__ = ("finished", "heard", "met", "operations")

    def __init__(self, operations: Iterable[Any] = ()) -> None:
        self.operations = tuple(operations)
        self.heard: dict[Party, set[int]] = {}
        self.met = False
        self.finished = False

    def has_heard(self, other: Party) -> bool:
        """Whether something that ``other`` wrote has reached it, directly or through others."""
        seen = {self}
        todo = [self]
        while todo:
            for party in todo.pop().heard:
                if party is other:
                    return True
                if party not in seen:
                    seen.add(party)
                    todo.append(party)
        return False


class Words:
    """The words of one allocation, which is in the memory of SIP ``home``."""

    __slots__ = ("_writer", "home")

    def __init__(self, home: int) -> None:
        self.home = home
        self._writer: dict[int, Party] = {}

    def read(self, party: Party, offsets: Iterable[int]) -> None:
        """``party`` has looked at the words at these byte offsets."""
        writers = self._writer
        for offset in offsets:
            writer = writers.get(offset // WORD)
            if writer is None:
                continue
            if writer is party:
                party.met = True
            else:
                party.heard.setdefault(writer, set()).add(self.home)

    def writers(self, word: int) -> frozenset[int]:
        """The ranks whose operations may have changed a word last; none if it is as it was made."""
        party = self._writer.get(word)
        return frozenset() if party is None else frozenset(operation.rank for operation in party.operations)

    def write(self, party: Party, offsets: Iterable[int]) -> None:
        """``party`` has changed the words at these byte offsets."""
        for offset in offsets:
            self._writer[offset // WORD] = party
