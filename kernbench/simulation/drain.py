"""The drain: what main does while every rank is blocked or has ended.

It repeats, in order: compute the values of what was launched; resume the ranks whose handle is done; start the collectives
whose members have all arrived; move virtual time to the next completion. If none of these can do anything, no rank can go on: a
deadlock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from greenlet import getcurrent

from kernbench.errors import DeadlockError, KernbenchError
from kernbench.scheduler import RankScheduler
from kernbench.sim_engine import DataExecutor, GraphEngine
from kernbench.simulation.deadlock_reports import deadlock_report, who_waits
from kernbench.simulation.launches.signal_timing import SignalTiming
from kernbench.simulation.matching.hooks import RunHooks
from kernbench.simulation.matching.matcher import Matcher
from kernbench.simulation.stuck_streams import StuckStreams
from kernbench.simulation.time.deadlines import Deadlines
from kernbench.simulation.time.polling import Polls
from kernbench.simulation.time.rank_threads import RankThreads
from kernbench.simulation.time.wait_queue import Awaited, Waits


class Release(Protocol):
    """See :attr:`Drain.release`."""

    def __call__(self, *, idle: bool) -> bool:
        """Whether any rank can go on now."""


@dataclass(eq=False, repr=False)
class Drain:
    """Drives one simulation, in main.

    Args:
        title: of the run, in reports.

    Attributes:
        release: lets those go on that others were to go before (:class:`.GivingWay`); false if
            there are none, or if it is not yet time: ``idle`` says that nothing else can happen. None: no rank gives way.
        await_absent: waits for those that wait for what the simulation does not see; false if none does. None: none can.
        hold: called before time moves: whether a rank can go on at this time that waits for what the simulation does not see.
        let_go: called before time moves to the end of what ranks have left behind.
    """

    title: str
    engine: GraphEngine
    scheduler: RankScheduler
    executor: DataExecutor
    waits: Waits
    matcher: Matcher
    signal_timing: SignalTiming
    polls: Polls
    deadlines: Deadlines
    threads: RankThreads
    hooks: RunHooks | None

    def __post_init__(self) -> None:
        self.release: Release | None = None
        self.await_absent: Callable[[], bool] | None = None
        self.hold: Callable[[], bool] | None = None
        self.let_go: Callable[[], None] | None = None
        self.waits.drive_until = self.until
        self.polls.drain = self.pending
        self.polls.report_deadlock = self.tell_deadlock

    def pending(self) -> None:
        """Drain worker waits, then collectives, in one barrier, until both queues are empty. Idempotent.

        Raises:
            DeadlockError: something is left that cannot be completed, and no greenlet waits for it that could be notified.
        """
        self._require_main()
        while self.waits.pending or self.matcher.pending or self.scheduler.ready:
            if not self.once():
                self.deadlock()

    def until(self, awaited: Awaited) -> None:
        """Drain until ``awaited`` is done."""
        self._require_main()
        while not awaited.done:
            if not self.once():
                raise DeadlockError(self.tell_deadlock(f"main waits for {awaited!r}, which no rank can complete."))

    def _require_main(self) -> None:
        if getcurrent() is not self.scheduler.main:
            raise KernbenchError("only main drains: call this from the main greenlet, not from a rank or a kernel")

    def once(self) -> bool:
        """Do the next thing that can be done; False if nothing can."""
        ran = self.executor.flush(self.engine.now)
        if self.waits.resume_done() or self.matcher.start_matched() or ran or self.signal_timing.settle():
            return True
        if self.hold is not None and self.hold():
            return True
        if self.threads.settle() or self.threads.look_at_rest():
            return True
        self.polls.schedule()
        upcoming = self.engine.next_event
        if upcoming is not None:
            self.threads.limits.schedule(upcoming)
            if self.deadlines.first < upcoming:
                return (
                    self.deadlines.expire_asked_for()
                    if self.threads.limits.only_beats
                    else self.deadlines.expire_first()
                )
        if self.release is not None and self.release(idle=False):
            return True
        if self.engine.advance() or (self.release is not None and self.release(idle=True)):
            return True
        if self.await_absent is not None and self.await_absent():
            return True
        if self.threads.come() or self.waits.anything_done:
            return True
        return self.deadlines.expire_asked_for()

    def clear(self) -> None:
        """Forget everything that waits or is kept."""
        self.waits.clear()
        self.matcher.clear()
        self.deadlines.clear()
        self.polls.clear()
        self.threads.clear()
        self.signal_timing.clear()
        self.executor.clear()

    def anything_left(self) -> bool:
        """Whether something is pending, ready or kept."""
        matcher = self.matcher
        return bool(
            self.waits.pending
            or matcher.pending
            or matcher.messages.in_flight
            or self.scheduler.ready
            or len(self.executor)
        )

    def settle_time(self) -> float:
        """Run the engine until nothing is in flight; the time (s) when all has ended."""
        if self.let_go is not None:
            self.let_go()
        self.engine.run()
        while self.signal_timing.settle():
            self.engine.run()
        return max(self.engine.now, self.engine.latest_end)

    def report(self) -> str:
        """Why no rank can go on."""
        return deadlock_report(self.title, self.scheduler, self.waits, self.matcher, self.executor)

    def situation(self) -> list[str]:
        """Who waits for whom, as lines, while something could go on: for what says that one has waited for too long."""
        return [line for line in self.report().splitlines() if not line.startswith("deadlock")]

    def tell_deadlock(self, first: str = "") -> str:
        """The report, after a ``first`` sentence; plugins are notified."""
        report = "\n".join(filter(None, (first, self.report())))
        if self.hooks is not None:
            self.hooks.deadlock(report)
        return report

    def _deadlock_error(self) -> Callable[[], DeadlockError]:
        """Makes the error that says how things are now, once for all its receivers."""
        stuck = StuckStreams(self.matcher)
        report, (waits_for, doing) = self.tell_deadlock(), who_waits(self.scheduler, self.waits, self.matcher, stuck)

        def make() -> DeadlockError:
            error = DeadlockError(report)
            error.waits_for, error.doing = waits_for, doing
            return error

        return make

    def deadlock(self) -> None:
        """None can make progress: raise that in all that are blocked, so that their own ``except`` and ``finally`` work.

        Of a rank's threads, those that wait for another one hear of it from that one; a daemon that goes on by itself does not.
        """
        error = self._deadlock_error()
        waiting = self.threads.outside_a_deadlock(self.waits.pending)
        blocked = [target for _, target in self.waits.pending if target not in waiting]
        self.waits.clear(keep=waiting)
        self.matcher.forget_unmatched()
        self.deadlines.clear()
        self.executor.abandon(error(), self.engine.now)
        if not blocked:
            raise error()
        for target in blocked:
            self.scheduler.make_ready(target, error())
        self.scheduler.deliver_errors()

    def forget_waits(self) -> None:
        """No rank waits any more, and what only part of its members have called is not to come."""
        self.waits.clear()
        self.matcher.forget_unmatched()

    def fail_leftovers(self) -> None:
        """Ranks have returned and left something that cannot be completed: that is the failure of those who left it."""
        error = self._deadlock_error()
        scheduler = self.scheduler
        stuck = StuckStreams(self.matcher).ranks
        for index in sorted(self.matcher.unmatched_ranks() | self.executor.suspended_ranks() | stuck):
            if (rank := scheduler.rank(index)) is not None:
                scheduler.fail(rank, error())
        if not scheduler.failed:
            raise error()
