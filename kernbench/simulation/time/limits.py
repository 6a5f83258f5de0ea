"""The limits of threads' waits, in virtual time: which runs out when nothing else happens."""

from __future__ import annotations

import heapq
import math
import weakref
from itertools import count

from kernbench.sim_engine import GraphEngine
from kernbench.simulation.ranks.hosts import Hosts
from kernbench.simulation.time.notices import SLEEP, Notice

_MOST_IDLE = 10_000
"""Limits of waits that run out one after the other, while nothing else happens, before that is a deadlock: they are set again
and again. Where one runs out that was set long before, they count from there: it may bring something new."""

_IDLE_FOR_EVER = 100 * _MOST_IDLE
"""Of those, as many as are a deadlock whatever is left."""


class Limits:
    """Those of one simulation's threads.

    Attributes:
        idle: how many have run out, one after the other, while nothing else happened.
    """

    def __init__(self, engine: GraphEngine, hosts: Hosts) -> None:
        self._engine = engine
        self._hosts = hosts
        self._timers: list[tuple[float, int, Notice]] = []
        self._beats: weakref.WeakSet[Notice] = weakref.WeakSet()  # that daemons wait for
        self._serial = count()
        self.idle = 0
        self._long = 0
        self._ran_out = -math.inf

    def clear(self) -> None:
        """Forget all of them."""
        self._timers.clear()
        self.idle = 0
        self._ran_out = -math.inf

    def add(self, notice: Notice, at: float, *, beats: bool = False) -> None:
        """The wait for ``notice`` ends at ``at`` s; ``beats``: it is a daemon's, which goes on by itself."""
        heapq.heappush(self._timers, (at, next(self._serial), notice))
        if beats:
            self._beats.add(notice)

    @property
    def beats(self) -> set[object]:
        """What daemons wait for that go on when a limit runs out."""
        return {notice.condition for notice in self._beats}

    def schedule(self, upcoming: float) -> None:
        """Something happens at ``upcoming`` s: what runs out before that does."""
        if upcoming > self._ran_out:
            self.idle = 0
        while self._timers and self._timers[0][0] <= upcoming:
            at, _, notice = heapq.heappop(self._timers)
            if not notice.condition.done:
                self._engine.fulfil_at(notice.condition, at)

    def first(self) -> float | None:
        """Seconds after which the first limit runs out, None if there is none."""
        self._drop_done()
        if not self._timers:
            return None
        rank = self._timers[0][2].condition.rank
        host = self._hosts.main if rank is None else self._hosts.of_rank[rank]
        return max(0.0, self._timers[0][0] - host.clock)

    @property
    def only_beats(self) -> bool:
        """Whether nothing happens any more but that limits run out of daemons, which go on by themselves."""
        return self.idle > 0 and all(
            notice in self._beats for _, _, notice in self._timers if not notice.condition.done
        )

    def run_out(self, *, still: bool = False) -> bool:
        """Have the first limit run out; ``still``: without virtual time. Whether there is one, and it is no deadlock."""
        self._drop_done()
        fresh = next(self._serial) - _MOST_IDLE // 5
        if not self.idle:
            self._long = 0
        self.idle += 1
        if not self._timers or self.idle > _IDLE_FOR_EVER:
            return False
        if self.idle - self._long > _MOST_IDLE and all(serial > fresh for _, serial, _ in self._timers):
            return False
        at, serial, notice = heapq.heappop(self._timers)
        if serial <= fresh:
            self._long = self.idle
        if still and notice.condition.name != SLEEP:
            notice.condition.fulfil()
        else:
            self._ran_out = at
            self._engine.fulfil_at(notice.condition, at)
        return True

    def _drop_done(self) -> None:
        while self._timers and self._timers[0][2].condition.done:
            heapq.heappop(self._timers)
