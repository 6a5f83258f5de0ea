"""Polling: a rank that asks again and again whether something is complete."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

from greenlet import getcurrent

from kernbench.errors import DeadlockError
from kernbench.scheduler import RankScheduler
from kernbench.sim_engine import Condition, GraphEngine
from kernbench.simulation.ranks.hosts import Host, Hosts
from kernbench.simulation.time.wait_queue import Awaited, Waits

POLL_SECONDS = 1e-6
"""Virtual time that one look at an unfinished operation costs the host."""

_IDLE_POLLS = 10_000


class Polls:
    """The looks of one simulation's ranks at what is not done.

    Attributes:
        drain: in main, runs the simulation as far as it goes (the drain sets it).
        report_deadlock: describes why no rank can go on, and notifies plugins (the drain sets it).
    """

    def __init__(self, engine: GraphEngine, hosts: Hosts, scheduler: RankScheduler, waits: Waits) -> None:
        self._engine = engine
        self._hosts = hosts
        self._scheduler = scheduler
        self._waits = waits
        self._looks: list[tuple[Condition, Host]] = []
        self._in_flight = 0
        self._early: dict[int | None, tuple[float, float]] = {}
        """By rank: its clock after its last early look, and the first end that it has looked for."""
        self.drain: Callable[[], None]
        self.report_deadlock: Callable[[str], str]

    def clear(self) -> None:
        """Forget the looks that have not been scheduled."""
        self._looks.clear()
        self._early.clear()

    def look(self, at: Awaited | str) -> None:
        """One look at something that is not done: let the others go on for a moment of virtual time.

        Raises:
            DeadlockError: a rank has looked very often, and nothing in the simulation can make progress.
        """
        if getcurrent() is self._scheduler.main:
            self.drain()
            return
        engine, me = self._engine, self._hosts.current()
        name = at if isinstance(at, str) else at.name
        idle = engine.events_in_flight == self._in_flight and engine.progress == me.progress_seen
        me.idle_polls = me.idle_polls + 1 if idle else 0
        me.progress_seen = engine.progress
        if me.idle_polls > _IDLE_POLLS:
            me.idle_polls = 0
            raise DeadlockError(
                self.report_deadlock(
                    f"rank {me.rank} has asked {_IDLE_POLLS} times whether {name!r} is complete, and nothing else in the "
                    "simulation can make progress."
                )
            )
        look = Condition(f"is_completed of {name}", me.rank)
        self._looks.append((look, me))
        self._waits.wait(look)

    def look_early(self, end: float) -> None:
        """One look at what is known to end at ``end`` s, later than now: it takes a moment of the host's time. A host that
        does nothing else between its looks goes on at the first end that it has looked for: those in between would see
        nothing new."""
        me = self._hosts.current()
        clock, first = self._early.get(me.rank, (-1.0, end))
        alone = clock == me.clock
        first = min(first, end) if alone and first > me.clock else end
        looks = max(1, ceil((first - me.clock) / POLL_SECONDS)) if alone else 1
        me.prepare(looks * POLL_SECONDS)
        self._early[me.rank] = me.clock, first

    def schedule(self) -> None:
        """All ranks are blocked: those that poll look again when the next thing has happened, at a multiple of
        :data:`POLL_SECONDS`. The looks in between would see nothing new."""
        if not self._looks:
            return
        polls, self._looks = self._looks, []
        upcoming = self._engine.next_event
        for look, me in polls:
            looks = 1 if upcoming is None else max(1, ceil((upcoming - me.clock) / POLL_SECONDS))
            self._in_flight += 1
            self._engine.fulfil_at(look, me.clock + looks * POLL_SECONDS)
            look.when_resolved(self._one_less)

    def _one_less(self) -> None:
        self._in_flight -= 1
