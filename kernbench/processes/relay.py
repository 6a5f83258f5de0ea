"""What stands for a rank's process in the simulation: a greenlet that makes the calls that the rank has sent.

It runs when the rank would: it makes calls, in their order, until one waits, and then the scheduler goes on with another. While
it has nothing to make it waits for the process, and so does the whole simulation: which rank's call comes next is the
scheduler's decision, never the host's. The processes themselves go on side by side until they need an answer.

A rank's threads have a greenlet each, which is resumed when the thread's turn comes; one of them runs at a time.
"""

from __future__ import annotations

import pickle
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from socket import MSG_DONTWAIT
from typing import Any, NoReturn

from greenlet import GreenletExit, greenlet

from kernbench.errors import KernbenchError
from kernbench.processes.channel import Portable, portable, restored
from kernbench.processes.posted import PostedOperation
from kernbench.processes.process_results import Legacy
from kernbench.processes.rank_process import Away, RankDiedError, RankProcess, RankProcesses
from kernbench.processes.shared_devices import DeviceAccounts
from kernbench.processes.shared_memory import SharedRegion
from kernbench.processes.timekeeper import Timekeeper
from kernbench.processes.uplink import ASKED, LOOK, SETTLE, Settle
from kernbench.scheduler import RaisedElsewhere, Rank, SideThread
from kernbench.scheduler.execution import InGreenlet
from kernbench.sim_engine import Condition, Operation
from kernbench.simulation.matching.groups import USES, Arrival, Communicator, Signature
from kernbench.simulation.matching.messages import Message, MessageRoute, note_tail
from kernbench.simulation.ranks.locations import Location
from kernbench.simulation.ranks.training_steps import StepEnd
from kernbench.simulation.ranks.work_counts import Account
from kernbench.simulation.simulation import Simulation
from kernbench.simulation.time.notices import LOOKED_AT, THREAD_LOOKED_AT, Notice
from kernbench.simulation.values.collective_values import Brought
from kernbench.torch_backend.process_groups.stores import CooperativeStore, StoreHost
from kernbench.triton_engine.signals import Party

_Regions = Sequence[SharedRegion]
_Fields = tuple[str, int, str, float, float, int, Sequence[Any]]


