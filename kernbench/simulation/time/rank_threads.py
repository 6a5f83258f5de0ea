"""The threads of ranks: their turns, and what they wait for of each other and of the world outside.

A side thread takes turns as ranks do. What it waits for of another thread is a condition, as a collective is an operation:
which thread is resumed, and when, follows from the scheduler and virtual time, and none that can go on is forgotten.

What the simulation does not see (a pipe, a thread that takes no turns yet) is waited for when nothing else can happen, one
thing at a time: how quick it is changes nothing.
"""

from __future__ import annotations

import math
import multiprocessing
import threading
from collections.abc import Callable, Collection
from typing import Any

from greenlet import getcurrent

from kernbench.scheduler import RankScheduler, SideThread
from kernbench.scheduler.carrier import Carrier, current_carrier
from kernbench.scheduler.crew import Crew, TakesTurns, being_outside
from kernbench.scheduler.runners import CarrierRunner
from kernbench.sim_engine import Condition, GraphEngine
from kernbench.simulation.ranks.hosts import Hosts
from kernbench.simulation.time.arrivals import Arrivals, Coming
from kernbench.simulation.time.free_threads import LOOK, QUIET, FreeThreads
from kernbench.simulation.time.limits import Limits
from kernbench.simulation.time.notices import SLEEP, THREAD_LOOKED_AT, Notice
from kernbench.simulation.time.wait_queue import Waits

_MOST_STILL = 3
"""Limits that run out while the world outside is waited for, the first ones, which take no virtual time: it may be slow."""

PATIENCE = 20
"""Looks for which what has come from outside waits for what was expected before it, so that its order is the program's."""

IMPATIENT = 3 * QUIET
"""Looks after which what has come goes on, though a thread that takes no turns has not come to rest: it may go round until it
does."""


def _never() -> bool:
    return False


