"""Polling: a rank that asks again and again whether an operation is complete."""

from __future__ import annotations

from functools import partial
from math import ceil
from typing import TYPE_CHECKING

from greenlet import getcurrent

from kernbench.errors import DeadlockError
from kernbench.runtime_api.multiprocessing import _drain_pending
from kernbench.runtime_api.rank_state import RankState
from kernbench.sim_engine.operation import Operation

if TYPE_CHECKING:
    from kernbench.runtime_api.context import RuntimeContext

POLL_SECONDS = 1e-6
"""Virtual time that one look at an unfinished operation costs the host."""

_IDLE_POLLS = 10_000


class Polls:
    """The looks of one context's ranks at operations that are not done."""

    def __init__(self, ctx: RuntimeContext) -> None:
        self._ctx = ctx
        self._looks: list[tuple[Operation, RankState]] = []
        self._in_flight = 0

    def clear(self) -> None:
        """Forget the looks that have not been scheduled."""
        self._looks.clear()

    def look(self, op: Operation) -> None:
        """One look at an operation that is not done: let the others go on for a moment of virtual time.

        Raises:
            DeadlockError: a rank has looked very often, and nothing in the simulation can make progress.
        """
        ctx = self._ctx
        if getcurrent() is ctx.scheduler.main:
            _drain_pending(ctx)
            return
        me = ctx._me()
        idle = ctx.engine.events_in_flight == self._in_flight and ctx.engine.progress == me.progress_seen
        me.idle_polls = me.idle_polls + 1 if idle else 0
        me.progress_seen = ctx.engine.progress
        if me.idle_polls > _IDLE_POLLS:
            me.idle_polls = 0
            report = (
                f"rank {me.rank} has asked {_IDLE_POLLS} times whether {op.name!r} is complete, and nothing else in the "
                "simulation can make progress.\n" + ctx.distributed._report()
            )
            if ctx.hooks is not None:
                ctx.hooks.deadlock(report)
            raise DeadlockError(report)
        look = Operation(
            f"is_completed of {op.name}", "timer", rank=me.rank, sip=me.sip, stream="host", enqueue=me.clock
        )
        self._looks.append((look, me))
        ctx.wait(look)

    def schedule(self) -> None:
        """Everybody is blocked: those who poll look again when the next thing has happened, at a multiple of
        :data:`POLL_SECONDS`. The looks in between would see nothing new."""
        if not self._looks:
            return
        ctx = self._ctx
        polls, self._looks = self._looks, []
        upcoming = ctx.engine.next_event
        for look, me in polls:
            looks = 1 if upcoming is None else max(1, ceil((upcoming - me.clock) / POLL_SECONDS))
            self._in_flight += 1
            ctx.engine.at(me.clock + looks * POLL_SECONDS, partial(self._end_poll, look))

    def _end_poll(self, look: Operation) -> None:
        self._in_flight -= 1
        self._ctx.engine.resolve_now(look)