class _Lane:
    """One thread of the rank.

    Attributes:
        number: in its process; 0 is the rank's own.
        side: what it is to the scheduler; None: the rank's own.
        inbox: what has come from it.
        asked: the call that it waits for.
        promised: what was sent to it as its clock then.
        late: what it receives with its next request.
        away: what it waits for that is not seen here.
        looked: whether it goes on only to look at memory once more.
    """

    def __init__(self, number: int, side: SideThread | None) -> None:
        self.number = number
        self.side = side
        self.inbox: deque[list[tuple[Any, ...]]] = deque()
        self.asked: tuple[str, Any] | None = None
        self.promised: float | None = None
        self.late: BaseException | None = None
        self.away = ""
        self.looked = False


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
        self._operations: dict[int, Operation] = {}
        self._under_way: dict[int, Operation] = {}
        self._changed: set[int] = set()
        self._told: set[int] = set()
        self._brought: dict[int, Brought] = {}
        self._groups: list[Communicator] = []
        self._open_stores: dict[Any, CooperativeStore] = {}
        self._last = ""
        self._now = _Lane(0, None)
        self._lanes = {0: self._now}
        self._notices: dict[int, Notice] = {}
        self._found: dict[int, deque[Any]] = {SETTLE: deque(), LOOK: deque(), ASKED: deque()}
        self._overdrawn: BaseException | None = None
        devices = DeviceAccounts(simulation, self._me, child.wire, self._overdraw)
        self._handlers: dict[str, Callable[..., Any]] = {
            "submit": self._submit, "computed": self._computed, "let_wait": self._let_wait, "group": self._group,
            "post": self._post, "message": self._message, "limit": self._limit, "monitor": self._monitor,
            "released": self._release, "step": self._step, "stopped": self._stopped, "store": self._store_given,
            "call": self._call, "write": self._write, "memory": devices.open, "leave": self._leave,
            "reserved": devices.reserved, "occupied": devices.occupied,
            "thread": self._thread, "tell": self._tell, "watch": self._watch,
            "linger": partial(simulation.threads.linger, self._rank),
            "assumed": simulation.assumptions.add, "left_out": simulation.assumptions.left_out,
            "used": simulation.assumptions.used, "request": simulation.requests.event,
            "engine_step": simulation.requests.step,
        }  # fmt: skip
        waits, reads, polls = simulation.waits, simulation.host_reads, simulation.polls
        self._calls: dict[str, Callable[..., Any]] = {
            "wait": self._wait, "await_values": self._await_values, "wait_for_first": self._wait_for_first,
            "block_on": self._block_on, "give_way": self._give_way, "times": self._times, "sleep": waits.sleep,
            "finish_stream": reads.finish_stream, "synchronize": self._synchronize, "look": polls.look,
            "move": simulation.disks.move,
            "pause": simulation.scheduler.pause, "store": self._store, "come_back": self._come_back,
            "reserve": devices.reserve, "unreserved": devices.unreserved, "others": devices.others,
            "await_thread": self._await_thread, "meet": self._meet, "ask_for": self._ask_for, "drive": self._drive,
            "look_again": self._look_again,
        }  # fmt: skip

    def serve(self) -> None:
        """The rank's body in the simulation. Raises what the rank's program has raised."""
        lane = self._now
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
        lane = self._lanes[number] = _Lane(number, side)
        side.execution = InGreenlet(greenlet(partial(self._serve_thread, lane), scheduler.main))
        scheduler.add_side_thread(side)
        scheduler.make_ready(side.greenlet)

    def _serve_thread(self, lane: _Lane) -> None:
        scheduler, rank = self._simulation.scheduler, self._simulation.scheduler.rank(self._rank)
        assert lane.side is not None
        assert rank is not None
        try:
            self._now = lane
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
            self._lanes.pop(lane.number, None)
            scheduler.drop_side_thread(lane.side)

    def _fail_of_thread(self, rank: Rank, error: BaseException) -> None:
        """What a thread fails with is its rank's failure, unless that has ended by itself and its process with it."""
        if rank.live:
            self._simulation.scheduler.fail(rank, error)

    def _drop_lanes(self) -> None:
        """The rank has ended, and with it its threads."""
        scheduler, waits = self._simulation.scheduler, self._simulation.waits
        dropped = {lane.side.greenlet for lane in self._lanes.values() if lane.side is not None}
        waits.pending[:] = [each for each in waits.pending if each[1] not in dropped]
        for lane in [lane for lane in self._lanes.values() if lane.side is not None]:
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

    def _meet(self, key: int, awaits: str, seconds: float | None) -> bool:
        """A thread waits for what its process can look at."""
        return self._simulation.threads.meet(awaits, partial(self._is_ready, key), seconds)

    def _is_ready(self, key: int) -> bool:
        """In main: whether that is ready; it is if the process has died, so that the thread hears of it."""
        if self._rank in self._family.died:
            return True
        try:
            return bool(self._asked(LOOK, key))
        except (EOFError, OSError):
            return True

    def _asked(self, number: int, about: Any) -> Any:
        """What the process answers when it is asked something, in main, while its threads wait."""
        self._child.wire.send((number, about))
        found = self._found[number]
        while not found:
            self._read(self._family.await_input, self._child)
        return found.popleft()

    def _tell(self, key: int) -> None:
        if (notice := self._notices.get(key)) is not None:
            notice.release()

    def _watch(self) -> None:
        """A thread that takes no turns has begun, or goes on."""
        threads, listeners = self._simulation.threads, self._family.listeners
        if self._child not in listeners:
            listeners[self._child] = self._hear
            threads.settlers.append(self._settle)
        if not self._kept and self._stir not in threads.stirrers:
            threads.stirrers.append(self._stir)

    @property
    def _kept(self) -> bool:
        """Whether a keeper of time says when the process rests."""
        return self._keeper is not None and self._keeper.active

    def _stir(self) -> bool:
        """In main, before time moves: whether threads that have begun, or gone on, without a turn have something to say."""
        self._settled(Settle.BEFORE_TIME)
        return self._hear(prompt=True)

    def _settle(self) -> bool:
        """In main, when nothing else can happen: whether threads that take no turns have something to say."""
        if self._settled(Settle.STILL if self._kept else Settle.IDLE):
            self._simulation.threads.free.rested()
        return self._hear()

    def _settled(self, how: Settle) -> bool:
        """Wait for threads that take no turns, if one is there that hears the question; whether one did something."""
        if self._rank not in self._family.died and not all(lane.away for lane in self._lanes.values()):
            with suppress(EOFError, OSError):
                return bool(self._asked(SETTLE, how))
        return False

    def _hear(self, *, prompt: bool = False) -> bool:
        """In main: have happen what threads have said that take no turns, or only what is ``prompt``; whether there is any."""
        try:
            while True:
                self._read(_nothing_there)
        except BlockingIOError:
            pass
        except (EOFError, OSError):
            self._family.listeners.pop(self._child, None)
        said = self._found[ASKED]
        kept = [each for each in said if prompt and not each[1]]
        come = [item for item, is_prompt in said if is_prompt or not prompt]
        said.clear()
        said.extend(kept)
        if come and self._kept:  # it comes from others, and they have got to now
            self._me.clock = max(self._me.clock, self._simulation.engine.now)
        for item in come:
            self._handlers[item[0]](*item[1:])
        return bool(come)

    # -- the way -----------------------------------------------------------------------------------------------------

    def _read(self, otherwise: Callable[..., Any], *args: Any) -> None:
        """Take what has come to whom it is for, or call ``otherwise``."""
        wire = self._child.wire
        body = wire.taken()
        if body is not None:
            number, items = pickle.loads(body)
            if number in self._found:
                self._found[number].append(items)
            elif number in self._lanes:
                self._lanes[number].inbox.append(items)
            return
        try:
            wire.read(MSG_DONTWAIT)
        except BlockingIOError:
            otherwise(*args)

    def _receive(self, lane: _Lane) -> Any:
        while not lane.inbox:
            try:
                self._read(self._await_input, lane)
            except (EOFError, ConnectionResetError):
                self._died()
        self._now = lane
        return lane.inbox.popleft()

    def _await_input(self, lane: _Lane) -> None:
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
        lane = self._now
        lane.away, self._me.clock = awaits, clock
        self._stay_away(lane)  # also if it has come back already: how soon it does is the machine's

    def _stay_away(self, lane: _Lane) -> None:
        """The thread waits for what is not seen here. The others have their turns, until they cannot go on without it."""
        back = Condition(f"{lane.away} that another process is to bring", self._rank)
        self._family.away[back] = Away(
            self._child, partial(self._has_come, lane), partial(self._counts, lane), lane.away == LOOKED_AT
        )
        try:
            self._simulation.waits.block_on(back)
        finally:
            del self._family.away[back]

    def _has_come(self, lane: _Lane) -> bool:
        """Whether it has said something, or never will."""
        try:
            while not lane.inbox:
                self._read(_nothing_there)
        except BlockingIOError:
            return bool(self._family.died)
        except (EOFError, OSError):
            pass
        return True

    def _counts(self, lane: _Lane) -> bool:
        """A daemon counts only for those that wait for threads."""
        return lane.side is None or not lane.side.daemon or self._simulation.threads.listens(self._rank)

    def _come_back(self) -> None:
        """It was away until now, if the others have gone on."""
        self._now.looked = self._now.away == LOOKED_AT
        self._now.away = ""
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
        last = f"Its last operation: {self._last}." if self._last and child is self._child else ""
        posted = f"Its last call to others: {calls[0]}." if calls else "It had called no other rank."
        stack = child.told()
        lines = [f"rank {child.rank} (process {child.pid}) {child.cause()}.", last, posted, stack]
        error = RankDiedError("\n".join(filter(None, lines)))
        return RaisedElsewhere(error, f"{RankDiedError.__name__}: {error}\n")

    def _call(
        self, name: str, args: Any, clock: float | None, stream: str, sip: int, busy: float, place: tuple[str, int, str]
    ) -> None:
        lane, me, value, raised = self._now, self._me, None, None
        if clock is not None:
            me.clock, me.stream, me.sip, me.busy = clock, stream, sip, busy
        if lane.away and name != "come_back":  # it had not said so
            self._come_back()
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
        self._now, lane.asked = lane, None
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

    def _answer(self, lane: _Lane, value: Any, raised: Any, clock: float) -> None:
        try:
            self._send(lane, value, raised, clock)
        except OSError:
            self._died()

    def _send(self, lane: _Lane, value: Any, raised: Any, clock: float) -> None:
        if self._keeper is not None:
            self._keeper.stir(look=lane.looked)
            lane.looked = False
        self._child.wire.send((lane.number, value, raised, clock, self._simulation.engine.now, self._news()))

    def answer_early(self) -> None:
        """What the rank waits for is done, and its turn is to come: if it is certain what it will receive then, send it now.

        So ranks that wait for the same go on side by side. Nothing changes here before the rank's turn. One that has threads
        goes on in its turn: which of them would have begun by then?
        """
        lane = self._now
        if self._keeper is not None and self._keeper.active:
            return
        if lane.asked is None or lane.late is not None or len(self._lanes) > 1:
            return
        name, args = lane.asked
        foresee = _FORESEEN.get(name)
        found = None if foresee is None else foresee(self, *args)
        if found is not None:
            awaited, value = found
            ends = [op.end for op in awaited if op.end is not None and op.done and op.error is None]
            if len(ends) == len(awaited):
                lane.promised = max([self._me.clock, *ends])
                try:
                    self._send(lane, value(), None, lane.promised)
                except OSError:  # it has died, and fails in its turn
                    lane.promised = None

    def operation(self, number: int) -> Operation:
        """The rank's operation of this number."""
        return self._operations[number]

    def before(self, stream: str) -> Sequence[Operation]:
        """What a look at one of the rank's streams waits for."""
        return self._me.before(stream)

    def tails(self) -> Sequence[Operation]:
        """What a look at all of them waits for."""
        return () if self._simulation.executor.failed else tuple(self._me.tails.values())

    def _news(self) -> list[tuple[Any, ...]]:
        """What has become of the rank's collectives and messages since the last reply."""
        news: list[tuple[Any, ...]] = []
        changed, self._changed = sorted(self._changed), set()
        for number in changed:
            op = self._under_way.get(number)
            if op is None:
                continue
            ended = op.end is not None
            if not ended and (not op.executed or number in self._told):
                continue
            error = None if op.error is None else portable(op.error)
            source = op.detail if op.name == "recv" else None
            brought = self._brought.get(number)
            effect = None if brought is None else brought.effect
            news.append((number, op.executed, op.start, op.end, error, source, effect))
            self._told.add(number)
            if ended:
                self._brought.pop(number, None)
                del self._under_way[number]
                self._told.discard(number)
        return news

    def _ended(self, lane: _Lane, error: Portable | None, trace: str, legacy: Legacy, failed: bool = False) -> None:
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

    def _overdraw(self, error: BaseException | None) -> None:
        """The rank has more of a GPU than there is, beside others; None: it has no more."""
        self._overdrawn = error

    def _write(self, which: str, text: str) -> None:
        if (stream := getattr(sys, which)) is not None:  # it is closed
            stream.write(text)

    # -- its own operations ------------------------------------------------------------------------------------------

    def _submit(
        self, number: int, name: str, kind: str, sip: int, stream: str, enqueue: float, duration: float | None,
        spread: tuple[float, float], nbytes: int, host: float, executed: bool, detail: Any, operands: Any, pace: float,
        draw: float,
    ) -> None:  # fmt: skip
        me = self._me
        op = self._operations[number] = Operation(name, kind, self._rank, sip, stream, enqueue, duration, spread)
        op.nbytes, op.host, op.executed, op.detail, op.operands = nbytes, host, executed, detail, operands
        op.pace, op.draw = pace, draw
        me.stream, self._last = stream, name
        self._simulation.engine.submit(op, after=me.take_awaited() if me.awaited else ())
        me.tails[stream] = op

    def _computed(
        self, number: int, name: str, duration: float | None, spread: tuple[float, float], nbytes: int, detail: Any,
        failed: str | None, heard: tuple[Sequence[int], Sequence[int]] | None,
    ) -> None:  # fmt: skip
        op = self._operations[number]
        op.name, op.spread, op.nbytes, op.detail = name, spread, nbytes, detail
        if op.duration is None and duration is not None:
            if heard is None:
                self._simulation.engine.set_duration(op, duration)
            else:
                meets, listens_to = ([Party([self._operations[each]]) for each in others] for others in heard)
                self._simulation.signal_timing.end_when_known(Party([op]), [duration], meets, listens_to)
        op.executed = True
        if failed is not None:  # its rank raises it
            op.observed = True
            op.fail(KernbenchError(failed), self._simulation.engine.now if op.end is None else op.end)

    def _let_wait(self, name: str, numbers: Sequence[int], clock: float) -> None:
        self._me.clock = clock
        self._me.let_wait(name, [self._operations[number] for number in numbers])

    def _release(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._operations.pop(number, None)

    def _step(self, number: int, clock: float, tails: Sequence[int], account: Account) -> None:
        mine = self._simulation.steps.of_rank[self._rank]
        end = StepEnd(clock, tuple(self._operations[each] for each in tails), account)
        mine.ends.setdefault(number, []).append(end)

    def _stopped(self) -> None:
        self._simulation.steps.of_rank[self._rank].stopped = True

    # -- waiting -----------------------------------------------------------------------------------------------------

    def _wait(self, number: int) -> tuple[float, float] | None:
        op = self._operations[number]
        self._simulation.waits.wait(op)
        return _times_of(op)

    def _await_values(self, number: int) -> None:
        simulation, op = self._simulation, self._operations[number]
        needed = not op.executed and op.error is None
        simulation.waits.wait_for_values(op, simulation.runs.values_of(op) if needed else None)

    def _wait_for_first(self, numbers: Sequence[int]) -> None:
        self._simulation.waits.wait_for_first([self._operations[number] for number in numbers])

    def _block_on(self, number: int) -> None:
        op = self._operations[number]
        if not op.done:
            self._simulation.waits.block_on(op)

    def _give_way(self) -> None:
        """The rank has computed what a thread or greenlet would have main compute: the others go on meanwhile."""
        turn = Condition("values", self._rank)
        self._simulation.executor.when_executed((), turn)
        self._simulation.waits.block_on(turn)

    def _times(self, numbers: Sequence[int]) -> list[tuple[float, float] | None]:
        return [_times_of(self._operations[number]) for number in numbers]

    def _synchronize(self) -> None:
        simulation = self._simulation
        simulation.host_reads.synchronize(simulation.executor.failed)

    # -- meeting others ----------------------------------------------------------------------------------------------

    def _group(self, name: str, members: tuple[int, ...], is_world: bool) -> None:
        self._groups.append(self._simulation.world.communicators.of(self._rank, name, members, is_world))

    def _ask_for(self, group: int, name: str, members: tuple[int, ...], location: Location) -> None:
        communicators = self._simulation.world.communicators
        communicators.ask_for(self._group_of(group), name, self._rank, members, location)

    def _drive(self, group: int, sip: int, location: Location) -> tuple[int, Location] | None:
        return self._simulation.world.communicators.drive(self._group_of(group), self._rank, sip, location)

    def _group_of(self, number: int) -> Communicator:
        """Each group has as many numbers as there are uses of its members."""
        at, use = divmod(number, len(USES))
        return self._groups[at].used_for(use)

    def _made(
        self, number: int, fields: _Fields, clock: float, stream: str, sip: int, brought: Brought | None
    ) -> Operation:
        """The rank's part of a call that it has posted."""
        name, on_sip, on_stream, enqueue, host, nbytes, operands = fields
        op = PostedOperation(name, self._rank, on_sip, on_stream, enqueue, partial(self._changed_now, number))
        op.host, op.nbytes, op.operands = host, nbytes, operands
        self._operations[number] = self._under_way[number] = op
        if brought is not None:
            self._brought[number] = brought
        me = self._me
        me.clock, me.stream, me.sip = clock, stream, sip
        return op

    def _changed_now(self, number: int) -> None:
        self._changed.add(number)

    def _admitted(self, op: Operation, admit: Callable[..., None], *args: Any) -> None:
        """Let a call in. The rank receives its error with the next request."""
        try:
            admit(*args)
        except Exception as error:
            op.observed = True
            self._now.late = self._now.late or error

    def _post(
        self, number: int, group: int, signature: tuple[Any, ...], inputs: _Regions, outputs: _Regions,
        fields: _Fields, clock: float, stream: str, sip: int, place: tuple[str, int, str], splits: Any, shapes: Any,
        environ: Any, brought: Brought | None,
    ) -> None:  # fmt: skip
        op = self._made(number, fields, clock, stream, sip, brought)
        communicator, me = self._group_of(group), self._me
        if communicator.environ is None:
            communicator.environ = environ
        tensor = self._child.shared.tensor
        shared = {region: tensor(region) for region in dict.fromkeys((*inputs, *outputs))}
        plan = communicator.plan(Signature(*signature))
        arrival = Arrival(
            self._rank, plan.signature, tuple(shared[each] for each in inputs),
            tuple(shared[each] for each in outputs), op, Location(*place), me.before(stream), splits, brought,
        )  # fmt: skip
        self._admitted(op, self._simulation.matcher.admit, me, plan, arrival, shapes)

    def _message(
        self, number: int, group: int, region: SharedRegion, peer: int | None, tag: int, sends: bool, fields: _Fields,
        clock: float, stream: str, sip: int, place: tuple[str, int, str], brought: Brought | None, route: Any, nth: int,
    ) -> None:  # fmt: skip
        op = self._made(number, fields, clock, stream, sip, brought)
        message = Message(
            self._group_of(group), self._rank, peer, tag, sends, self._child.shared.tensor(region), op, Location(*place),
            self._me.before(stream), brought, MessageRoute(*route), nth,
        )  # fmt: skip
        note_tail(self._me, op, peer, message.route)
        self._admitted(op, self._simulation.matcher.mailbox.admit, message)

    def _limit(self, op: int, seconds: float, number: int, group: int, asked_for: bool) -> None:
        self._simulation.limit(self._operations[op], seconds, number, self._group_of(group), asked_for)

    def _monitor(self, op: int, seconds: float, wait_all_ranks: bool, asked_for: bool) -> None:
        self._simulation.monitored.watch(self._operations[op], seconds, wait_all_ranks, asked_for)

    def _store_given(self, key: Any, timeout: Any, name: str, args: Any, kwargs: Any, clock: float) -> None:
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


def _nothing_there() -> NoReturn:
    raise BlockingIOError


def _times_of(op: Operation) -> tuple[float, float] | None:
    return None if op.start is None or op.end is None else (op.start, op.end)


_Foreseen = tuple[Sequence[Operation], Callable[[], Any]]


def _nothing() -> None:
    """What most calls give."""


def _foresee_wait(relay: Relay, number: int) -> _Foreseen:
    op = relay.operation(number)
    return (op,), lambda: _times_of(op)


_FORESEEN: dict[str, Callable[..., _Foreseen]] = {
    "wait": _foresee_wait,
    "await_values": lambda relay, number: ((), _nothing),
    "block_on": lambda relay, number: ((), _nothing),
    "give_way": lambda relay: ((), _nothing),
    "finish_stream": lambda relay, stream: (relay.before(stream), _nothing),
    "synchronize": lambda relay: (relay.tails(), _nothing),
}
"""Of a call that waits, and is about to be resumed: what it will then have waited for, up to whose ends the clock moves,
and what it gives. Of calls that are not here the answer may depend on what other ranks do before the turn comes."""
