"""Ranks and their scheduler.

Each rank is a greenlet whose parent is main. Ranks never switch to each other: they switch to main, which picks the
next one from the ready queue. (A carrier that waits picks in main's stead: the same one, without main's thread.) What a
rank waits for is not this module's business; its owner calls :meth:`RankScheduler.make_ready` when the wait is over.

Other shapes were tried. Driving the simulation from inside a rank nests re-entry (a rank resumed from within another
rank's drain) and orphans kernels whose parent greenlet has ended; a generator-based scheduler needs ``yield`` in every
function of a user's program; OS threads alone are neither deterministic nor able to tell a deadlock from a slow rank.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from time import perf_counter  # the machine's own clock
from types import FunctionType
from typing import Any

from greenlet import GreenletExit, getcurrent

from kernbench.errors import KernbenchError, NoProgressError, kind_of, substitute, usable
from kernbench.scheduler.carrier import Carrier
from kernbench.scheduler.host_effects import HostEffects
from kernbench.scheduler.policy import Policy, RoundRobin
from kernbench.scheduler.rank import RaisedElsewhere, Rank, RankObserver, RankPhase, SideThread
from kernbench.scheduler.runners import CarrierRunner, GreenletRunner, Runner, Turns
from kernbench.scheduler.standstill import (
    LINGERING,
    SHORT,
    Alarm,
    Outlook,
    Standstill,
    Stoppable,
    hang_after,
    lines_to,
    raised_in,
    shown_stack,
    tell,
)
from kernbench.scheduler.thread_frames import frame_of_thread
from kernbench.scheduler.tracebacks import program_line, user_traceback

_UNWIND_ATTEMPTS = 100

_RUNNERS: dict[str, type[GreenletRunner] | type[CarrierRunner]] = {
    "carrier": CarrierRunner,
    "greenlet": GreenletRunner,
    "process": GreenletRunner,  # what runs here is what stands for the process
}
"""By isolation."""


class RankScheduler:
    """Runs ranks, exactly one at a time, in the order that ``policy`` gives: their lives, failures and unwinding.

    Must be created and driven on the main greenlet.

    Args:
        policy: who of those that are ready runs next; by default the one that has been ready for longest.
        effects: what it may do to the process while ranks run; by default what the environment says.

    Attributes:
        main: the greenlet that drives it.
        ready: those that can run.
        ranks: of the last world that was started.
        rank_by_greenlet: the index of a rank by its greenlets, while it lives.
        side_threads: the threads that the ranks' programs have started and that have not ended, by what main resumes.
        live_count: ranks that have not ended.
        aborting: whether ranks are being unwound: no rank waits any more.
        observer: is notified when ranks begin and end.
        on_first_failure: called with the first rank of a world that fails, before the others are unwound.
        before_switch: called in a rank that is about to wait; it may raise. Nearly always None: a switch pays for nothing.
        runner: how the ranks run.
        outlook: what the simulation knows of the ranks' progress; None: not observed.
        apart: the processes of ranks that are processes; None: they are here.
        waitable: returns the greenlet to resume when the running rank is to go on: in a carrier's thread the fronting one.
    """

    def __init__(self, policy: Policy | None = None, effects: HostEffects | None = None) -> None:
        self.ready: Policy = policy if policy is not None else RoundRobin()
        self._turns = Turns(self.ready)
        self.main = self._turns.main
        self.rank_by_greenlet = self._turns.rank_by_greenlet
        self.ranks: list[Rank] = []
        self.side_threads: dict[object, SideThread] = {}
        self.live_count = 0
        self.aborting = False
        self.observer: RankObserver | None = None
        self.on_first_failure: Callable[[Rank], None] | None = None
        self.before_switch: Callable[[], None] | None = None
        self.outlook: Outlook | None = None
        self.apart: Stoppable | None = None
        self._standstill: Standstill | None = None
        self._alarms: dict[int, Alarm] = {}
        self._lingering: dict[int, tuple[float, str]] = {}
        self._effects = effects if effects is not None else HostEffects.from_environment()
        self._refusals = 0
        self._run_by(GreenletRunner(self._turns))

    def _run_by(self, runner: Runner) -> None:
        self.runner = runner
        self.waitable = runner.waitable  # and below: a switch takes no call more than it must
        self._suspend = runner.suspend

    def rank(self, index: int) -> Rank | None:
        """The rank of this number in the world; None if it does not run."""
        if index < len(self.ranks) and self.ranks[index].index == index:
            return self.ranks[index]
        return next((rank for rank in self.ranks if rank.index == index), None)

    @property
    def failed(self) -> list[Rank]:
        """The ranks that have failed, in the order in which they did."""
        return self._turns.failed

    @property
    def resumed(self) -> int:
        """Resumptions so far: whether any rank has run since is a comparison of two readings."""
        return self._turns.resumed

    # -- life of ranks -----------------------------------------------------------------------------------------------

    def start(
        self,
        bodies: Sequence[Callable[[], None]],
        *,
        isolation: str,
        before_run: Callable[[int], None] | None = None,
        indices: Sequence[int] | None = None,
    ) -> None:
        """Create one rank per body, all ready to run.

        Args:
            indices: the ranks' numbers in the world; default: 0, 1, ...
            isolation: ``"carrier"``, ``"greenlet"``, or ``"process"``: bodies serve ranks that are processes.
            before_run: with carriers, called with the rank's index whenever that rank is about to run.
        """
        if self.live_count:
            raise KernbenchError("ranks are already running in this context: join them before starting more")
        self._turns.failed = []
        self._run_by(_RUNNERS[isolation](self._turns))
        self.ranks = [Rank(index) for index in (range(len(bodies)) if indices is None else indices)]
        self.live_count = len(bodies)
        for rank, body in zip(self.ranks, bodies, strict=True):
            self.runner.take(rank, self._body_of(rank, body), before_run)
            self.rank_by_greenlet[rank.greenlet] = rank.index
            self.make_ready(rank.greenlet)

    def adopt(self, thread: threading.Thread) -> tuple[Rank, Carrier]:
        """The program that ``thread`` runs is rank 0 of a world of one: gives that rank, ready to run, and its carrier."""
        self._turns.failed = []
        runner = CarrierRunner(self._turns)
        self._run_by(runner)
        rank = Rank(0)
        self.ranks = [rank]
        self.live_count = 1
        carrier = runner.adopt(rank, thread)
        self.rank_by_greenlet[rank.greenlet] = rank.index
        self.make_ready(rank.greenlet)
        return rank, carrier

    def breaks_waits_by(self, break_wait: Callable[[object], None]) -> None:
        """``break_wait`` is called with the greenlet of a rank that is not to wait for other threads any longer."""
        self._turns.break_wait = break_wait

    def add_side_thread(self, side: SideThread) -> None:
        """From now on ``side``, which has a greenlet, takes turns; it is not ready yet."""
        self.side_threads[side.greenlet] = side
        self.rank_by_greenlet[side.greenlet] = side.rank

    def linger(self, rank: int, name: str) -> None:
        """The program of ``rank`` has ended, and a thread of it of this ``name`` goes on; empty: none does any more."""
        if name:
            self._lingering[rank] = (perf_counter(), name)
        else:
            self._lingering.pop(rank, None)

    def set_alarm(self, rank: int, alarm: Alarm | None) -> float:
        """Let an alarm ring for a rank, if it stands still for as long; None: none. Gives the seconds of the one before."""
        before = self._alarms.pop(rank, None)
        if alarm is not None:
            self._alarms[rank] = alarm
        return 0.0 if before is None else before.seconds

    def _besides(self, still: float) -> None:
        """In the watchdog's thread, now and then; ``still``: seconds without progress."""
        self._tell_lingering()
        for rank in self.runner.running(self.ranks) if self._alarms else ():
            alarm, found = self._alarms.get(rank), self.rank(rank)
            thread = None if found is None else found.execution.thread_id
            if alarm is None or found is None or thread is None or still < alarm.due:
                continue
            alarm.rung += 1
            if not alarm.interval:
                del self._alarms[rank]
            try:
                alarm.ring(self.runner.frame_of(found))
            except BaseException as error:
                raised_in(thread, error)

    def _tell_lingering(self) -> None:
        """Say which rank waits for a thread for long, once."""
        for rank, (since, name) in [*self._lingering.items()]:
            if perf_counter() - since < LINGERING:
                continue
            self._lingering.pop(rank, None)
            side = next(
                (each for each in [*self.side_threads.values()] if (each.rank, each.name) == (rank, name)), None
            )
            stack = (
                "" if side is None else f"\n{shown_stack(lines_to(frame_of_thread(side.execution.thread_id)))}".rstrip()
            )
            tell(
                f"rank {rank}'s program has ended, and its thread {name!r} goes on: one that is no daemon keeps its process, "
                f"as in Python (daemon=True){stack}"
            )

    def drop_side_thread(self, side: SideThread) -> None:
        """It has ended."""
        self.side_threads.pop(side.greenlet, None)
        self.rank_by_greenlet.pop(side.greenlet, None)
        self.rank_by_greenlet.pop(side.execution.root, None)

    def be_driven_here(self) -> None:
        """From now on the running greenlet is main, while no rank runs."""
        self._turns.main = self.main = getcurrent()
        self._run_by(GreenletRunner(self._turns))

    def _body_of(self, rank: Rank, body: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            with self.living(rank):
                body()

        return named_after(rank.index, run)

    @contextlib.contextmanager
    def living(self, rank: Rank) -> Iterator[None]:
        """The block is what ``rank`` runs. How it ends is how the rank ends; nothing but Ctrl-C is raised."""
        rank.phase = RankPhase.RUNNING
        try:
            if self.observer is not None:
                self.observer.rank_started(rank)
            yield
            rank.phase = RankPhase.DONE
        except (KeyboardInterrupt, GreenletExit) as error:
            if self._turns.interrupted:  # Ctrl-C, and not the program's own: it ends the simulation
                rank.phase = RankPhase.ABORTED
                raise
            rank.phase = RankPhase.ABORTED if self.aborting else RankPhase.DONE
            place = program_line(error)
            if rank.phase is RankPhase.DONE and (place or isinstance(error, KeyboardInterrupt)):
                rank.ended_by = type(error).__name__ + (place and f" at {place}")
        except SystemExit as exit_:
            if self.aborting:
                rank.phase = RankPhase.ABORTED
            elif exit_.code in (None, 0):
                rank.phase = RankPhase.DONE
            else:
                self.fail(rank, exit_)
        except BaseException as error:
            self.fail(rank, error)
        finally:
            self._unbind(rank)

    def fail(self, rank: Rank, error: BaseException) -> None:
        """Record ``error`` as the root cause of ``rank``'s failure; one that was given up has none any more."""
        if rank.execution.stuck:
            rank.phase = RankPhase.ABORTED
            return
        rank.phase = RankPhase.FAILED
        rank.error, rank.traceback = error, ""
        self.failed.append(rank)
        try:
            if issubclass(type(error), RaisedElsewhere):  # an instance may answer for itself
                rank.error, rank.traceback = error.error, error.traceback  # type: ignore[attr-defined]
            else:
                rank.traceback = user_traceback(error)
                rank.error = usable(error)
            if self.on_first_failure is not None and len(self.failed) == 1:
                self.on_first_failure(rank)
        except BaseException as other:  # what is shown is the program's, as where: no failure is lost over it
            if not rank.traceback:
                kind, why = kind_of(error), f"to show it has raised {kind_of(other)[1]}"
                rank.error, rank.traceback = substitute(kind, why), f"{kind[1]} ({why})\n"
        if self.observer is not None:
            self.observer.rank_failed(rank)

    def _unbind(self, rank: Rank) -> None:
        if self.observer is not None and rank.phase in (RankPhase.DONE, RankPhase.ABORTED):
            self.observer.rank_ended(rank)
        if self.rank_by_greenlet.pop(rank.greenlet, None) is None:
            return  # given up before, and ended after all
        self.live_count -= 1
        self.rank_by_greenlet.pop(rank.execution.root, None)

    def current_rank(self) -> int | None:
        """Index of the rank that is running, or None in main (and in a kernel)."""
        return self.rank_by_greenlet.get(getcurrent())

    # -- switching ---------------------------------------------------------------------------------------------------

    def switch_to_main(self) -> None:
        """Suspend the running greenlet until it is resumed. In a raw greenlet too."""
        if self.aborting:
            self._refuse()
        self._suspend()

    def pause(self) -> None:
        """Let the other runnable ranks go first."""
        if self.before_switch is not None:
            self.before_switch()
        self.ready.append((self.waitable(), None))
        if self.aborting:
            self._refuse()
        self._suspend()

    def _refuse(self) -> None:
        """No rank waits while being unwound; one that swallows every SystemExit is let go of."""
        self._refusals += 1
        if self._refusals <= _UNWIND_ATTEMPTS:
            raise SystemExit

    def make_ready(self, target: Any, error: BaseException | None = None) -> None:
        """Let ``target`` (a greenlet) run again; with ``error``, raise that inside it."""
        self.ready.append((target, error))

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """While ranks run: what :class:`HostEffects` says holds, and carriers are looked after."""
        self._turns.interrupted = False
        if self.outlook is not None:
            ranks = self.apart or _Here(self)
            self._standstill = Standstill(
                self.outlook, ranks, hang_after(), says=self.runner.says_standstill, besides=self._besides
            )
        try:
            with (
                self.runner.watched(self._standstill),
                self._effects.in_force(self._interrupted, threads=self.runner.threads),
            ):
                yield
        finally:
            self._turns.interrupted = False
            self._standstill = None
            self._alarms.clear()
            self._lingering.clear()

    @property
    def has_given_up(self) -> bool:
        """Whether a thread of the ranks goes on in spite of its end: Python would wait for it, for ever."""
        return isinstance(self.runner, CarrierRunner) and self.runner.baton.given_up

    @property
    def interrupted(self) -> bool:
        """Whether a signal from outside ends the ranks."""
        return self._turns.interrupted

    def _interrupted(self, end: Callable[[], None]) -> None:
        self._turns.interrupted = True
        standstill = self._standstill
        if standstill is not None and (seconds := standstill.seconds) > SHORT:
            tell(standstill.report(seconds))
        self.runner.interrupt(end)

    def run_ready(self) -> int:
        """In main: run until no greenlet is ready, or a rank has failed. Returns the number of resumptions."""
        turns = self._turns
        before = turns.resumed
        self.runner.run()
        return turns.resumed - before

    # -- ending ------------------------------------------------------------------------------------------------------

    def deliver_errors(self) -> None:
        """Resume the ready greenlets that have an error to raise, so that each reports its own root cause."""
        entries = [self.ready.popleft() for _ in range(len(self.ready))]
        for target, error in entries:
            if error is not None and not target.dead:
                target.throw(error)

    def abort(self, others: Iterable[Any] = ()) -> None:
        """Unwind every live rank: ``SystemExit`` is thrown into it, so its ``finally`` blocks run. Idempotent.

        ``others``: suspended greenlets that are no ranks (kernels). Raises :class:`KernbenchError`, when all that can be
        unwound has been, naming the ranks that swallow it.
        """
        self.aborting = True
        self.runner.unwind(True)
        stubborn = []
        raw = [target for target in others if target not in self.rank_by_greenlet]
        try:
            self.ready.clear()
            for side in list(self.side_threads.values()):  # first: a rank waits for them while it unwinds
                self._unwind_side(side)
            for rank in self.ranks:
                if rank.live and not self._unwind(rank):
                    stubborn.append(rank.index)
            for target in raw:
                _unwind_raw(target)
        finally:
            self.runner.unwind(False)
            self.aborting = False
            self.runner.settle()  # may raise what a signal is to
            self.ready.clear()
        if stubborn:
            raise KernbenchError(
                f"rank {', '.join(map(str, stubborn))} caught SystemExit {_UNWIND_ATTEMPTS} times while being unwound: an "
                "'except BaseException' (or a bare 'except') inside a loop of the program swallows it. It was given up."
            )

    def _unwind(self, rank: Rank) -> bool:
        target = rank.greenlet
        if target:
            self._refusals = 0
            target.throw(SystemExit)
            if target.dead:
                if rank.execution.stuck:  # its body did not end
                    rank.phase = RankPhase.ABORTED
                    self._unbind(rank)
                return True
            _keep_for_ever(target)
        # else never started: nothing to unwind
        rank.phase = RankPhase.ABORTED
        self._unbind(rank)
        return not target

    def _unwind_side(self, side: SideThread) -> None:
        target, execution = side.greenlet, side.execution
        execution.close()
        self._refusals = 0
        if target:
            target.throw(SystemExit)
        elif not execution.stuck:
            target.switch()  # its thread waits for its first turn
        if target and not target.dead:
            _keep_for_ever(target)
        elif not execution.stuck:
            execution.await_end()
        self.drop_side_thread(side)


class _Here:
    """Ranks of this process, from the watchdog's thread."""

    def __init__(self, scheduler: RankScheduler) -> None:
        self._scheduler = scheduler

    def running(self) -> list[int]:
        """See :class:`Stoppable`."""
        return self._scheduler.runner.running(self._scheduler.ranks)

    def stack_of(self, rank: int) -> str:
        """See :class:`Stoppable`."""
        found = self._scheduler.rank(rank)
        lines = [] if found is None else lines_to(self._scheduler.runner.frame_of(found))
        return shown_stack(lines)

    def stop(self, error: NoProgressError, attempt: int) -> None:
        """See :class:`Stoppable`. An error of a further thread, which in Python ends that thread alone, is its rank's."""
        scheduler = self._scheduler
        if scheduler.runner.runs_side and not attempt:
            for rank in filter(None, map(scheduler.rank, self.running())):
                if rank.live:
                    scheduler.fail(rank, error)
        scheduler.runner.stop(error, attempt)

    def blocked(self, seconds: float) -> None:
        """See :class:`Stoppable`."""
        self._scheduler.runner.blocked(self._scheduler.ranks, self.stack_of, seconds)


def named_after(rank: int, body: Callable[[], None]) -> Callable[[], None]:
    """``body`` under a name that says whose it is, for a stack that is written where no Python runs."""
    assert isinstance(body, FunctionType)
    code = body.__code__.replace(co_name=f"rank {rank} (ranks share this process: see --isolation process)")
    return FunctionType(code, body.__globals__, body.__name__, body.__defaults__, body.__closure__)


def _keep_for_ever(target: Any) -> None:
    """A greenlet that swallows its unwinding would go on swallowing, in an endless loop, when it is collected."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(target))


def _unwind_raw(target: Any) -> None:
    """End a suspended greenlet that is no rank. What it raises meanwhile is lost: it has no waiter left."""
    if target and not target.dead:
        with contextlib.suppress(SystemExit, Exception):
            target.throw(GreenletExit)
