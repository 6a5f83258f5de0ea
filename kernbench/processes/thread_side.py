"""The threads of a rank that has a process: each of them has a number, and takes turns where the simulation is.

One of them runs at a time. One that waits has said for what; which goes on next, the simulation says, by the number in its
reply. Replies are read by the thread that has waited last, which wakes up whose they are.
"""

from __future__ import annotations

import threading
from _thread import allocate_lock
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from kernbench.processes.uplink import Settle, Uplink
from kernbench.scheduler.crew import Crew, TakesTurns
from kernbench.sim_engine import Condition
from kernbench.simulation.time.free_threads import LOOK
from kernbench.simulation.time.notices import SLEEP, THREAD_LOOKED_AT, Notice

REPLACED = (
    "crew",
    "begin",
    "admit",
    "ask",
    "linger",
    "close",
    "notice",
    "sleep",
    "look_again",
    "wait",
    "time",
    "tell",
    "outside",
    "meet",
)
"""Methods of a simulation's threads that a rank's process has of its own."""


class ThreadSide:
    """What is done here of :class:`.RankThreads`; ``side``: the way to the simulation."""

    def __init__(self, side: Uplink) -> None:
        self._side = side
        self._threads = side.simulation.threads
        self._watch, self._stirs = self._threads.free.watch, self._threads.free.stirs
        self._numbers, self._keys = count(1), count()
        self._awaited: dict[Notice, int] = {}
        self._limits: dict[int, float] = {}
        self._unheard = 0
        self._mains: Notice | None = None
        self._interrupted = False

    def install(self) -> None:
        """From here on this process's threads are the rank's; the running one is its own."""
        for name in REPLACED:
            setattr(self._threads, name, getattr(self, name))
        for name in ("watch", "stirs"):
            setattr(self._threads.free, name, getattr(self, name))
        self._side.turn.number = 0
        self._side.settle = self.settle
        signals = self._side.signals
        signals.held, signals.begun = self._interrupt, self._listen_for_signals
        if signals.handles:
            self._listen_for_signals()

    def _listen_for_signals(self) -> None:
        self._side.cast("watch")

    def linger(self, rank: int, name: str) -> None:
        """See :meth:`RankThreads.linger`."""
        self._side.cast("linger", name)
        self._side.send()

    def crew(self, rank: int, read: Callable[[], object], write: Callable[[Any], None]) -> Crew | None:
        """See :meth:`RankThreads.crew`."""
        side = self._side
        if side.apart or side.turn.number is None:
            return None
        if side.crew is None:
            side.crew = Crew(rank, read, write)
        return side.crew

    def begin(self, crew: Crew, name: str, daemon: bool, thread: threading.Thread | None, *, ready: bool) -> TakesTurns:
        """See :meth:`RankThreads.begin`."""
        turns = ProcessTurns(self._side, crew, next(self._numbers), name, daemon)
        if ready:
            self.admit(turns)
        return turns

    def admit(self, turns: ProcessTurns) -> None:
        """See :meth:`RankThreads.admit`."""
        self._side.cast("thread", turns.number, turns.name, turns.daemon)

    def ask(self, turns: ProcessTurns) -> None:
        """See :meth:`RankThreads.ask`."""
        self._say("thread", turns.number, turns.name, turns.daemon)
        self._threads.free.unwatch()

    def watch(self, crew: Crew, thread: threading.Thread) -> None:
        """See :meth:`.FreeThreads.watch`."""
        self._watch(crew, thread)
        self._side.cast("watch")

    def stirs(self, thread: threading.Thread) -> None:
        """See :meth:`.FreeThreads.stirs`."""
        self._stirs(thread)
        if self._side.has_turn:
            self._side.cast("watch")

    def close(self, crew: Crew) -> None:
        """See :meth:`RankThreads.close`: those that are left end with the process."""
        crew.closed = True

    def notice(self, awaits: str, rank: int | None = None) -> Notice:
        """See :meth:`RankThreads.notice`."""
        return Notice(self, Condition(awaits, self._side.rank))

    def sleep(self, seconds: float) -> None:
        """See :meth:`RankThreads.sleep`."""
        key = next(self._keys)
        self._limits[key] = seconds
        try:
            self._side.call("await_thread", key, SLEEP, seconds, False)
        finally:
            del self._limits[key]

    def look_again(self, *, again: bool, hopeless: bool) -> bool:
        """See :meth:`RankThreads.look_again`."""
        with self._awaiting(self.notice(THREAD_LOOKED_AT)) as key:
            return bool(self._side.call("look_again", key, again, hopeless))

    def wait(self, notice: Notice, seconds: float | None = None) -> bool:
        """See :meth:`RankThreads.wait`."""
        if notice.told:
            return True
        begin, left = self.time(), seconds
        while self._is_interrupted(notice, left) and (left is None or left > 0):
            left = None if seconds is None else seconds - (self.time() - begin)
        return notice.told

    def _is_interrupted(self, notice: Notice, seconds: float | None) -> bool:
        """Wait; whether that has ended for a signal alone."""
        with self._awaiting(notice) as key:
            if notice.told:  # by a thread without a turn, which did not find it among those that are waited for
                return False
            if seconds is not None:
                self._limits[key] = seconds
            try:
                self._side.call("await_thread", key, notice.condition.name, seconds)
            finally:
                self._limits.pop(key, None)
        return self._side.turn.number == 0 and self._interrupted and not notice.told

    @contextmanager
    def _awaiting(self, notice: Notice) -> Iterator[int]:
        """For the length of a block, the running thread waits for ``notice``: its number, by which it is released."""
        key = self._awaited[notice] = next(self._keys)
        mains = self._side.turn.number == 0
        if mains:
            self._mains, self._interrupted = notice, False
        try:
            yield key
        finally:
            if mains:
                self._mains = None
            del self._awaited[notice]

    def _interrupt(self) -> None:
        """A signal has come while the main thread waits: it goes on in its order, has the handler called, and waits again."""
        key = None if self._mains is None else self._awaited.get(self._mains)
        if key is not None:
            self._interrupted = True
            self._say("tell", key)

    def time(self) -> float:
        """See :meth:`RankThreads.time`."""
        return self._side.host.clock

    def tell(self, notice: Notice) -> None:
        """See :meth:`RankThreads.tell`."""
        key = self._awaited.get(notice)
        if key is None:
            return
        if self._side.has_turn:
            self._side.cast("tell", key)
        else:
            self._say("tell", key)

    def outside(self, awaits: str, work: Callable[[], object], *, own: bool = False) -> Any:
        """See :meth:`RankThreads.outside`."""
        with self._side.away(awaits, own=own):
            return work()

    def meet(self, awaits: str, ready: Callable[[], bool], seconds: float | None = None) -> bool:
        """See :meth:`RankThreads.meet`."""
        key = next(self._keys)
        self._side.looks[key] = ready
        try:
            return bool(self._side.call("meet", key, awaits, seconds))
        finally:
            del self._side.looks[key]

    def _say(self, *item: object) -> None:
        self._unheard += 1
        self._side.say(item, prompt=self._threads.free.stirs_still())

    def settle(self, how: Settle) -> bool:
        """While no thread has a turn: return when those that take none rest, and have said what they had to say; whether one
        did something until then."""
        pause, looks = allocate_lock(), 0
        pause.acquire()
        if how is Settle.BEFORE_TIME:
            self._threads.free.let_rest()
        while how is Settle.IDLE and self._is_busy(looks * LOOK):
            pause.acquire(timeout=LOOK)
            looks += 1
        self._unheard = 0
        return looks > 0

    def _is_busy(self, waited: float) -> bool:
        """Whether threads that take no turns may do something. If another one waits for one they may, until something or a
        thread that was away has come, or a limit has passed here, too."""
        overdue = any(limit < waited for limit in self._limits.values())
        come = self._unheard or self._side.returning
        listening = [self._side.rank] if self._awaited and not come and not overdue else []
        return self._threads.free.is_busy(listening, overdue=overdue)


class ProcessTurns:
    """A side thread's way into the scheduler's order, from a rank's process."""

    def __init__(self, side: Uplink, crew: Crew, number: int, name: str, daemon: bool) -> None:
        self.number = number
        self.name = name
        self.daemon = daemon
        self._side = side
        self._crew = crew

    def enter(self) -> None:
        """See :class:`~kernbench.scheduler.crew.TakesTurns`."""
        self._side.turn.number = self.number
        self._side.begin_turns()
        if self._crew.closed:
            self.leave()
            raise SystemExit

    def leave(self) -> None:
        """See :class:`~kernbench.scheduler.crew.TakesTurns`."""
        self._side.cast("thread_over", self._side.host.clock)
        self._side.send()
        self._side.turn.number = None
        self._side.hand_over()
