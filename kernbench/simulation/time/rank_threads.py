"""The threads of ranks: their turns, and what they wait for of each other and of the world outside.

A side thread takes turns as ranks do. What it waits for of another thread is a condition, as a collective is an operation:
which thread is resumed, and when, follows from the scheduler and virtual time, and none that can go on is forgotten.

What the simulation does not see (a pipe, a thread that takes no turns yet) is waited for when nothing else can happen, one
thing at a time: how quick it is changes nothing.
"""

from __future__ import annotations

import heapq
import math
import multiprocessing
import threading
import weakref
from _queue import Empty, SimpleQueue
from _thread import allocate_lock
from collections.abc import Callable, Collection
from contextlib import suppress
from itertools import count
from typing import Any, NamedTuple, Protocol

from greenlet import getcurrent

from kernbench.scheduler import RankScheduler, SideThread
from kernbench.scheduler.carrier import Carrier, current_carrier
from kernbench.scheduler.crew import Crew, TakesTurns, being_outside
from kernbench.scheduler.runners import CarrierRunner
from kernbench.scheduler.watchdog import is_elsewhere, place_of
from kernbench.sim_engine import Condition, GraphEngine
from kernbench.simulation.ranks.hosts import Hosts
from kernbench.simulation.time.wait_queue import Waits

LOOK = 0.05
"""Seconds of the machine's time between two looks at threads that take no turns."""

QUIET = 20
"""Looks in a row that find such a thread asleep, after which nothing is expected of it if no other waits for one."""

_MOMENT = 5e-3
"""Seconds of a processor that it may have used between two of them."""

_MOST_IDLE = 10_000
"""Limits of waits that run out one after the other, while nothing else happens, before that is a deadlock: they are set again
and again. Where one runs out that was set long before, they count from there: it may bring something new."""

_IDLE_FOR_EVER = 100 * _MOST_IDLE
"""Of those, as many as are a deadlock whatever is left."""

_MOST_STILL = 3
"""Of those for which the world outside was waited for, the first ones, which take no virtual time: the machine is slow."""

PATIENCE = 20
"""Looks for which what has come from outside waits for what was expected before it, so that its order is the program's."""

IMPATIENT = 3 * QUIET
"""Looks after which what has come goes on, though a thread that takes no turns has not come to rest: it may go round until it
does."""


GLANCE = 0.02
"""Seconds of the machine's time between two looks at a thread that has just begun, or gone on, without a turn."""

_NOWHERE = object()
"""The place of a thread that has not been looked at."""

_MOST_GLANCES = 250
"""Of those, as many as are waited for: a thread that goes round never rests."""

SLEEP = "the end of its sleep"
"""What a daemon that sleeps waits for."""

LOOKED_AT = "memory that it looks at"
"""What a thread waits for that looks again and again at what another process may write."""


def _never() -> bool:
    return False


class Coming(NamedTuple):
    """What comes from a thread that has no turn.

    Attributes:
        of: of threads that take no turns yet, the rank's number; of one that was outside, what ends that.
        call: called in main: before time moves if the thread has not rested before (``prompt``), else when nothing else can
            happen.
    """

    of: int | Condition
    call: Callable[[], None]
    prompt: bool = False


class Teller(Protocol):
    """Hears of what is released."""

    def tell(self, notice: Notice) -> None:
        """In any thread: ``notice`` has been released."""


class Notice:
    """What a thread waits for: that another one releases it, as it would the lock in whose place this stands.

    Attributes:
        told: whether it has been released.
        condition: what the thread waits for: that, or the end of its patience.
    """

    __slots__ = ("__weakref__", "_threads", "condition", "told")

    def __init__(self, threads: Teller, condition: Condition) -> None:
        self.told = False
        self.condition = condition
        self._threads = threads

    def release(self) -> None:
        """In any thread."""
        if not self.told:
            self.told = True
            self._threads.tell(self)


class _Rest:
    """What a thread without a turn waits for: a lock, whose release has it go on.

    Attributes:
        held: the lock.
        told: whether it has been released.
    """

    def __init__(self, threads: RankThreads) -> None:
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


