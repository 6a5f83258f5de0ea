"""How ranks run: as greenlets of the main thread, or as carriers.

Both runners resume ready ranks, one at a time, in the order that the policy gives, and stop when a rank has failed. They
know nothing of how ranks live and fail; what they share with what does is :class:`Turns`.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from greenlet import getcurrent, greenlet

from kernbench.errors import HiddenBlockingError, NoProgressError
from kernbench.scheduler.carrier import Baton, Carrier, current_carrier
from kernbench.scheduler.crew import Crew
from kernbench.scheduler.execution import InGreenlet
from kernbench.scheduler.policy import Entry, Policy
from kernbench.scheduler.rank import Rank, SideThread
from kernbench.scheduler.standstill import Standstill, raised_in, tell, traceback_to
from kernbench.scheduler.thread_frames import frame_of_thread
from kernbench.scheduler.watchdog import WATCHDOG_THREAD, Watchdog, has_children, sleeps, waits_for_lock


class Turns:
    """Who may run: what a scheduler and its runner share.

    Attributes:
        main: the greenlet that resumes all others.
        ready: who runs next.
        rank_by_greenlet: the index of a rank by its greenlets, while it lives.
        failed: ranks that have failed: while there are any, no other rank is resumed.
        resumed: resumptions so far.
        interrupted: whether main is to raise something, and the baton is not to be handed on.
        break_wait: called in main with the greenlet of a rank that is not to wait for other threads any longer.
    """

    def __init__(self, ready: Policy) -> None:
        self.main = getcurrent()
        self.ready = ready
        self.rank_by_greenlet: dict[object, int] = {}
        self.failed: list[Rank] = []
        self.resumed = 0
        self.interrupted = False
        self.break_wait: Callable[[object], None] = _nothing


def _nothing(greenlet: object) -> None:
    pass


class Runner:
    """Runs the ranks of one world."""

    threads: bool
    """Whether they have threads of their own."""

    def waitable(self) -> object:
        """The greenlet to resume when the running rank is to go on."""

    def suspend(self) -> object:
        """Go to main, or to whom main would resume; return when the running greenlet is resumed. In a raw greenlet too."""

    def take(self, rank: Rank, body: Callable[[], None], before_run: Callable[[int], None] | None) -> None:
        """Give ``rank`` what runs ``body``, which must not raise."""

    def run(self) -> None:
        """In main: resume greenlets until none is ready, or a rank has failed."""

    def interrupt(self, end: Callable[[], None]) -> None:
        """In the main thread, wherever that is: a signal ends the run, as soon as ``end`` is called, which raises."""
        end()

    def settle(self) -> None:
        """In main, when all ranks have been unwound: let what fronts them end, too."""

    def unwind(self, on: bool) -> None:
        """In main: from now on ranks that run are to end, or are not any more."""

    says_standstill = True
    """Whether a rank that comes no further keeps others waiting, so that it is to be said."""

    @property
    def runs_side(self) -> bool:
        """In any thread: whether a further thread of a rank runs now."""
        return False

    def watched(self, standstill: Standstill | None) -> AbstractContextManager[None]:
        """A block in which ranks run: what is to look after them."""
        return nullcontext() if standstill is None else Watchdog(standstill).watching()

    def running(self, ranks: Sequence[Rank]) -> list[int]:
        """In any thread: those that run now."""
        raise NotImplementedError

    def frame_of(self, rank: Rank) -> FrameType | None:
        """In any thread: where a rank is."""
        raise NotImplementedError

    def stop(self, error: NoProgressError, attempt: int) -> None:
        """See :class:`~kernbench.scheduler.standstill.Stoppable`."""
        raise NotImplementedError

    def blocked(self, ranks: Sequence[Rank], stack_of: Callable[[int], str], seconds: float) -> None:
        """See :class:`~kernbench.scheduler.standstill.Stoppable`: that of a carrier is the watchdog's own business."""


_WAKES = signal.SIGURG
"""A signal that does nothing by itself, and that a wait in C is interrupted by."""


