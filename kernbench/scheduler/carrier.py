"""A carrier: the OS thread that runs one rank's body, behind a baton.

Torch keeps much of its state per OS thread (grad mode, autocast, dispatch modes, the autograd engine's ready queue)
and some of its C++ frames must leave a thread in the order in which they entered it. A rank whose body switches
greenlets inside such frames would corrupt them. So each rank's greenlet *fronts* an OS thread: the greenlet scheduler
stays the only scheduler, and the thread runs exactly while its greenlet would.

The baton is a lock per carrier and one for main. Handing it over blocks the giver until it comes back, so exactly one
thread runs at a time and the order of execution is as deterministic as with plain greenlets. A rank that waits while
others are ready hands the baton to the next of them, which is the one that main would resume: that saves the way through
main's thread, one of two changes of thread (ADR 0047).
"""

from __future__ import annotations

import contextvars
import ctypes
import threading
from _thread import allocate_lock
from collections.abc import Callable
from threading import Thread  # a program may replace the name
from types import FrameType
from typing import Any, NoReturn

from greenlet import getcurrent, greenlet

from kernbench.errors import KernbenchError, NoProgressError
from kernbench.scheduler.host_effects import start_thread
from kernbench.scheduler.standstill import tell
from kernbench.scheduler.thread_effort import Effort
from kernbench.scheduler.thread_frames import frame_of_thread, handled_by_thread


class _OfThread(threading.local):
    carrier: Carrier | None = None  # a default in the class: looking for what is not there takes a microsecond


_local = _OfThread()


def current_carrier() -> Carrier | None:
    """The carrier whose thread is running, or None on the main thread (and on a user's own threads)."""
    return _local.carrier


PATIENCE = 2.0
"""Seconds of the machine's time for which a rank that is to be unwound may still wait for what the simulation does not see."""

_alone: list[bool] = []
"""Whether this process is one rank's alone: not empty then."""


def be_alone() -> None:
    """From here on this process is one rank's."""
    _alone.append(True)


def has_own_thread() -> bool:
    """Whether what torch keeps per thread is the running rank's own: it has a carrier, or the process, to itself."""
    return _local.carrier is not None or bool(_alone)


class Baton:
    """Who runs: main, or the thread of one carrier.

    Args:
        choose: called in the thread of a carrier that is about to wait: who gets the baton next, None for main.

    Attributes:
        holder: the carrier that has it, None for main.
        ended: carriers whose body has ended and whose front has not been notified.
        unwinding: whether the thread that gets it is to end.
        given_up: whether one has been given up that goes on.
        is_lent: whether main waits until it is given back, and may be interrupted.
        ending: raises what ends the run, once main may be interrupted.
        broken: carriers of threads of the program's own whose handler of a signal has raised while they waited for their turn.
    """

    def __init__(self, choose: Callable[[], Carrier | None]) -> None:
        self.holder: Carrier | None = None
        self.ended: list[Carrier] = []
        self.broken: list[Carrier] = []
        self.unwinding = self.given_up = self.is_lent = False
        self.ending: Callable[[], None] | None = None
        self._choose = choose
        self._failure: BaseException | None = None
        self._home = allocate_lock()
        self._home.acquire()

    def lend(self, carrier: Carrier) -> None:
        """In main: let ``carrier``'s thread run; return when a thread gives the baton back, which need not be that one.

        Raises what :meth:`fail` was called with. One that is to be unwound while it waits for the world is given up after a
        while.
        """
        self.is_lent = True
        try:
            self.end()
            self._give_to(carrier)
            if not carrier.started:
                carrier.start()  # it finds that it is its turn: the body runs without another change of thread
            if self.unwinding and not carrier.away:
                self._await_end()
            elif not self._home.acquire(timeout=PATIENCE if carrier.away else -1):
                carrier.stuck, self.holder = True, None
        finally:
            self.is_lent = False
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def end(self) -> None:
        """In main: raise what ends the run, if a signal has come that does."""
        end, self.ending = self.ending, None
        if end is not None:
            end()

    def _await_end(self) -> None:
        """The thread that has the baton has been asked to end: it has what time it takes for that, but not to go on."""
        while not self._comes_home(GRACE):
            if self.holder is not None and not self.holder.is_ending:
                self.recall()
                return

    def _comes_home(self, seconds: float) -> bool:
        """Whether the holder gives the baton back before it has had that long; it has as long as it wants while the system lets
        it wait for a processor."""
        holder = self.holder
        effort = None if holder is None else Effort(holder.thread)
        left = seconds
        while left > 0:
            if self._home.acquire(timeout=left):
                return True
            left -= left if effort is None else max(effort.of(left), _LEAST)
        return False

    def pass_on(self) -> None:
        """In a carrier's thread, which goes on to wait for its turn."""
        following = self._choose()
        if following is None:
            self.give_back()
        else:
            self._give_to(following)

    def _give_to(self, carrier: Carrier) -> None:
        self.holder = carrier
        if carrier.turn.locked():  # else it has been called before, and was interrupted before it heard
            carrier.turn.release()

    def give_back(self) -> None:
        """In a carrier's thread: main runs."""
        self.holder = None
        self._home.release()

    def fail(self, error: BaseException) -> None:
        """In any thread, while the holder waits for ever: main runs, and raises ``error``."""
        self._failure = error
        self._home.release()

    def recall(self) -> None:
        """In main, interrupted while it waited: get the baton back by unwinding its holder.

        That thread may be in any Python code of the user, or have just given the baton back. It is asked to end, and if it does
        not, once more; then it is given up, unless it is doing what it has to at its end (a ``finally``).
        """
        attempts, waited = 0, 0.0
        while (holder := self.holder) is not None and waited < _LONGEST_END:
            if holder.stuck:
                return  # an exception would reach it between taking its lock and the block that gives it back
            if not holder.is_ending:
                if attempts == _ATTEMPTS:
                    break
                attempts += 1
                if holder.thread.ident is not None:
                    identity = ctypes.c_ulong(holder.thread.ident)
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(identity, ctypes.py_object(SystemExit))
            if self._comes_home(GRACE / _ATTEMPTS):
                return
            waited += GRACE / _ATTEMPTS
        if self.holder is None:  # it has been given back, or no thread could be started
            self._home.acquire(timeout=0.1)
        else:  # it waits where no exception reaches it, or swallows it: go on without it
            self.holder.stuck = self.given_up = True
            tell(
                f"rank {self.holder.index} was asked to end, twice, and goes on: it is given up. An 'except BaseException' "
                "(or a bare 'except') inside a loop of the program swallows SystemExit, or it is in a call that does not return"
            )


