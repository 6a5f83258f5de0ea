"""What stands for a rank's process in the simulation: a greenlet that makes the calls that the rank has sent.

It runs when the rank would: it makes calls, in their order, until one waits, and then the scheduler goes on with another. While
it has nothing to make it waits for the process, and so does the whole simulation: which rank's call comes next is the
scheduler's decision, never the host's. The processes themselves go on side by side until they need an answer.

A rank's threads have a greenlet each, which is resumed when the thread's turn comes; one of them runs at a time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from greenlet import GreenletExit, greenlet

from kernbench.errors import KernbenchError
from kernbench.processes.channel import Portable, portable, restored
from kernbench.processes.lanes import ThreadLane, ThreadLanes
from kernbench.processes.process_results import Legacy
from kernbench.processes.rank_operations import RankOperations
from kernbench.processes.rank_process import Away, RankDiedError, RankProcess, RankProcesses
from kernbench.processes.shared_devices import DeviceAccounts
from kernbench.processes.timekeeper import Timekeeper
from kernbench.processes.turnless_threads import TurnlessThreads
from kernbench.scheduler import RaisedElsewhere, Rank, SideThread
from kernbench.scheduler.execution import InGreenlet
from kernbench.sim_engine import Condition
from kernbench.simulation.simulation import Simulation
from kernbench.simulation.time.notices import LOOKED_AT, THREAD_LOOKED_AT, Notice
from kernbench.torch_backend.process_groups.stores import CooperativeStore, StoreHost


class Relay:
    """Serves one rank.

    Args:
        simulation: that it is a rank of.
        child: its process.
        family: the processes of all ranks.
        stores: of the spawn.
        keeper: keeps the time of processes that are no ranks.
    """

    def __init__(
        self,
        simulation: Simulation,
        child: RankProcess,
        family: RankProcesses,
        stores: StoreHost,
        keeper: Timekeeper | None = None,
    ) -> None:
        self._keeper = keeper
        self._simulation = simulation
        self._child = child
        self._family = family
        self._stores = stores
        self._rank = child.rank
        self._me = simulation.hosts.of_rank[child.rank]
        self._open_stores: dict[Any, CooperativeStore] = {}
        self._lanes = ThreadLanes(child, family)
        self._notices: dict[int, Notice] = {}
        self._overdrawn: BaseException | None = None
        devices = DeviceAccounts(simulation, self._me, child.wire, self._overdraw)
        self._operations = RankOperations(simulation, child.rank, child.shared, self._fail_later)
        self._handlers: dict[str, Callable[..., Any]] = {
            **self._operations.happenings,
            "call": self._call, "leave": self._leave, "store": self._store_given, "write": self._write,
            "reconfigure": self._reconfigure,
            "memory": devices.open, "reserved": devices.reserved, "occupied": devices.occupied,
            "thread": self._thread, "tell": self._tell,
            "linger": partial(simulation.threads.linger, self._rank),
            "assumed": simulation.assumptions.add, "left_out": simulation.assumptions.left_out,
            "used": simulation.assumptions.used, "request": simulation.requests.event,
            "engine_step": simulation.requests.step,
        }  # fmt: skip
        turnless = TurnlessThreads(simulation, self._me, child, family, self._lanes, keeper, self._handlers)
        self._handlers["watch"] = turnless.watch
        self._calls: dict[str, Callable[..., Any]] = {
            **self._operations.waits,
            "sleep": simulation.waits.sleep, "look": simulation.polls.look, "move": simulation.disks.move,
            "pause": simulation.scheduler.pause, "store": self._store, "come_back": self._come_back,
            "give_way": self._give_way,
            "reserve": devices.reserve, "unreserved": devices.unreserved, "others": devices.others,
            "await_thread": self._await_thread, "meet": turnless.meet, "look_again": self._look_again,
        }  # fmt: skip

    def serve(self) -> None:
        """The rank's body in the simulation. Raises what the rank's program has raised."""
        lane = self._lanes.own
        while True:
            for item in self._receive(lane):
                if item[0] == "ended":
                    self._drop_lanes()
                    self._ended(lane, *item[1:])
                    return
                self._handlers[item[0]](*item[1:])

    # -- threads -----------------------------------------------------------------------------------------------------

    def _thread(self, number: int, name: str, daemon: bool) -> None:
        """The rank has started a thread, whose first turn comes in order."""
        scheduler, side = self._simulation.scheduler, SideThread(self._rank, name, daemon)
        lane = self._lanes.of[number] = ThreadLane(number, side)
        side.execution = InGreenlet(greenlet(partial(self._serve_thread, lane), scheduler.main))
        scheduler.add_side_thread(side)
        scheduler.make_ready(side.greenlet)

    def _serve_thread(self, lane: ThreadLane) -> None:
        scheduler, rank = self._simulation.scheduler, self._simulation.scheduler.rank(self._rank)
        assert lane.side is not None
        assert rank is not None
        try:
            self._lanes.now = lane
            self._answer(lane, None, None, self._me.clock)
            while True:
                for item in self._receive(lane):
                    if item[0] == "thread_over":
                        self._me.clock = item[1]
                        return
                    self._handlers[item[0]](*item[1:])
        except (GreenletExit, SystemExit):  # its rank has ended, or is being unwound
            pass
        except KeyboardInterrupt as error:
            if scheduler.interrupted:  # Ctrl-C ends the run, and is not the rank's
                raise
            self._fail_of_thread(rank, error)
        except BaseException as error:
            self._fail_of_thread(rank, error)
        finally:
            self._lanes.of.pop(lane.number, None)
            scheduler.drop_side_thread(lane.side)

    def _fail_of_thread(self, rank: Rank, error: BaseException) -> None:
        """What a thread fails with is its rank's failure, unless that has ended by itself and its process with it."""
        if rank.live:
            self._simulation.scheduler.fail(rank, error)

    def _drop_lanes(self) -> None:
        """The rank has ended, and with it its threads."""
        scheduler, waits = self._simulation.scheduler, self._simulation.waits
        dropped = {lane.side.greenlet for lane in self._lanes.of.values() if lane.side is not None}
        waits.pending[:] = [each for each in waits.pending if each[1] not in dropped]
        for lane in [lane for lane in self._lanes.of.values() if lane.side is not None]:
            assert lane.side is not None
            scheduler.drop_side_thread(lane.side)
            scheduler.make_ready(lane.side.greenlet, GreenletExit())

    def _await_thread(self, key: int, awaits: str, seconds: float | None, listens: bool = True) -> None:
        """A thread waits for another one, or for the end of its patience."""
        threads = self._simulation.threads
        notice = self._notices[key] = threads.notice(awaits)
        try:
            threads.wait(notice, seconds, listens=listens)
        finally:
            del self._notices[key]

    def _look_again(self, key: int, again: bool, hopeless: bool) -> bool:
        """A thread has looked in vain at what another one is to do."""
        threads = self._simulation.threads
        notice = self._notices[key] = threads.notice(THREAD_LOOKED_AT)
        try:
            return threads.look_again(again=again, hopeless=hopeless, notice=notice)
        finally:
            del self._notices[key]

    def _tell(self, key: int) -> None:
        if (notice := self._notices.get(key)) is not None:
            notice.release()

    # -- the way -----------------------------------------------------------------------------------------------------

    def _receive(self, lane: ThreadLane) -> Any:
        while not lane.inbox:
            try:
                self._lanes.read(self._await_input, lane)
            except (EOFError, ConnectionResetError):
                self._died()
        self._lanes.now = lane
        return lane.inbox.popleft()

    def _await_input(self, lane: ThreadLane) -> None:
        family = self._family
        try:
            if lane.away and not family.died and not self._simulation.scheduler.aborting:
                self._stay_away(lane)
            elif (found := family.await_input(self._child)) is None:
                lane.away = "something that the simulation does not see"
                self._stay_away(lane)
            elif not found:
                self._let_the_dead_go_first()
        except SystemExit as error:  # ranks are being unwound: this one hears of it in its next reply
            if not family.unwound:
                raise
            lane.late = error

    def _leave(self, awaits: str, clock: float) -> None:
        lane = self._lanes.now
        lane.away, self._me.clock = awaits, clock
        self._stay_away(lane)  # also if it has come back already: how soon it does is the machine's

    def _stay_away(self, lane: ThreadLane) -> None:
        """The thread waits for what is not seen here. The others have their turns, until they cannot go on without it."""
        back = Condition(f"{lane.away} that another process is to bring", self._rank)
        self._family.away[back] = Away(
            self._child, partial(self._has_come, lane), partial(self._counts, lane), lane.away == LOOKED_AT
        )
        try:
            self._simulation.waits.block_on(back)
        finally:
            del self._family.away[back]

    def _has_come(self, lane: ThreadLane) -> bool:
        """Whether it has said something, or never will."""
        try:
            return self._lanes.read_what_is_there(lambda: bool(lane.inbox)) or bool(self._family.died)
        except (EOFError, OSError):
            return True

    def _counts(self, lane: ThreadLane) -> bool:
        """A daemon counts only for those that wait for threads."""
        return lane.side is None or not lane.side.daemon or self._simulation.threads.listens(self._rank)

    def _come_back(self, own: bool) -> None:
        """It was away until now, if the others have gone on; ``own``: that takes no virtual time."""
        self._lanes.now.looked = self._lanes.now.away == LOOKED_AT
        self._lanes.now.away = ""
        if not own:
            self._me.clock = max(self._me.clock, self._simulation.engine.now)

    def _let_the_dead_go_first(self) -> None:
        """Another rank's process has died: that rank fails now, whatever this one is computing."""
        scheduler, waits = self._simulation.scheduler, self._simulation.waits
        for index in self._family.died:
            rank = scheduler.rank(index)
            found = None if rank is None else next((each for each in waits.pending if each[1] is rank.greenlet), None)
            if found is not None:  # it was waiting
                waits.pending.remove(found)
                scheduler.make_ready(found[1], self._death_of(self._family.by_rank[index]))
        scheduler.pause()

    def _died(self) -> NoReturn:
        self._child.reap()
        if self._simulation.scheduler.aborting:
            raise SystemExit
        raise self._death_of(self._child) from None

    def _death_of(self, child: RankProcess) -> RaisedElsewhere:
        child.reap()
        if child.verdict is not None:
            return RaisedElsewhere(child.verdict, f"{type(child.verdict).__name__}: {child.verdict}\n")
        calls = self._simulation.matcher.history.of(child.rank)[-1:]
        last = f"Its last operation: {self._operations.last}." if self._operations.last and child is self._child else ""
        posted = f"Its last call to others: {calls[0]}." if calls else "It had called no other rank."
        stack = child.told()
        lines = [f"rank {child.rank} (process {child.pid}) {child.cause()}.", last, posted, stack]
        error = RankDiedError("\n".join(filter(None, lines)))
        return RaisedElsewhere(error, f"{RankDiedError.__name__}: {error}\n")

    def _call(
        self, name: str, args: Any, clock: float | None, stream: str, sip: int, busy: float, place: tuple[str, int, str]
    ) -> None:
        lane, me, value, raised = self._lanes.now, self._me, None, None
        if clock is not None:
            me.clock, me.stream, me.sip, me.busy = clock, stream, sip, busy
        if lane.away and name != "come_back":  # it had not said so
            self._come_back(own=False)
        lane.asked, lane.promised = (name, args), None
        placed = lane.side or self._simulation.scheduler.rank(self._rank)
        assert placed is not None
        placed.place = place
        try:
            if lane.late is not None:
                late, lane.late = lane.late, None
                raise late
            if self._overdrawn is not None:
                late, self._overdrawn = self._overdrawn, None
                raise late
            value = self._calls[name](*args)
            if self._keeper is not None and self._keeper.active:
                self._keep_pace()
        except (GreenletExit, KeyboardInterrupt, RaisedElsewhere):
            raise  # it has died itself, or no rank is to be notified
        except BaseException as error:
            if isinstance(error, SystemExit) and not self._family.unwound and self._simulation.scheduler.aborting:
                raise
            if lane.promised is not None:
                lane.late = error  # the rank has gone on: it hears of it in its next reply
            raised = portable(error)
        self._lanes.now, lane.asked = lane, None
        if lane.promised is None:
            self._answer(lane, value, raised, me.clock)
        elif lane.promised != me.clock and lane.late is None:
            raise KernbenchError(
                f"rank {self._rank} was given {lane.promised} s at the end of {name}, which is {me.clock} s"
            )

    def _keep_pace(self) -> None:
        """What happens to others before this rank's time happens before it goes on."""
        now = Condition("its own time", self._rank)
        if self._me.clock > self._simulation.engine.now:
            self._simulation.engine.fulfil_at(now, self._me.clock)
            self._simulation.waits.block_on(now)

    def _answer(self, lane: ThreadLane, value: object, raised: object, clock: float) -> None:
        try:
            self._send(lane, value, raised, clock)
        except OSError:
            self._died()

    def _send(self, lane: ThreadLane, value: object, raised: object, clock: float) -> None:
        if self._keeper is not None:
            self._keeper.stir(look=lane.looked)
            lane.looked = False
        self._child.wire.send((lane.number, value, raised, clock, self._simulation.engine.now, self._operations.news()))

    def answer_early(self) -> None:
        """What the rank waits for is done, and its turn is to come: if it is certain what it will receive then, send it now.

        So ranks that wait for the same go on side by side. Nothing changes here before the rank's turn. One that has threads
        goes on in its turn: which of them would have begun by then?
        """
        lane = self._lanes.now
        if self._keeper is not None and self._keeper.active:
            return
        if lane.asked is None or lane.late is not None or len(self._lanes.of) > 1:
            return
        name, args = lane.asked
        found = self._operations.foresee(name, *args)
        if found is not None:
            awaited, value = found
            ends = [op.end for op in awaited if op.end is not None and op.done and op.error is None]
            if len(ends) == len(awaited):
                lane.promised = max([self._me.clock, *ends])
                try:
                    self._send(lane, value(), None, lane.promised)
                except OSError:  # it has died, and fails in its turn
                    lane.promised = None

    def _ended(
        self, lane: ThreadLane, error: Portable | None, trace: str, legacy: Legacy, failed: bool = False
    ) -> None:
        """The program has ended: with what it has raised, if anything; ``failed``: that is a failure, whatever it is."""
        legacy.leave(self._simulation, self._me)
        if lane.late is not None:
            raise lane.late
        if error is None:
            if self._overdrawn is not None:
                raise self._overdrawn
            return
        raised = restored(error)
        if (
            not failed
            and isinstance(raised, SystemExit | KeyboardInterrupt)
            and not (isinstance(raised, SystemExit) and raised.code)
        ):
            raise raised
        raise RaisedElsewhere(raised, trace)

    def _fail_later(self, error: Exception) -> None:
        """What the rank has called has failed, and it does not wait for that: it receives the error with its next request."""
        self._lanes.now.late = self._lanes.now.late or error

    def _overdraw(self, error: BaseException | None) -> None:
        """The rank has more of a GPU than there is, beside others; None: it has no more."""
        self._overdrawn = error

    def _write(self, which: str, text: str) -> None:
        if (stream := getattr(sys, which)) is not None:  # it is closed
            stream.write(text)

    def _reconfigure(self, which: str, how: dict[str, Any]) -> None:
        if (stream := getattr(sys, which)) is not None:
            stream.reconfigure(**how)

    def _give_way(self) -> None:
        """The rank has computed what a thread or greenlet would have main compute: the others go on meanwhile."""
        turn = Condition("values", self._rank)
        self._simulation.executor.when_executed((), turn)
        self._simulation.waits.block_on(turn)

    def _store_given(self, key: object, timeout: object, name: str, args: object, kwargs: object, clock: float) -> None:
        self._me.clock = clock
        self._store(key, timeout, name, args, kwargs)

    def _store(self, key: Any, timeout: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name == "free_port":
            return self._stores.free_port()
        store = self._open_stores.get(key)
        if store is None:
            store = self._open_stores[key] = CooperativeStore(self._stores, self._stores.shared(*key), timeout)
        store.set_timeout(timeout)
        return getattr(store, name)(*args, **kwargs)
