"""What a device's clock loses to its board's power limit (ADR 0126, ADR 0245).

A board's power is held to its limit as a mean over some time. So a product that comes alone runs at the boost clock, and is
what tables of kernels measure; in a training step, where one product follows another, all run at the clock that the limit
leaves. What a device has drawn in the last :data:`MEMORY` seconds says which of these it is.
"""

from __future__ import annotations

from collections import deque
from math import exp
from typing import Protocol

from kernbench.sim_engine.clock_limits import NOTHING, ClockLimit, Draw
from kernbench.sim_engine.operation import Operation

MEMORY = 0.1
"""Seconds over which the power is averaged. UNVERIFIED: a tenth of a second is what monitors of boards' power resolve."""


_SHORT = 0.01 * MEMORY  # of a kernel, during which no mean changes

Place = tuple[int, str]
"""A SIP, and a stream of it."""


class Drawing(Protocol):
    """What an operation is, as far as power is concerned: see :class:`Operation`."""

    @property
    def kind(self) -> str:
        """See above."""

    @property
    def nbytes(self) -> int:
        """See above."""

    @property
    def draw(self) -> float:
        """See above."""


class Clocks:
    """What each SIP has drawn, and how much slower its kernels are for it.

    Each stream has a mean of its own: operations of others come in no order of time, and are few where a program computes on
    one.

    Attributes:
        limit: how kernels give way; None: they do not.
    """

    def __init__(self) -> None:
        self.limit: ClockLimit | None = None
        self._seen: dict[Place, tuple[float, Draw]] = {}
        self._settled: dict[Place, tuple[float, Draw]] = {}
        self._steps: dict[Place, deque[Operation]] = {}

    def slowed(self, place: Place, what: Drawing, start: float, seconds: float) -> float:
        """How long a kernel of ``seconds`` takes that starts at ``start``, virtual seconds; it is counted."""
        limit = self.limit
        if limit is None or seconds <= 0:
            return seconds
        ended = self._steps.get(place)
        while ended and ended[0].end is not None and ended[0].end <= start:
            ended.popleft()
            self._settle(place)
        last, drawn = self._seen.get(place) or self._settled.setdefault(place, (start, NOTHING))
        rate = what.nbytes / seconds
        own = limit.draw(what.kind, rate, what.draw)
        if own is NOTHING:
            return seconds
        clocked, fixed = drawn
        if last < start:  # it has rested
            kept = exp((last - start) / MEMORY)
            clocked, fixed = clocked * kept, fixed * kept
        seen = clocked, fixed
        if limit.within and seconds > _SHORT:  # the mean comes to what it draws itself while it runs
            share = MEMORY / seconds * (1 - exp(-seconds / MEMORY))
            seen = clocked * share + own[0] * (1 - share), fixed * share + own[1] * (1 - share)
        seconds *= limit.slower(what.kind, rate, seen)
        kept = exp(-seconds / MEMORY)
        self._seen[place] = (
            start + seconds,
            (clocked * kept + own[0] * (1 - kept), fixed * kept + own[1] * (1 - kept)),
        )
        return seconds

    def end_step(self, sip: int, last: Operation | None) -> None:
        """A step of a program ends with ``last`` on its device: after it, the device is as busy as after many steps like it."""
        if last is not None:
            self._steps.setdefault((sip, last.stream), deque()).append(last)

    def _settle(self, place: Place) -> None:
        """A step has ended.

        Over a step of ``seconds`` a mean ``b`` becomes ``b * exp(-seconds / MEMORY) + added``; the ``b`` that this leaves as it
        is, is where it ends. How much ``added`` depends on ``b`` shows in the next step.
        """
        if place not in self._seen:
            return
        (since, before), (last, drawn) = self._settled[place], self._seen[place]
        if last > since:
            kept = exp((since - last) / MEMORY)
            clocked, fixed = (
                max((now - then * kept) / (1 - kept), 0.0) for now, then in zip(drawn, before, strict=True)
            )
            self._seen[place] = self._settled[place] = (last, (clocked, fixed))

    def clear(self) -> None:
        """The devices have rested."""
        self._seen.clear()
        self._settled.clear()
        self._steps.clear()