class GreenletRunner(Runner):
    """Ranks are greenlets: a switch is one of greenlets, and they share a thread and what torch keeps per thread."""

    threads = False

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._thread = threading.get_ident()
        self._ends_with: BaseException | None = None
        self._wakes = False
        self.waitable = getcurrent  # type: ignore[method-assign]  # no methods: a switch should cost no call more
        self.suspend = turns.main.switch  # type: ignore[method-assign]

    def take(self, rank: Rank, body: Callable[[], None], before_run: Callable[[int], None] | None) -> None:
        """See :class:`Runner`; ``before_run`` is not called, as it would be at each switch."""
        rank.execution = InGreenlet(greenlet(body, self._turns.main))

    def run(self) -> None:
        """See :class:`Runner`."""
        turns = self._turns
        ready, failed = turns.ready, turns.failed
        pop = ready.popleft
        resumed = 0
        while ready:
            target, error = pop()
            resumed += 1
            if error is None:
                target.switch()
            elif not target.dead:
                target.throw(error)
            if failed:
                break
        turns.resumed += resumed

    def running(self, ranks: Sequence[Rank]) -> list[int]:
        """See :class:`Runner`: the one without a frame of its own, which the thread has."""
        return [rank.index for rank in ranks if rank.greenlet and rank.greenlet.gr_frame is None]

    def frame_of(self, rank: Rank) -> FrameType | None:
        """See :class:`Runner`."""
        frame: FrameType | None = rank.greenlet.gr_frame if rank.greenlet else None
        return frame or (frame_of_thread(self._thread) if rank.greenlet else None)

    def stop(self, error: NoProgressError, attempt: int) -> None:
        """See :class:`Runner`. A thread cannot be given up which is main's, too: it is asked again and again."""
        self._raise(error)

    @contextmanager
    def watched(self, standstill: Standstill | None) -> Iterator[None]:
        """See :class:`Runner`. A rank that waits in C is woken by a signal, whose handler raises what it ends with."""
        if standstill is None:
            yield
            return
        self._wakes = threading.current_thread() is threading.main_thread()
        before: Any = signal.signal(_WAKES, self._woken) if self._wakes else None
        try:
            with Watchdog(standstill).watching():
                yield
        finally:
            if self._wakes:
                self._wakes = False
                signal.signal(_WAKES, before)

    def _woken(self, signum: int, frame: FrameType | None) -> None:
        error, self._ends_with = self._ends_with, None
        if error is not None:
            raise error

    def _raise(self, error: BaseException) -> None:
        """In the watchdog's thread: raise it in the ranks' one."""
        if self._wakes:
            self._ends_with = error
            signal.pthread_kill(self._thread, _WAKES)
        else:
            raised_in(self._thread, error)

    def blocked(self, ranks: Sequence[Rank], stack_of: Callable[[int], str], seconds: float) -> None:
        """See :class:`~kernbench.scheduler.standstill.Stoppable`. A lock that only another rank could release is the end of the
        run: the ranks have one thread."""
        running = self.running(ranks)
        mine = next((each.native_id for each in threading.enumerate() if each.ident == self._thread), 0)
        task = Path("/proc/self/task", str(mine))
        if len(running) != 1 or len(ranks) < 2 or not sleeps(task):
            return
        report = (
            f"rank {running[0]} has been blocking the thread that all ranks share for {seconds:.3g} s of wall-clock time, and "
            f"no other rank can run meanwhile.\n{stack_of(running[0]).rstrip()}\nRanks that wait for each other by queues, "
            "pipes, locks or sockets need isolation='carrier' (the default)"
        )
        tell(report)
        others = [each for each in threading.enumerate() if each.ident != self._thread and each.name != WATCHDOG_THREAD]
        if waits_for_lock(task, private=False) and not others and not has_children(Path("/proc/self")):
            self._raise(HiddenBlockingError(report))