class RankThreads:
    """The threads of one simulation's ranks.

    Attributes:
        settlers: of ranks that have processes, called when nothing else can happen: whether a thread there that takes no turns
            has had something happen.
        stirrers: of these, those whose processes have a thread that has begun, or gone on, without a turn.
        has_others: whether processes that are no ranks may bring something.
        run_until: in main, runs the ranks until what it is given is true, or all have ended (the world sets it).
    """

    def __init__(self, engine: GraphEngine, hosts: Hosts, scheduler: RankScheduler, waits: Waits) -> None:
        self._engine = engine
        self._hosts = hosts
        self._scheduler = scheduler
        self._waits = waits
        self._arrivals: SimpleQueue[Coming | None] = SimpleQueue()
        self._timers: list[tuple[float, int, Notice]] = []
        self._beats: weakref.WeakSet[Notice] = weakref.WeakSet()  # that daemons wait for
        self._serial = count()
        self._listening: dict[Condition, int | None] = {}
        self._outside: dict[Condition, SideThread | None] = {}
        self._free: list[tuple[Crew, threading.Thread]] = []
        self._stirring: set[threading.Thread] = set()  # they have not come to rest since they began, or went on
        self.stirrers: list[Callable[[], bool]] = []
        self._resting: dict[int | None, Any] = {}
        self._places: weakref.WeakKeyDictionary[threading.Thread, tuple[Any, int]] = weakref.WeakKeyDictionary()
        self._asking: list[Carrier] = []
        self._come: list[Coming] = []
        self._slow: set[Condition] = set()
        self._idle = 0
        self._long = 0
        self._ran_out = -math.inf
        self.settlers: list[Callable[[], bool]] = []
        self._looked_at: dict[Notice, Callable[[], bool]] = {}
        self.run_until: Callable[[Callable[[], bool]], bool]
        self.has_others: Callable[[], object] = multiprocessing.active_children

    # -- turns -------------------------------------------------------------------------------------------------------

    def crew(self, rank: int, read: Callable[[], Any], write: Callable[[Any], None]) -> Crew | None:
        """The crew of the rank whose own thread runs; None if it has none: it is a greenlet."""
        carrier = current_carrier()
        if carrier is None:
            return None
        if carrier.crew is None:
            carrier.crew = Crew(rank, read, write, carrier)
        crew: Crew = carrier.crew
        return crew

    def begin(self, crew: Crew, name: str, daemon: bool, thread: threading.Thread | None, *, ready: bool) -> TakesTurns:
        """A side thread's turns.

        Args:
            thread: that ends when its turns do; None: one of a pool.
            ready: called in a turn, and the first one comes in order; else it is begun by :meth:`admit`, or :meth:`ask`.
        """
        side = SideThread(crew.rank, name, daemon)
        runner = self._scheduler.runner
        assert isinstance(runner, CarrierRunner)
        carrier = runner.take_side(side, crew)
        if thread is not None:
            carrier.thread, carrier.ends_with_body = thread, True
        turns = CarrierTurns(self, side, carrier)
        carrier.parks = turns.leave
        if ready:
            self.admit(turns)
        return turns

    def admit(self, turns: Any) -> None:
        """In a turn, or in main: a side thread's first turn comes."""
        side = turns.side
        self._scheduler.add_side_thread(side)
        self._scheduler.make_ready(side.greenlet)

    def ask(self, turns: Any) -> None:
        """In a thread that takes no turns yet: it is to."""
        self._asking.append(turns.carrier)

        def come() -> None:
            self._asking.remove(turns.carrier)
            self.admit(turns)

        self._arrivals.put(Coming(turns.side.rank, come, self.stirs_still()))
        self.unwatch()

    def ended(self, side: SideThread) -> None:
        """In a side thread: its last turn is over."""
        self._scheduler.drop_side_thread(side)
        runner = self._scheduler.runner
        if isinstance(runner, CarrierRunner):
            runner.drop_side(side)

    def watch(self, crew: Crew, thread: threading.Thread) -> None:
        """A daemon has begun, which takes no turns yet."""
        self._free = [each for each in self._free if each[1].is_alive() or each[1].ident is None]
        self._free.append((crew, thread))
        self._stirring.add(thread)

    def has_free(self, crew: Crew) -> bool:
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

    def linger(self, rank: int, name: str) -> None:
        """The program of ``rank`` has ended, and its rank waits for a thread of it; empty: for none any more."""
        self._scheduler.linger(rank, name)

    def close(self, crew: Crew) -> None:
        """A rank has ended: its threads that are left end too."""
        crew.closed = True
        sides = {side.greenlet: side for side in self._scheduler.side_threads.values() if side.rank == crew.rank}
        for item in [item for item in self._waits.pending if item[1] in sides]:
            self._waits.pending.remove(item)
            side = sides[item[1]]
            if side.execution.away:
                side.execution.give_up()
                self.ended(side)
            else:
                self._scheduler.make_ready(side.greenlet, SystemExit())

    def clear(self) -> None:
        """Forget all of them."""
        for carrier in self._asking:
            carrier.crew.closed = True
            carrier.give_up()
        self._asking.clear()
        self._timers.clear()
        self._listening.clear()
        self._outside.clear()
        self._free.clear()
        self._stirring.clear()
        self.stirrers.clear()
        self._come.clear()
        self._slow.clear()
        self._looked_at.clear()
        self.has_others = multiprocessing.active_children
        self.settlers.clear()
        self._arrivals = SimpleQueue()
        self._idle = 0
        self._ran_out = -math.inf

    # -- waiting -----------------------------------------------------------------------------------------------------

    def notice(self, awaits: str, rank: int | None = None) -> Notice:
        """Something for a thread of ``rank`` (None: the running one) to wait for: ``awaits`` says what, in reports."""
        return Notice(self, Condition(awaits, self._hosts.current_rank() if rank is None else rank))

    def sleep(self, seconds: float) -> None:
        """In a daemon: let the others go on for so long."""
        self.wait(self.notice(SLEEP), seconds, listens=False)

    def wait(self, notice: Notice, seconds: float | None = None, *, listens: bool = True) -> bool:
        """Let the others go on until another thread releases ``notice``: whether it has, within ``seconds`` of virtual time.

        Args:
            listens: whether another thread may.
        """
        if notice.told:  # before the thread had its first turn
            return True
        host, condition = self._hosts.current(), notice.condition
        if seconds is not None:
            self._set_timer(
                notice, max(host.clock + seconds, math.nextafter(host.clock, math.inf))
            )  # not again at one time
            side = self._scheduler.side_threads.get(self._scheduler.waitable())
            if side is not None and side.daemon:
                self._beats.add(notice)
        if listens:
            self._listening[condition] = host.rank
        try:
            self._waits.block_on(condition)
        finally:
            self._listening.pop(condition, None)
        if not notice.told:
            self._waits.move_clock(host, condition)
        return notice.told

    def _set_timer(self, notice: Notice, at: float) -> None:
        heapq.heappush(self._timers, (at, next(self._serial), notice))

    def meet(self, awaits: str, ready: Callable[[], bool], seconds: float | None = None) -> bool:
        """In a rank, or in main while ranks have not ended: let the others go on until ``ready()`` is true of what processes
        share, a pipe or a semaphore, which tells of nothing. Whether it is, within ``seconds`` of virtual time.

        It is looked at before time moves, so that the order follows from the program. The clock moves to where the
        others have got to. In main False means, too, that all ranks have ended.
        """
        is_main = getcurrent() is self._scheduler.main
        host = self._hosts.main if is_main else self._hosts.current()
        notice = Notice(self, Condition(awaits, host.rank))
        self._looked_at[notice] = ready
        try:
            if is_main:
                self._go_on(notice, seconds)
            else:
                self.wait(notice, seconds)
        finally:
            self._looked_at.pop(notice, None)
        if notice.told:
            host.clock = max(host.clock, self._engine.now)
        return notice.told

    def go_on_for(self, seconds: float | None, until: Callable[[], bool] = _never) -> bool:
        """In main, beside ranks that it has not joined: let them go on for ``seconds`` of virtual time (None: without a limit),
        or until ``until()`` is true. Whether all have ended.

        Raises:
            SpawnException: ranks have failed. The others have been unwound.
        """
        return self._go_on(Notice(self, Condition("time", None)), seconds, until)

    def _go_on(self, notice: Notice, seconds: float | None, until: Callable[[], bool] = _never) -> bool:
        host = self._hosts.main
        if seconds is not None:
            self._set_timer(notice, host.clock + seconds)
        try:
            return self.run_until(lambda: notice.condition.done or until())
        finally:
            notice.condition.fulfil()  # its timer goes
            host.clock = max(host.clock, self._engine.now)

    def look(self) -> bool:
        """In main, when nothing else can happen: whether something is ready by now that is waited for by looking at it."""
        found = [notice for notice, ready in self._looked_at.items() if ready()]
        for notice in found:
            notice.release()
        return bool(found)

    def settle(self) -> bool:
        """In main, before time moves: let threads that have begun, or gone on, without a turn come to rest. Whether something
        has come of that: what they ask for comes at this time."""
        asked = False
        if self.stirrers:
            stirrers, self.stirrers = self.stirrers, []
            asked = sum(settle() for settle in stirrers) > 0
        if self._stirring:
            self.let_rest()
        if not self._arrivals.empty():
            self._take_arrivals(0)
        return (bool(self._come) and self._begin_asked(prompt=True)) or asked

    def let_rest(self) -> None:
        """While no thread has a turn: wait for those that have begun, or gone on, without one: until they rest, wait for the
        world outside, have ended or asked for turns. One that goes round is not waited for for long."""
        places: dict[threading.Thread, Any] = {}
        for _ in range(_MOST_GLANCES):
            self._take_arrivals(GLANCE)
            for thread in list(self._stirring):
                before, places[thread] = places.get(thread, _NOWHERE), place_of(thread)
                if not thread.is_alive() or not is_elsewhere(before, places[thread]):
                    self._stirring.discard(thread)
            if not self._stirring:
                return
        self._stirring.clear()

    def stirs_still(self) -> bool:
        """Whether the running thread takes no turns and has not rested since it began, or went on."""
        return threading.current_thread() in self._stirring

    def look_at_rest(self) -> bool:
        """In main, before time moves: the same, once threads that take no turns have done what they had to."""
        if not self._looked_at:
            return False
        if sum(settle() for settle in self.settlers):
            return True
        while self.is_busy(()):
            self._take_arrivals(LOOK)
        return self.look()

    @property
    def looks(self) -> bool:
        """Whether something is waited for by looking at it."""
        return bool(self._looked_at)

    def time(self) -> float:
        """Virtual time of the thread that asks, which may be about to wait."""
        return self._hosts.current().clock

    def tell(self, notice: Notice) -> None:
        """In any thread: ``notice`` has been released."""
        if getcurrent() in self._scheduler.rank_by_greenlet or getcurrent() is self._scheduler.main:
            notice.condition.fulfil()
        else:
            self._arrivals.put(Coming(notice.condition.rank or 0, notice.condition.fulfil, self.stirs_still()))

    def outside(self, awaits: str, work: Callable[[], Any]) -> Any:
        """What ``work()`` gives, which waits for what the simulation does not see: the others go on meanwhile."""
        carrier = current_carrier()
        assert carrier is not None
        back = Condition(awaits, carrier.index)
        given: list[Any] = []
        raised: list[BaseException] = []
        root, bound = carrier.root, self._scheduler.rank_by_greenlet

        def wait() -> None:
            rank = bound.pop(root, None)
            try:
                with being_outside():
                    given.append(work())
            except BaseException as error:
                raised.append(error)
            if rank is not None:
                bound[root] = rank
            self._arrivals.put(Coming(back, back.fulfil))

        self._outside[back] = self._scheduler.side_threads.get(carrier.greenlet)
        carrier.outside = wait
        try:
            self._waits.block_on(back)
        finally:
            self._outside.pop(back, None)
            self._slow.discard(back)
        host = self._hosts.current()
        host.clock = max(host.clock, self._engine.now)  # it was away until now, if the others have gone on
        if raised:
            raise raised[0]
        return given[0]

    def ranks_outside(self) -> list[int]:
        """In any thread: the ranks of which a thread waits for what the simulation does not see."""
        return sorted({back.rank for back in self._outside if back.rank is not None})

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

    def schedule(self, upcoming: float) -> None:
        """Something happens at ``upcoming`` s: what runs out before that does."""
        if upcoming > self._ran_out:
            self._idle = 0
        while self._timers and self._timers[0][0] <= upcoming:
            at, _, notice = heapq.heappop(self._timers)
            if not notice.condition.done:
                self._engine.fulfil_at(notice.condition, at)

    def come(self) -> bool:
        """Nothing else can happen: have something happen that the simulation has not seen, or a limit run out; False if there
        is nothing to come."""
        if sum(settle() for settle in self.settlers):  # all of them
            return True
        looks = 0
        while True:
            self._take_arrivals(LOOK if looks else 0)
            if self.look():
                return True
            looks += 1
            limit = self.limit()
            overdue = limit is not None and looks * LOOK > limit
            busy = self.is_busy(() if self._come or overdue else self._listening.values(), overdue=overdue)
            if busy and not (self._come and looks > IMPATIENT):
                continue
            self._take_arrivals(0)  # a thread says what it has done before it is not busy any more
            if self._has_come(looks > PATIENCE):
                return True
            if not self._expected() and not (self.looks and self.has_others()):
                if not self._slow:
                    return self._run_out(still=False)
                self._slow.clear()
            if overdue:
                return self._run_out(still=self._idle < _MOST_STILL)

    def _take_arrivals(self, timeout: float) -> None:
        with suppress(Empty):
            # Python 3.10 may wait for ever where the timeout is 0
            self._has_arrived(self._arrivals.get(timeout=timeout) if timeout else self._arrivals.get_nowait())
            while True:
                self._has_arrived(self._arrivals.get_nowait())

    def _has_arrived(self, coming: Coming | None) -> None:
        if coming is not None:
            self._come.append(coming)

    def _begin_asked(self, *, prompt: bool = False) -> bool:
        """Let happen what threads that take no turns have asked for, or only what was ``prompt``; whether there is any."""
        begun = [each for each in self._come if isinstance(each.of, int) and each.prompt >= prompt]
        if begun:
            self._come = [each for each in self._come if each not in begun]
            for each in sorted(begun, key=_rank_of):
                each.call()
        return bool(begun)

    def _has_come(self, impatient: bool) -> bool:
        """Resume those that have come; those from outside one after the other, in the order in which they went there."""
        if self._begin_asked():
            return True
        come = {each.of: each for each in self._come if isinstance(each.of, Condition)}
        if impatient and come:
            self._slow |= self._expected() - come.keys()
        expected = self._expected()
        first = next((back for back in self._outside if back in (expected or come)), None)
        if first is None or first not in come:
            return False
        self._come.remove(come[first])
        come[first].call()
        return True

    def listens(self, rank: int) -> bool:
        """Whether a thread of ``rank`` waits for another one."""
        return rank in self._listening.values()

    def _expected(self) -> set[Condition]:
        """What is waited for outside by threads that may let another one go on: a daemon only those that wait for threads."""
        listening = set(self._listening.values())
        return {
            back
            for back, side in self._outside.items()
            if back not in self._slow and (side is None or not side.daemon or side.rank in listening)
        }

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

    def outside_a_deadlock(self, pending: Collection[tuple[Any, Any]]) -> set[Any]:
        """Of those who wait, threads that a deadlock is not the business of: those that do so for another one of their rank,
        where one of that waits for something else, and daemons that go on when a limit runs out."""
        rank_of = self._scheduler.rank_by_greenlet
        beats = {notice.condition for notice in self._beats}
        beating = {target for awaited, target in pending if awaited in beats}
        others = {
            rank_of.get(target)
            for awaited, target in pending
            if awaited not in self._listening and target not in beating
        }
        return beating | {
            target for awaited, target in pending if awaited in self._listening and rank_of.get(target) in others
        }

    def limit(self) -> float | None:
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
        return self._idle > 0 and all(
            notice in self._beats for _, _, notice in self._timers if not notice.condition.done
        )

    def _run_out(self, *, still: bool) -> bool:
        """Have the first limit run out; ``still``: without virtual time."""
        self._drop_done()
        fresh = next(self._serial) - _MOST_IDLE // 5
        if not self._idle:
            self._long = 0
        self._idle += 1
        if not self._timers or self._idle > _IDLE_FOR_EVER:
            return False
        if self._idle - self._long > _MOST_IDLE and all(serial > fresh for _, serial, _ in self._timers):
            return False
        at, serial, notice = heapq.heappop(self._timers)
        if serial <= fresh:
            self._long = self._idle
        if still and notice.condition.name != SLEEP:
            notice.condition.fulfil()
        else:
            self._ran_out = at
            self._engine.fulfil_at(notice.condition, at)
        return True

    def _drop_done(self) -> None:
        while self._timers and self._timers[0][2].condition.done:
            heapq.heappop(self._timers)


def _rank_of(arrival: Coming) -> Any:
    return arrival.of


class CarrierTurns:
    """A side thread's way into the scheduler's order, where ranks are carriers."""

    def __init__(self, threads: RankThreads, side: SideThread, carrier: Carrier) -> None:
        self.side = side
        self.carrier = carrier
        self._threads = threads

    def enter(self) -> None:
        """See :class:`~kernbench.scheduler.crew.TakesTurns`."""
        self.carrier.enter()
        if self.carrier.crew.closed:
            self.leave()
            raise SystemExit

    def leave(self) -> None:
        """See :class:`~kernbench.scheduler.crew.TakesTurns`."""
        self._threads.ended(self.side)
        self.carrier.leave()
