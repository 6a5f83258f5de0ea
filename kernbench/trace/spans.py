"""What a timeline consists of: what took time on a track, and chunks on their way; and on which lanes they are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

COMPUTE_KINDS = frozenset({"kernel", "gemm", "attention", "math"})
MESSAGES = frozenset({"send", "recv"})
"""Names of the two sides of a message."""

HOST = "host"


@dataclass(frozen=True, slots=True)
class Span:
    """Something that took time on one track of one rank.

    Attributes:
        rank: the rank, None for main.
        sip: SIP on which it ran.
        track: the stream's name, or ``"host"``.
        name: what it is called.
        kind: the operation's kind; ``"launch"`` and ``"wait"`` on the host track.
        begin, end: virtual seconds.
        nbytes: payload, bytes.
        detail: whatever else is worth showing.
        interval: seconds that it takes at least and at most, by the models' own account (80 %); None where it is not modelled.
    """

    rank: int | None
    sip: int
    track: str
    name: str
    kind: str
    begin: float
    end: float
    nbytes: int = 0
    detail: dict[str, Any] = field(default_factory=dict)
    interval: tuple[float, float] | None = None

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class ChunkStep:
    """One chunk step of a collective: a chunk goes from a rank to another.

    Attributes:
        name: the collective.
        src, dst: ranks.
        begin: when its first byte leaves, virtual seconds.
        sent: when its last byte has left.
        arrived: when it is in place at the destination.
        nbytes: payload, bytes.
        chunk: which part of the buffer.
        reduces: whether the destination combines it with what it has.
        links: links that it crosses, by index.
    """

    name: str
    src: int
    dst: int
    begin: float
    sent: float
    arrived: float
    nbytes: int
    chunk: int
    reduces: bool
    links: tuple[int, ...]


def lane_of(span: Span) -> str:
    """The lanes that a picture draws a span on: messages by direction, whatever stream carries them, others by the first word
    of their stream's name (``comm``)."""
    return span.name if span.kind == "collective" and span.name in MESSAGES else span.track.partition(" ")[0]


def pack(intervals: Sequence[tuple[float, float]]) -> list[int]:
    """A lane for each interval, so that those of one lane do not overlap; as few lanes as greed finds.

    Intervals are ``(begin, end)``, sorted by begin; each takes the lowest lane that is free.
    """
    free: list[float] = []
    lanes = []
    for begin, end in intervals:
        lane = next((number for number, until in enumerate(free) if until <= begin), len(free))
        if lane == len(free):
            free.append(end)
        else:
            free[lane] = end
        lanes.append(lane)
    return lanes
