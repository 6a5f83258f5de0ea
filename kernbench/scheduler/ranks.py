"""Ranks and their scheduler.

Each rank is a greenlet whose parent is main. Ranks never switch to each other: they switch to main, which picks the
next one from the ready queue. (A carrier that waits picks in main's stead: the same one, without main's thread.) What a
rank waits for is not this module's business; somebody calls :meth:`RankScheduler.make_ready` when the wait is over.

Other shapes were tried. Driving the simulation from inside a rank nests re-entry (a rank resumed from within another
rank's drain) and orphans kernels whose parent greenlet has ended; a generator-based scheduler needs ``yield`` in every
function of a user's program; OS threads alone are neither deterministic nor able to tell a deadlock from a slow rank.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import functools
import signal
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from greenlet import GreenletExit, getcurrent, greenlet

from kernbench.errors import KernbenchError
from kernbench.scheduler.carrier import Baton, Carrier, current_carrier, one_core, settled_heap
from kernbench.scheduler.policy import Entry, Policy, RoundRobin
from kernbench.scheduler.watchdog import Watchdog

_UNWIND_ATTEMPTS = 100


class RankState(enum.Enum):
    """Where a rank is in its life."""

    READY = "ready"
    RUNNING = "running"
    WAITING = "waiting"
    DONE = "done"
    FAILED = "failed"
    ABORTED = "aborted"


class Rank:
    """One rank: its greenlet, its state and, in the end, its outcome."""

    __slots__ = ("carrier", "error", "greenlet", "index", "state", "traceback")

    def __init__(self, index: int) -> None:
        self.index = index
        self.state = RankState.READY
        self.greenlet: Any = None
        self.carrier: Carrier | None = None
        self.error: BaseException | None = None
        self.traceback = ""

    @property
    def live(self) -> bool:
        return self.state in (RankState.READY, RankState.RUNNING, RankState.WAITING)

    def __repr__(self) -> str:
        return f"<Rank {self.index} {self.state.value}>"


class RankObserver(Protocol):
    """Is told when ranks begin and end; where they do."""

    def rank_started(self, rank: Rank) -> None:
        """A rank's body is about to run."""

    def rank_ended(self, rank: Rank) -> None:
        """A rank is done or aborted, also one that has never started."""

    def rank_failed(self, rank: Rank) -> None:
        """A rank has failed, maybe after it had ended."""


