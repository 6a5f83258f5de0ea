"""Streams of a graph that is being captured: which belong to it, and what has joined the stream on which it began.

A stream belongs to a capture once it has waited for another one that does. What it has then, the first stream must have
waited for when the capture ends. Events of work that is not captured are none of the graph's. Streams of collectives are not
followed: C++ code waits for those by their futures.
"""

from __future__ import annotations

from collections.abc import Mapping

Known = Mapping[str, int]
"""How much of each stream's captured work comes before a moment."""


class CapturedStreams:
    """The streams of one capture, which begins on ``first``."""

    def __init__(self, first: str) -> None:
        self._first = first
        self._known: dict[str, dict[str, int]] = {first: {}}
        self._of_libraries: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def work(self, name: str) -> bool:
        """Something is put on a stream. False if the stream does not belong to the capture."""
        if name in self._of_libraries:
            return True
        known = self._known.get(name)
        if known is None:
            return False
        known[name] = known.get(name, 0) + 1
        return True

    def admit(self, name: str) -> None:
        """A library for collectives has put something on a stream of its own."""
        self._of_libraries.add(name)

    def moment(self, name: str) -> Known | None:
        """What has been put on a stream and on those that it has waited for; None: it does not belong to the capture."""
        known = self._known.get(name)
        return None if known is None else dict(known)

    def wait(self, name: str, moment: Known) -> None:
        """What comes next on a stream comes after a moment of the capture."""
        known = self._known.setdefault(name, {})
        for other, count in moment.items():
            known[other] = max(count, known.get(other, 0))

    def unjoined(self) -> list[str]:
        """Streams with work that the first one has not waited for."""
        first = self._known[self._first]
        return [name for name, known in self._known.items() if known.get(name, 0) > first.get(name, 0)]