GRACE = 0.6
"""Seconds that a rank has to end, once it has been asked to, before it is given up; see :class:`.Effort`."""

_LEAST = 0.01
"""Seconds that pass in any case while the machine is busy: a thread that it never lets run is given up, too, in the end."""

_ATTEMPTS = 2
"""How often it is asked to."""

_NESTED = 8
"""Exceptions that it may handle within one another meanwhile."""

_LONGEST_END = 10.0
"""Seconds that it has if it is in a ``finally``, or handles the exception that asks it to end."""


class Carrier:
    """Runs ``body`` on its own OS thread whenever :meth:`front`, which is a rank's greenlet body, is running.

    Args:
        index: the number of the rank, by which debuggers show the thread.
        body: what the thread executes; it must not raise.
        main: the greenlet that runs the scheduler.
        baton: shared by the carriers of one world.
        on_bound: called in the thread, first, with the thread's own greenlet.
        before_run: called with ``index`` each time that the thread is about to get the baton, by its giver.
        thread: one that runs already, to which :meth:`enter` and :meth:`leave` are left; there is no ``body`` then.
        crew: of a further thread of a rank (:mod:`.crew`): those that it is one of. It calls these two itself, too.

    Attributes:
        index: the number of the rank.
        greenlet: the fronting greenlet.
        root: the thread's own greenlet, which is what ``greenlet.getcurrent()`` returns inside the rank.
        turn: what the thread waits for; whose turn it is, the baton says.
        started: whether its thread has been made.
        finished: whether its body has ended, or no thread could be made.
        stuck: whether the thread is known to wait for ever, and cannot be unwound.
        crew: the threads of the rank (:class:`.crew.Crew`), once its program has started one.
        is_side: whether it runs a further thread of a rank.
        away: whether it does that now.
        ends_with_body: whether the thread of a side thread ends with its body: others wait for that.
        parks: of a side thread: called when it is to have no turn any more.
        outside: what the thread is to do while it has not the baton, the next time that it waits (it waits for the world).
    """

    outside: Callable[[], None] | None = None
    parks: Callable[[], None]

    def __init__(
        self,
        index: int,
        body: Callable[[], None] | None,
        main: Any,
        baton: Baton,
        *,
        on_bound: Callable[[Any], None],
        before_run: Callable[[int], None] | None = None,
        thread: threading.Thread | None = None,
        crew: object = None,
    ) -> None:
        self.index = index
        self.greenlet: Any = greenlet(self.front, main)
        self.root: Any = None
        self.turn = allocate_lock()
        self.turn.acquire()
        self.crew: Any = crew
        self.is_side = crew is not None
        self.started = thread is not None
        self.before_run = before_run
        self._body = body
        self._main = main
        self._baton = baton
        self._on_bound = on_bound
        self.finished = False
        self.stuck = False
        self.away = False
        self.ends_with_body = False
        self._ending = False
        self._thrown: BaseException | None = None
        self._adopted = thread is not None or self.is_side
        self.thread = thread or Thread(
            target=contextvars.copy_context().run, args=(self._run,), name=f"kernbench-rank-{index}", daemon=True
        )

    def front(self) -> None:
        """Body of the fronting greenlet: lend the baton to the thread until it has finished."""
        while not self.finished and not self.stuck:
            if self.before_run is not None:
                self.before_run(self.index)
            try:
                self._baton.lend(self)
            except BaseException as error:  # KeyboardInterrupt while ranks run, or no thread
                self._baton.recall()
                self._leave(self._main.throw, error)
            else:
                if not self.finished:
                    self._leave(self._main.switch)
        if not self.stuck and not self._adopted and self.thread.ident is not None:
            self.thread.join()

    def start(self) -> None:
        """In main: create the thread. Raises KernbenchError if the system has no more."""
        self.started = True
        if self.is_side:
            return  # its thread is there, or on its way
        try:
            start_thread(self.thread, f"rank {self.index}")
        except KernbenchError:
            self.finished = True
            self._baton.holder = None
            raise

    def _leave(self, to_main: Callable[..., Any], *args: object) -> None:
        """Go to main; what is thrown in on return is the thread's to raise."""
        try:
            to_main(*args)
        except BaseException as thrown:
            self._thrown = thrown

    def switch_to_main(self) -> None:
        """Called on the thread: give the baton away, and return when the rank is resumed.

        Raises whatever was thrown into the fronting greenlet meanwhile.
        """
        if self.stuck or (self.is_side and self.crew.closed):
            self._end()  # it was given up, and has woken up after all; or its rank has ended
        crew = self.crew
        own = None if crew is None else crew.read()
        self.away = self.outside is not None
        try:
            self._baton.pass_on()
            if self.outside is not None:
                self._be_outside()
            self._await_turn()
        except BaseException:  # of Baton.recall, at any place in there: what follows is not for now, but for its turn
            self._await_turn()
            self._thrown = None
            raise
        if crew is not None:
            crew.write(own)
        if self._thrown is not None:
            thrown, self._thrown = self._thrown, None
            raise thrown
        if self.is_side and crew.closed:
            raise SystemExit

    def _end(self) -> NoReturn:
        """Have the thread end. A daemon that goes on nevertheless stands still then, as all do when Python ends."""
        if self._ending and self.is_side and self.thread.daemon and not self.stuck:
            self.parks()
            still = allocate_lock()
            still.acquire()
            still.acquire()
        self._ending = True
        raise SystemExit

    def _be_outside(self) -> None:
        """Without the baton: the thread is no rank's, and asks nothing of the simulation."""
        outside, self.outside = self.outside, None
        assert outside is not None
        _local.carrier = None
        try:
            outside()
        finally:
            _local.carrier, self.away = self, False

    @property
    def thread_id(self) -> int | None:
        """See :class:`~kernbench.scheduler.execution.RankExecution`."""
        return self.thread.ident

    def frame(self) -> FrameType | None:
        """See :class:`~kernbench.scheduler.execution.RankExecution`: where the thread is."""
        if self.finished:  # another thread may have its number by then
            return None
        return frame_of_thread(self.thread.ident)

    def close(self) -> None:
        """In main, of a further thread: its rank has ended. If it waits for the world, or is to come, it is left alone."""
        self.crew.closed = True
        if self.holds_nothing:
            self.give_up()

    @property
    def is_ending(self) -> bool:
        """In any thread: whether the rank handles what has asked it to end: it is in a ``finally``, or an ``except``."""
        raised = handled_by_thread(self.thread.ident)
        for _ in range(_NESTED):
            if isinstance(raised, SystemExit | NoProgressError):
                return True
            raised = getattr(raised, "__context__", None)
        return False

    @property
    def holds_nothing(self) -> bool:
        """Whether the thread is not there, or waits for what the simulation does not see, and so cannot be unwound now."""
        return self.away or (self.root is None and self.thread.ident is None)

    def await_end(self) -> None:
        """In main, when the body has ended: wait for the thread, if that ends with it."""
        if self.ends_with_body and self.thread.ident is not None:
            self.thread.join()

    def give_up(self) -> None:
        """In main: go on without the thread, which has not the baton, and which ends when it wants to have it."""
        self.stuck = True
        if self.turn.locked():
            self.turn.release()

    def _await_turn(self) -> None:
        """Return when it is its turn. What :meth:`Baton.recall`, or a handler of signals, raises here is raised then: it comes
        soon, as what the thread waits for of others is not waited for any longer."""
        raised: BaseException | None = None
        while self._baton.holder is not self:
            if self.is_side and self.stuck:
                raise SystemExit
            try:
                self.turn.acquire()
            except BaseException as error:
                raised = error
                if self._adopted and not self.is_side:
                    self._baton.broken.append(self)
        if raised is not None:
            raise raised

    def _run(self) -> None:
        assert self._body is not None
        self.enter()
        try:
            self._body()
        finally:
            self.leave()

    def enter(self) -> None:
        """In the thread: run the rank, as soon as it is its turn. Raises SystemExit in a side thread that is not to run."""
        if self.is_side:
            self.thread = threading.current_thread()
        self._await_turn()
        _local.carrier = self
        self.root = getcurrent()
        self._on_bound(self.root)

    def leave(self) -> None:
        """In the thread: the rank has ended."""
        self.finished = True
        self.before_run = None
        del self._body, self._on_bound  # they lead to the world, which is to be forgotten
        self.root = None  # it ends with the thread
        _local.carrier = None
        if not self.stuck:
            self._baton.ended.append(self)
            self._baton.give_back()