class RankThreads:
    """The threads of one simulation's ranks.

    Attributes:
        free: those that take no turns.
        limits: of their waits.
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
        self._arrivals = Arrivals()
        self.free = FreeThreads(self._arrivals)
        self.limits = Limits(engine, hosts)
        self._listening: dict[Condition, int | None] = {}
        self._outside: dict[Condition, SideThread | None] = {}
        self.stirrers: list[Callable[[], bool]] = []
        self._asking: list[Carrier] = []
        self._slow: set[Condition] = set()
        self.settlers: list[Callable[[], bool]] = []
        self._looked_at: dict[Notice, Callable[[], bool]] = {}
        self._looking: dict[Notice, bool] = {}  # whether that is hopeless
        self._in_vain = 0
        self._happened = 0
        self.run_until: Callable[[Callable[[], bool]], bool]
        scheduler.breaks_waits_by(self.break_wait)
        self.has_others: Callable[[], object] = multiprocessing.active_children

    # -- turns -------------------------------------------------------------------------------------------------------

    def crew(self, rank: int, read: Callable[[], object], write: Callable[[Any], None]) -> Crew | None:
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

        self._arrivals.put(Coming(turns.side.rank, come, self.free.stirs_still()))
        self.free.unwatch()

    def ended(self, side: SideThread) -> None:
        """In a side thread: its last turn is over."""
        self._scheduler.drop_side_thread(side)
        runner = self._scheduler.runner
        if isinstance(runner, CarrierRunner):
            runner.drop_side(side)

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
        self._arrivals.clear()
        self.free.clear()
        self.limits.clear()
        self._listening.clear()
        self._outside.clear()
        self.stirrers.clear()
        self._slow.clear()
        self._looked_at.clear()
        self._looking.clear()
        self.has_others = multiprocessing.active_children
        self.settlers.clear()

    def break_wait(self, greenlet: object) -> None:
        """In main: a rank does not wait any longer for what another thread is to do. What a GPU does it waits for."""
        for item in self._waits.pending:
            if item[1] is greenlet and item[0] in self._listening:
                self._waits.pending.remove(item)
                self._scheduler.make_ready(item[1])
                return

    # -- waiting -----------------------------------------------------------------------------------------------------

    def notice(self, awaits: str, rank: int | None = None) -> Notice:
        """Something for a thread of ``rank`` (None: the running one) to wait for: ``awaits`` says what, in reports."""
        return Notice(self, Condition(awaits, self._hosts.current_rank() if rank is None else rank))

    def sleep(self, seconds: float) -> None:
        """In a daemon: let the others go on for so long."""
        self.wait(self.notice(SLEEP), seconds, listens=False)

    def look_again(self, *, again: bool, hopeless: bool, notice: Notice | None = None) -> bool:
        """The running thread has looked in vain at what another one is to do: return when something has happened, or nothing
        else can. Whether something has; then it is that time for the thread, too.

        Args:
            again: it has done nothing else since the last time.
            hopeless: it has done so very often, and nothing has happened: where nothing else can, that is a deadlock.
            notice: what it waits for; None: a new one.
        """
        notice = notice or self.notice(THREAD_LOOKED_AT)
        self._in_vain += again
        self._looking[notice] = hopeless
        before = self._happened
        try:
            self.wait(notice)
        finally:
            self._looking.pop(notice, None)
        if self._happened == before:
            return False
        host = self._hosts.current()
        host.clock = max(host.clock, self._engine.now)
        return True

    def wait(self, notice: Notice, seconds: float | None = None, *, listens: bool = True) -> bool:
        """Let the others go on until another thread releases ``notice``: whether it has, within ``seconds`` of virtual time.

        Args:
            listens: whether another thread may.
        """
        if notice.told:  # before the thread had its first turn
            return True
        host, condition = self._hosts.current(), notice.condition
        if seconds is not None:
            side = self._scheduler.side_threads.get(self._scheduler.waitable())
            end = max(host.clock + seconds, math.nextafter(host.clock, math.inf))  # not again at one time
            self.limits.add(notice, end, beats=side is not None and side.daemon)
        if listens:
            self._listening[condition] = host.rank
        try:
            self._waits.block_on(condition)
        finally:
            self._listening.pop(condition, None)
        if not notice.told:
            self._waits.move_clock(host, condition)
        return notice.told

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
            self.limits.add(notice, host.clock + seconds)
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
            self.free.rested()
            stirrers, self.stirrers = self.stirrers, []
            asked = sum(settle() for settle in stirrers) > 0
        if self.free.stir:
            self.free.let_rest()
        self._arrivals.take()
        asked = self._arrivals.begin_asked(prompt=True) or asked
        return (bool(self._looking) and self._has_happened()) or asked

    @property
    def turns(self) -> int:
        """How often a thread has gone on, but to look in vain at another one."""
        return self._scheduler.resumed - self._in_vain

    def _has_happened(self) -> bool:
        """Have threads look again that look at others, if one has done anything but that since they did."""
        happened = self.turns + self.free.rests
        if happened == self._happened:
            return False
        self._happened = happened
        for notice in list(self._looking):
            notice.release()
        return True

    def look_at_rest(self) -> bool:
        """In main, before time moves: the same, once threads that take no turns have done what they had to."""
        if not self._looked_at:
            return False
        if sum(settle() for settle in self.settlers):
            return True
        while self.free.is_busy(()):
            self._arrivals.take(LOOK)
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
            self._arrivals.put(Coming(notice.condition.rank or 0, notice.condition.fulfil, self.free.stirs_still()))

    def outside(self, awaits: str, work: Callable[[], object], *, own: bool = False) -> Any:
        """What ``work()`` gives, which waits for what the simulation does not see: the others go on meanwhile.

        Args:
            own: it is the rank's own, such as a queue of its workers: no other rank has brought it, so it takes no virtual
                time, however far the others have come. Else the clock moves to where they have got to.
        """
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
        if not own:
            host = self._hosts.current()
            host.clock = max(host.clock, self._engine.now)  # it was away until now, if the others have gone on
        if raised:
            raise raised[0]
        return given[0]

    def ranks_outside(self) -> list[int]:
        """In any thread: the ranks of which a thread waits for what the simulation does not see."""
        return sorted({back.rank for back in self._outside if back.rank is not None})

    # -- in main -----------------------------------------------------------------------------------------------------

    def come(self) -> bool:
        """Nothing else can happen: have something happen that the simulation has not seen, or a limit run out; False if there
        is nothing to come."""
        if sum(settle() for settle in self.settlers):  # all of them
            return True
        if self._looking and self._has_happened():
            return True
        looks, limits, arrivals, was_busy = 0, self.limits, self._arrivals, False
        while True:
            arrivals.take(LOOK if looks else 0)
            if self.look():
                return True
            looks += 1
            limit = limits.first()
            overdue = limit is not None and looks * LOOK > limit
            busy = self.free.is_busy(() if arrivals.come or overdue else self._listening.values(), overdue=overdue)
            if busy and not (arrivals.come and looks > IMPATIENT):
                was_busy = True
                continue
            arrivals.take()  # a thread says what it has done before it is not busy any more
            if self._has_come(looks > PATIENCE):
                return True
            if was_busy and self._looking:
                self.free.rested()
                return self._has_happened()
            if not self._expected() and not (self.looks and self.has_others()):
                if not self._slow:
                    return limits.run_out() or self._look_once_more()
                self._slow.clear()
            if overdue:
                return limits.run_out(still=limits.idle < _MOST_STILL)
            if limit is None and looks > 1 and self._look_once_more():
                return True

    def _look_once_more(self) -> bool:
        """Nothing happens: have threads look again that look at others. A program may only look in passing whether it is to
        stop."""
        hopeful = [notice for notice, hopeless in self._looking.items() if not hopeless]
        for notice in hopeful:
            notice.release()
        return bool(hopeful)

    def _has_come(self, impatient: bool) -> bool:
        """Resume those that have come; those from outside one after the other, in the order in which they went there."""
        if self._arrivals.begin_asked():
            return True
        come = {each.of: each for each in self._arrivals.come if isinstance(each.of, Condition)}
        if impatient and come:
            self._slow |= self._expected() - come.keys()
        expected = self._expected()
        first = next((back for back in self._outside if back in (expected or come)), None)
        if first is None or first not in come:
            return False
        self._arrivals.come.remove(come[first])
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

    def outside_a_deadlock(self, pending: Collection[tuple[object, object]]) -> set[Any]:
        """Of those who wait, threads that a deadlock is not the business of: those that do so for another one of their rank,
        where one of that waits for something else, and daemons that go on when a limit runs out."""
        rank_of = self._scheduler.rank_by_greenlet
        beats = self.limits.beats
        beating = {target for awaited, target in pending if awaited in beats}
        others = {
            rank_of.get(target)
            for awaited, target in pending
            if awaited not in self._listening and target not in beating
        }
        return beating | {
            target for awaited, target in pending if awaited in self._listening and rank_of.get(target) in others
        }


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
