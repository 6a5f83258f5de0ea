"""What a device's clock loses when its matrix engines are busy for long (ADR 0126).

A board's power is held to its limit as a mean over some time. So a product that comes alone runs at the boost clock, and is
what tables of kernels measure; in a training step, where one product follows another, all run at the clock that the limit
leaves. The share of the last :data:`MEMORY` seconds in which a device has been multiplying says which of these it is.
"""

from __future__ import annotations

from collections import deque
from math import exp

from kernbench.sim_engine.operation import Operation

MEMORY = 0.1
"""Seconds over which the power is averaged. UNVERIFIED: a tenth of a second is what monitors of boards' power resolve."""

_FREE, _FULL = 0.5, 0.9
"""Shares of the time where nothing sets :attr:`Clocks.between`."""


class Clocks:
    """How busy the matrix engines of each SIP have been.

    Attributes:
        slowdown: share by which products take longer at the sustained clock than at the boost clock.
        between: shares of the time: below the first products run at the boost clock, above the second at the sustained one.
    """

    def __init__(self) -> None:
        self.slowdown = 0.0
        self.between = _FREE, _FULL
        self._seen: dict[int, tuple[float, float]] = {}
        self._settled: dict[int, tuple[float, float]] = {}
        self._steps: dict[int, deque[Operation]] = {}

    def slowed(self, sip: int, start: float, seconds: float) -> float:
        """How long a product of ``seconds`` takes that starts at ``start``, virtual seconds; it is counted."""
        if not self.slowdown:
            return seconds
        ended = self._steps.get(sip)
        while ended and ended[0].end is not None and ended[0].end <= start:
            ended.popleft()
            self._settle(sip)
        last, busy = self._seen.get(sip) or self._settled.setdefault(sip, (start, 0.0))
        busy *= exp(min(last - start, 0.0) / MEMORY)
        free, full = self.between
        share = min(max((busy - free) / (full - free), 0.0), 1.0)
        seconds *= 1 + self.slowdown * share
        kept = exp(-seconds / MEMORY)
        self._seen[sip] = (start + seconds, busy * kept + 1 - kept)
        return seconds

    def end_step(self, sip: int, last: Operation | None) -> None:
        """A step of a program ends with ``last`` on its device: after it, the device is as busy as after many steps like it."""
        if last is not None:
            self._steps.setdefault(sip, deque()).append(last)

    def _settle(self, sip: int) -> None:
        """A step has ended.

        Over a step of ``seconds`` the share ``b`` of the time becomes ``b * exp(-seconds / MEMORY) + added``; the ``b`` that
        this leaves as it is, is where it ends. How much ``added`` depends on ``b`` shows in the next step.
        """
        if sip not in self._seen:
            return
        (since, before), (last, busy) = self._settled[sip], self._seen[sip]
        if last > since:
            kept = exp((since - last) / MEMORY)
            busy = min(max((busy - before * kept) / (1 - kept), 0.0), 1.0)
            self._seen[sip] = self._settled[sip] = (last, busy)

    def clear(self) -> None:
        """The devices have rested."""
        self._seen.clear()
        self._settled.clear()
        self._steps.clear()
