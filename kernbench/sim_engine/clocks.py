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

_FREE, _FULL = 0.2, 0.5
"""Shares of the time: below the first products run at the boost clock, above the second at the sustained one. UNVERIFIED."""

_FREE_ALONE, _FULL_ALONE = 0.5, 0.9
"""The same of a device whose neighbours are idle: an H100's training steps of which products and attention are half run at the
boost clock (within 3 %), products alone at the sustained one (kernbench.programs)."""


class Clocks:
    """How busy the matrix engines of each SIP have been.

    Attributes:
        slowdown: share by which products take longer at the sustained clock than at the boost clock.
    """

    def __init__(self) -> None:
        self.slowdown = 0.0
        self._alone: float | None = None
        self._together = 0.0
        self._free, self._full = _FREE, _FULL
        self._seen: dict[int, tuple[float, float]] = {}
        self._settled: dict[int, tuple[float, float]] = {}
        self._steps: dict[int, deque[Operation]] = {}

    def describe(self, together: float, alone: float | None) -> None:
        """The slowdowns of a device whose node is busy as a whole, and of one that is alone; None: as much."""
        self._together, self._alone = together, alone
        self.fill_node(1, 1)

    def fill_node(self, busy: int, devices: int) -> None:
        """So many of a node's devices work: between one and all of them, figures are in proportion (ADR 0236)."""
        self.slowdown, self._free, self._full = self._together, _FREE, _FULL
        if self._alone is not None:
            idle = 1 - (min(busy, devices) - 1) / max(devices - 1, 1) if busy < devices or devices == 1 else 0.0
            self.slowdown += idle * (self._alone - self._together)
            self._free += idle * (_FREE_ALONE - _FREE)
            self._full += idle * (_FULL_ALONE - _FULL)

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
        share = min(max((busy - self._free) / (self._full - self._free), 0.0), 1.0)
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