class CarrierRunner(Runner):
    """Ranks are carriers. One that waits hands the baton to the next itself, whom it picks as main would (ADR 0047)."""

    threads = True

    def __init__(self, turns: Turns) -> None:
        self.baton = Baton(self._next)
        self._turns = turns
        self._carriers: dict[object, Carrier] = {}  # by their fronting greenlets
        self._running = False
        self._thread = threading.get_ident()
        self._picked: Entry | None = None  # by a carrier, for main to resume
        self._adopted = False
        self._stuck: tuple[BaseException | None, TracebackType | None] = None, None  # of a carrier that was given up

    def take(self, rank: Rank, body: Callable[[], None], before_run: Callable[[int], None] | None) -> None:
        """See :class:`Runner`; ``before_run`` is called with the rank's index whenever that rank is about to run."""
        self._take(rank, body, before_run=before_run)

    def adopt(self, rank: Rank, thread: threading.Thread) -> Carrier:
        """Let ``thread``, which runs already, be ``rank``'s: it calls :meth:`.Carrier.enter` and :meth:`.Carrier.leave`."""
        self._adopted = True
        return self._take(rank, None, thread=thread)

    def take_side(self, side: SideThread, crew: Crew) -> Carrier:
        """Give a further thread of a rank its turns: it calls :meth:`.Carrier.enter` and :meth:`.Carrier.leave`."""
        index = side.rank
        bind = self._turns.rank_by_greenlet.__setitem__
        carrier = Carrier(
            index, None, self._turns.main, self.baton, on_bound=lambda root: bind(root, index),
            before_run=crew.carrier.before_run, crew=crew,
        )  # fmt: skip
        side.execution = carrier
        self._carriers[carrier.greenlet] = carrier
        return carrier

    def drop_side(self, side: SideThread) -> None:
        """It has ended."""
        self._carriers.pop(side.greenlet, None)

    def _take(self, rank: Rank, body: Callable[[], None] | None, **how: Any) -> Carrier:
        index = rank.index
        bind = self._turns.rank_by_greenlet.__setitem__
        carrier = Carrier(index, body, self._turns.main, self.baton, on_bound=lambda root: bind(root, index), **how)
        rank.execution = self._carriers[carrier.greenlet] = carrier
        return carrier

    def waitable(self) -> object:
        """The fronting greenlet, in a carrier's thread."""
        carrier = current_carrier()
        return getcurrent() if carrier is None else carrier.greenlet

    def suspend(self) -> None:
        """See :class:`Runner`."""
        carrier = current_carrier()
        if carrier is None:
            self._turns.main.switch()
        else:
            carrier.switch_to_main()

    def run(self) -> None:
        """See :class:`Runner`."""
        turns = self._turns
        self._running = True
        try:
            while turns.ready or self._picked is not None:
                (target, error), self._picked = self._picked or turns.ready.popleft(), None
                turns.resumed += 1
                if error is None:
                    target.switch()
                elif not target.dead:
                    target.throw(error)
                self._end_fronts()
                self.baton.end()
                while self.baton.broken:
                    turns.break_wait(self.baton.broken.pop().greenlet)
                if turns.failed:
                    break
        except BaseException as error:
            given_up, place = self._stuck
            if error is given_up:
                raise error.with_traceback(place) from None
            raise
        finally:
            self._running = False
            self._stuck = None, None

    def interrupt(self, end: Callable[[], None]) -> None:
        """See :class:`Runner`. What is raised while a front goes to main, or comes from there, would be its rank's: then main
        raises it, or the front as soon as it waits."""
        if getcurrent() in self._carriers and not self.baton.is_lent:
            self.baton.ending = end
        else:
            end()

    def _next(self) -> Carrier | None:
        """In a carrier's thread that is about to wait: pick the next rank, as main would.

        None if it is main's turn: no rank is ready, one has failed, or the next one is not a carrier that runs.
        """
        turns = self._turns
        if not self._running or turns.failed or turns.interrupted or not turns.ready or self.baton.broken:
            return None
        entry = turns.ready.popleft()
        target, error = entry
        carrier = self._carriers.get(target)
        if error is not None or carrier is None or not carrier.started or carrier.finished:
            self._picked = entry
            return None
        turns.resumed += 1
        if carrier.before_run is not None:
            carrier.before_run(carrier.index)
        return carrier

    def _end_fronts(self) -> None:
        """Main has the baton back: let the fronts of carriers that have ended meanwhile end too."""
        ended = self.baton.ended
        while ended:
            front = ended.pop(0).greenlet
            if not front.dead:
                front.switch()

    def unwind(self, on: bool) -> None:
        """See :class:`Runner`."""
        self.baton.unwinding = on

    def settle(self) -> None:
        """See :class:`Runner`."""
        self._end_fronts()
        self._picked = None
        self.baton.end()

    @property
    def says_standstill(self) -> bool:  # type: ignore[override]
        """See :class:`Runner`: a program that is alone keeps no rank waiting."""
        return not self._adopted

    def watched(self, standstill: Standstill | None) -> AbstractContextManager[None]:
        """A :class:`Watchdog` watches the holder of the baton; a program that is alone keeps no rank waiting."""
        if self._adopted:
            limited = standstill is not None and standstill.limit is not None
            return Watchdog(standstill).watching() if limited else nullcontext()
        return Watchdog(standstill, self.baton, self._carriers.values(), self._give_up).watching()

    @property
    def runs_side(self) -> bool:
        """See :class:`Runner`."""
        holder = self.baton.holder
        return holder is not None and holder.is_side

    def running(self, ranks: Sequence[Rank]) -> list[int]:
        """See :class:`Runner`: the one that has the baton."""
        holder = self.baton.holder
        return [] if holder is None else [holder.index]

    def frame_of(self, rank: Rank) -> FrameType | None:
        """See :class:`Runner`: where the thread is that has the baton, if it is one of this rank's, else its own."""
        holder = self.baton.holder
        return (holder if holder is not None and holder.index == rank.index else rank.execution).frame()

    def stop(self, error: NoProgressError, attempt: int) -> None:
        """See :class:`Runner`."""
        holder = self.baton.holder
        if holder is None:
            raised_in(self._thread, error)
        elif attempt and not holder.is_ending and not self._adopted:
            self.baton.given_up = True
            self._give_up(holder, error)
        elif not holder.is_ending and holder.thread.ident is not None:
            raised_in(holder.thread.ident, error)

    def _give_up(self, carrier: Carrier, error: BaseException) -> None:
        """In any thread, while ``carrier`` has the baton and waits for ever: go on without it; main raises ``error``, whose
        traceback ends with the lines at which the carrier is."""
        self._stuck = error, traceback_to(carrier.frame())
        carrier.stuck = True
        self._turns.interrupted = True
        self.baton.fail(error)