class RankScheduler:
    """Runs rank greenlets, exactly one at a time, in the order that ``policy`` gives.

    Must be created and driven on the main greenlet.
    """

    def __init__(self, policy: Policy | None = None) -> None:
        self.main = getcurrent()
        self.ready: Policy = policy if policy is not None else RoundRobin()
        self.ranks: list[Rank] = []
        self.rank_by_greenlet: dict[Any, int] = {}
        self.failed: list[Rank] = []
        self.live_count = 0
        self.aborting = False
        self._carried = False
        self._baton = Baton(self._next_carrier)
        self._picking = False
        self._picked: Entry | None = None
        self.resumed = 0
        """Resumptions so far: whether somebody has run since is a comparison of two readings."""
        self.interrupted = False
        self.observer: RankObserver | None = None
        self._refusals = 0
        self.before_switch: Callable[[], None] | None = None
        """Called in a rank that is about to wait; it may raise. None, nearly always: then a switch pays for nothing."""

    # -- life of ranks -----------------------------------------------------------------------------------------------

    def start(
        self,
        bodies: Sequence[Callable[[], None]],
        *,
        isolation: str,
        before_run: Callable[[int], None] | None = None,
    ) -> None:
        """Create one rank per body, all ready to run.

        Args:
            isolation: ``"carrier"`` or ``"greenlet"``.
            before_run: with carriers, called with the rank's index whenever that rank is about to run.
        """
        if self.live_count:
            raise KernbenchError("ranks are already running in this context: join them before starting more")
        self.ranks = [Rank(index) for index in range(len(bodies))]
        self.failed = []
        self.live_count = len(bodies)
        self._carried = isolation == "carrier"
        for rank, body in zip(self.ranks, bodies, strict=True):
            if isolation == "carrier":
                self._make_carrier(rank, body, before_run)
            else:
                rank.greenlet = greenlet(self._body_of(rank, body), self.main)
            self.rank_by_greenlet[rank.greenlet] = rank.index
            self.ready.append((rank.greenlet, None))

    def _make_carrier(self, rank: Rank, body: Callable[[], None], before_run: Callable[[int], None] | None) -> None:
        rank.carrier = Carrier(
            self._body_of(rank, body),
            f"kernbench-rank-{rank.index}",
            self.main,
            self._baton,
            on_bound=lambda root: self.rank_by_greenlet.__setitem__(root, rank.index),
            before_run=None if before_run is None else functools.partial(before_run, rank.index),
        )
        rank.greenlet = rank.carrier.greenlet

    def _body_of(self, rank: Rank, body: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            rank.state = RankState.RUNNING
            try:
                if self.observer is not None:
                    self.observer.rank_started(rank)
                body()
                rank.state = RankState.DONE
            except (KeyboardInterrupt, GreenletExit):
                if self.interrupted:  # Ctrl-C, and not the program's own: it ends the simulation
                    rank.state = RankState.ABORTED
                    raise
                rank.state = RankState.ABORTED if self.aborting else RankState.DONE
            except SystemExit as exit_:
                if self.aborting:
                    rank.state = RankState.ABORTED
                elif exit_.code in (None, 0):
                    rank.state = RankState.DONE
                else:
                    self.fail(rank, exit_)
            except BaseException as error:
                self.fail(rank, error)
            finally:
                self._unbind(rank)

        return run

    def fail(self, rank: Rank, error: BaseException) -> None:
        """Record ``error`` as the root cause of ``rank``'s failure."""
        rank.state = RankState.FAILED
        rank.error = error
        rank.traceback = _user_traceback(error)
        self.failed.append(rank)
        if self.observer is not None:
            self.observer.rank_failed(rank)

    def _unbind(self, rank: Rank) -> None:
        if self.observer is not None and rank.state in (RankState.DONE, RankState.ABORTED):
            self.observer.rank_ended(rank)
        if self.rank_by_greenlet.pop(rank.greenlet, None) is None:
            return  # given up before, and ended after all
        self.live_count -= 1
        if rank.carrier is not None:
            self.rank_by_greenlet.pop(rank.carrier.root, None)

    def holder(self) -> Rank | None:
        """The rank whose carrier has the baton, whoever asks."""
        carrier = self._baton.holder
        return None if carrier is None else next((rank for rank in self.ranks if rank.carrier is carrier), None)

    def give_up(self, rank: Rank, error: BaseException) -> None:
        """In any thread, while ``rank`` has the baton and waits for ever: go on without it; main raises ``error``."""
        assert rank.carrier is not None
        rank.carrier.stuck = True
        self.interrupted = True
        self._baton.fail(error)

    def current_rank(self) -> int | None:
        """Index of the rank that is running, or None in main (and in a kernel)."""
        return self.rank_by_greenlet.get(getcurrent())

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """While ranks run: tell Ctrl-C, which ends the simulation, from a KeyboardInterrupt that a rank raises itself,
        which ends that rank (as it ends a process that ``torch.multiprocessing`` has spawned)."""
        self.interrupted = False
        if (
            threading.current_thread() is not threading.main_thread()
            or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        ):
            yield  # somebody else handles it, or it cannot reach us
            return

        def interrupt(signum: int, frame: Any) -> None:
            self.interrupted = True
            raise KeyboardInterrupt

        signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self.interrupted = False

    # -- switching ---------------------------------------------------------------------------------------------------

    def waitable(self) -> Any:
        """The greenlet to resume when whoever runs now is to go on: a carrier's fronting greenlet in its thread."""
        carrier = current_carrier()
        if carrier is None:
            return getcurrent()
        return carrier.greenlet

    def switch_to_main(self) -> None:
        """Suspend whoever runs now until somebody resumes it. In a raw greenlet too."""
        if self.aborting:
            self._refusals += 1
            if self._refusals <= _UNWIND_ATTEMPTS:
                raise SystemExit
            # it swallows every one: let go of it
        carrier = current_carrier()
        if carrier is not None:
            carrier.switch_to_main()
        else:
            self.main.switch()

    def pause(self) -> None:
        """Let the other runnable ranks go first."""
        if self.before_switch is not None:
            self.before_switch()
        if self.aborting or self._carried:
            self.ready.append((self.waitable(), None))
            self.switch_to_main()
        else:
            self.ready.append((getcurrent(), None))
            self.main.switch()

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """While ranks run: Ctrl-C ends the simulation, the collector looks at new objects only, and carriers share one core."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.interruptible())
            stack.enter_context(settled_heap())
            if self._carried:
                stack.enter_context(Watchdog(self).watching())
                stack.enter_context(one_core())
            yield

    def make_ready(self, target: Any, error: BaseException | None = None) -> None:
        """Let ``target`` (a greenlet) run again; with ``error``, raise that inside it."""
        self.ready.append((target, error))

    def run_ready(self) -> int:
        """In main: run until no greenlet is ready, or a rank has failed. Returns the number of resumptions."""
        if not self.ready and self._picked is None:
            return 0
        before = self.resumed
        if self._carried:
            self._run_carriers()
        else:
            self._run_greenlets()
        return self.resumed - before

    def _run_greenlets(self) -> None:
        ready = self.ready
        pop = ready.popleft
        failed = self.failed
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
        self.resumed += resumed

    def _run_carriers(self) -> None:
        self._picking = True
        try:
            while self.ready or self._picked is not None:
                (target, error), self._picked = self._picked or self.ready.popleft(), None
                self.resumed += 1
                if error is None:
                    target.switch()
                elif not target.dead:
                    target.throw(error)
                self._end_fronts()
                if self.failed:
                    break
        finally:
            self._picking = False

    def _next_carrier(self) -> Carrier | None:
        """In a carrier's thread that is about to wait: pick the next rank, as main would.

        None if it is main's turn: nobody is ready, a rank has failed, or the next one is not a carrier that runs.
        """
        if not self._picking or self.failed or self.interrupted or not self.ready:
            return None
        entry = self.ready.popleft()
        target, error = entry
        index = self.rank_by_greenlet.get(target)
        carrier = None if index is None else self.ranks[index].carrier
        if error is not None or carrier is None or not carrier.started:
            self._picked = entry
            return None
        self.resumed += 1
        if carrier.before_run is not None:
            carrier.before_run()
        return carrier

    def _end_fronts(self) -> None:
        """Main has the baton back: let the fronts of carriers that have ended meanwhile end too."""
        ended = self._baton.ended
        while ended:
            front = ended.pop(0).greenlet
            if not front.dead:
                front.switch()

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
        stubborn = []
        raw = [target for target in others if target not in self.rank_by_greenlet]
        try:
            self.ready.clear()
            for rank in self.ranks:
                if rank.live and not self._unwind(rank):
                    stubborn.append(rank.index)
            for target in raw:
                _unwind_raw(target)
        finally:
            self._end_fronts()
            self._picked = None
            self.ready.clear()
            self.aborting = False
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
                if rank.carrier is not None and rank.carrier.stuck:  # its body did not end
                    rank.state = RankState.ABORTED
                    self._unbind(rank)
                return True
            _keep_for_ever(target)
        # else never started: nothing to unwind
        rank.state = RankState.ABORTED
        self._unbind(rank)
        return not target


def _keep_for_ever(target: Any) -> None:
    """A greenlet that swallows its unwinding would go on swallowing, in an endless loop, when it is collected."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(target))


def _unwind_raw(target: Any) -> None:
    """End a suspended greenlet that is no rank. What it raises meanwhile is lost: nobody waits for it any more."""
    if target and not target.dead:
        with contextlib.suppress(SystemExit, Exception):
            target.throw(GreenletExit)


def _user_traceback(error: BaseException) -> str:
    """The traceback of ``error`` without this module's own frame at its head."""
    frames = error.__traceback__
    if frames is not None and frames.tb_next is not None:
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames))
