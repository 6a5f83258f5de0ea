"""Threads of ranks that take no turns (daemons, until they ask for one): what is known of them from outside.

Virtual time waits for one that has begun, or gone on, until it comes to rest. When nothing else can happen, one that still does
something is waited for.
"""

from __future__ import annotations

import threading
import weakref
from _thread import allocate_lock
from collections.abc import Callable, Collection
from typing import Any

from kernbench.scheduler.crew import Crew
from kernbench.scheduler.watchdog import is_elsewhere, place_of
from kernbench.simulation.time.arrivals import Arrivals

LOOK = 0.05
"""Seconds of the machine's time between two looks at threads that take no turns."""

QUIET = 20
"""Looks in a row that find such a thread asleep, after which nothing is expected of it if no other waits for one."""

_MOMENT = 5e-3
"""Seconds of a processor that it may have used between two of them."""

GLANCE = 0.02
"""Seconds of the machine's time between two looks at a thread that has just begun, or gone on, without a turn."""

_NOWHERE = object()
"""The place of a thread that has not been looked at."""

_MOST_GLANCES = 250
"""Of those, as many as are waited for: a thread that goes round never rests."""


class _Rest:
    """What a thread without a turn waits for: a lock, whose release has it go on.

    Attributes:
        held: the lock.
        told: whether it has been released.
    """

    def __init__(self, threads: FreeThreads) -> None:
        self.told = False
        self.held = allocate_lock()
        self.held.acquire()
        self._threads = threads
        self._thread = threading.current_thread()

    def release(self) -> None:
        """In any thread."""
        self.told = True
        self._threads.stirs(self._thread)
        self.held.release()


class FreeThreads:
    """Those of one simulation's ranks.

    Attributes:
        rests: how often one has been found to have done something and come to rest.
    """

    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals
        self._free: list[tuple[Crew, threading.Thread]] = []
        self._stirring: set[threading.Thread] = set()  # they have not come to rest since they began, or went on
        self._resting: dict[int | None, Any] = {}
        self._places: weakref.WeakKeyDictionary[threading.Thread, tuple[Any, int]] = weakref.WeakKeyDictionary()
        self.rests = 0

    def clear(self) -> None:
        """Forget all of them."""
        self._free.clear()
        self._stirring.clear()

    # -- in any thread -----------------------------------------------------------------------------------------------

    def watch(self, crew: Crew, thread: threading.Thread) -> None:
        """A daemon has begun, which takes no turns yet."""
        self._free = [each for each in self._free if each[1].is_alive() or each[1].ident is None]
        self._free.append((crew, thread))
        self._stirring.add(thread)

    def has(self, crew: Crew) -> bool:
        """Whether a daemon of the crew runs that takes no turns: it may be about to do something."""
        return any(each is crew and (thread.is_alive() or thread.ident is None) for each, thread in self._free)

    def unwatch(self) -> None:
        """The running thread has asked for turns: until then it did something."""
        me = threading.current_thread()
        self._free = [each for each in self._free if each[1] is not me]
        self._settles(me)

    def _settles(self, thread: threading.Thread) -> None:
        """In any thread: one without a turn has come to rest, or asked for turns."""
        if thread in self._stirring:
            self._stirring.discard(thread)
            self._arrivals.put(None)

    def stirs_still(self) -> bool:
        """Whether the running thread takes no turns and has not rested since it began, or went on."""
        return threading.current_thread() in self._stirring

    def rest(self) -> tuple[Any, Callable[[], bool]]:
        """In a thread that takes no turns: a lock to wait for by what comes with it, of which nothing is expected meanwhile."""
        lock, me = _Rest(self), threading.current_thread()

        def wait() -> bool:
            self._resting[me.ident] = lock.held
            self._settles(me)
            if lock.told:  # meanwhile
                self.stirs(me)
            try:
                return lock.held.acquire()
            finally:
                self._resting.pop(me.ident, None)

        return lock, wait

    def stirs(self, thread: threading.Thread) -> None:
        """In any thread: one without a turn, which had come to rest, goes on."""
        if any(each is thread for _, each in self._free):
            self._stirring.add(thread)

    # -- in main -----------------------------------------------------------------------------------------------------

    @property
    def stir(self) -> bool:
        """Whether any has begun, or gone on, and not come to rest."""
        return bool(self._stirring)

    def rested(self) -> None:
        """In main: a thread that takes no turns has done something."""
        self.rests += 1

    def let_rest(self) -> None:
        """While no thread has a turn: wait for those that have begun, or gone on, without one: until they rest, wait for the
        world outside, have ended or asked for turns. One that goes round is not waited for for long."""
        self.rested()
        places: dict[threading.Thread, Any] = {}
        for _ in range(_MOST_GLANCES):
            self._arrivals.take(GLANCE)
            for thread in list(self._stirring):
                before, places[thread] = places.get(thread, _NOWHERE), place_of(thread)
                if not thread.is_alive() or not is_elsewhere(before, places[thread]):
                    self._stirring.discard(thread)
            if not self._stirring:
                return
        self._stirring.clear()

    def is_busy(self, listening: Collection[int | None], *, overdue: bool = False) -> bool:
        """Whether a thread that takes no turns may do something, as far as is known.

        If a thread of its rank waits for others, of which nothing has come yet (``listening``), it may; else if it has not
        slept for a while, but for moments (a server that looks twice a second whether it is to end has nothing to do).

        Args:
            overdue: what is waited for has had its time already: a shorter while will do.
        """
        busy = False
        for crew, thread in self._free:
            lock = self._resting.get(thread.ident)
            if crew.closed or not thread.is_alive() or (lock is not None and lock.locked()):
                continue
            if crew.rank in listening:
                busy = True
                continue
            place, (before, looks) = place_of(thread), self._places.get(thread, (_NOWHERE, 0))
            self._places[thread] = place, 0 if is_elsewhere(before, place, _MOMENT) else looks + 1
            busy = busy or self._places[thread][1] <= (1 if overdue else QUIET)
        return busy
