"""Who has written the words by which launches signal to each other, and who has heard whom.

The values of a waiting launch say nothing about time: it may find its signal there because the rank that sends it happened to
be computed first. So memory that is shared between ranks remembers, word by word, the party that wrote it last; a party that
reads such a word has heard that one. When launches end in virtual time follows from that (ADR 0080), not from the order in
which they were computed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

WORD = 4
"""Bytes of a signal word."""

FEW_BYTES = 64
"""A load or store of at most this many bytes may be one of signals; a longer one moves data."""


class Party:
    """One launch, or several that run as one batch, as the readers of their signals see them.

    Attributes:
        operations: what it is in virtual time.
        heard: the other parties whose words it has read, in that order.
        met: whether its own launches have read each other's words.
        finished: whether its values are final.
    """

    __slots__ = ("finished", "heard", "met", "operations")

    def __init__(self, operations: Iterable[Any] = ()) -> None:
        self.operations = tuple(operations)
        self.heard: dict[Party, None] = {}
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
    """The words of one allocation."""

    __slots__ = ("_writer",)

    def __init__(self) -> None:
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
                party.heard[writer] = None

    def write(self, party: Party, offsets: Iterable[int]) -> None:
        """``party`` has changed the words at these byte offsets."""
        for offset in offsets:
            self._writer[offset // WORD] = party
