"""Virtual time: an event heap over a topology graph.

The engine is driven only from main, and only when every rank is blocked. So nothing can be submitted in its past: a
rank that waits for an operation resumes at that operation's end, which is the engine's present or its future.

Operations on streams need no event: their end is known as soon as what precedes them is. Only traffic that may share a
link lives on the heap.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import NamedTuple

from kernbench.defaults import LOG_LIMIT
from kernbench.sim_engine.clocks import Clocks
from kernbench.sim_engine.condition import Condition
from kernbench.sim_engine.interference import Interference
from kernbench.sim_engine.log_rows import Row, Title
from kernbench.sim_engine.memory_store import MemoryStore
from kernbench.sim_engine.network import Flow, Network
from kernbench.sim_engine.op_log import OpLog
from kernbench.sim_engine.operation import ON_PES, DeviceStream, Lane, Operation, is_default
from kernbench.sim_engine.plan import TransferPlan
from kernbench.sim_engine.plan_run import PlanRun
from kernbench.topology import Topology


class Seats(NamedTuple):
    """The members of a collective that have an operation of their own, where not all do.

    Attributes:
        own: for each operation, the number of its member.
        follows: for each member, the position of the operation that it starts with.
    """

    own: tuple[int, ...]
    follows: tuple[int, ...]


class GraphEngine:
    """The clock, the streams, the links and the memories of one simulated system.

    Args:
        topology_obj: the system (``resolve_topology(...).topology_obj``).
        enable_data: whether values are computed; without, only time is modelled.
        log_limit: operations that the log keeps, the last ones; None: all.
    """

    def __init__(self, topology_obj: Topology, enable_data: bool = True, *, log_limit: int | None = LOG_LIMIT) -> None:
        self.topology = topology_obj
        self.enable_data = enable_data
        self.now = 0.0
        self.op_log = OpLog(log_limit)
        self.memory = MemoryStore(topology_obj)
        self.resolved_count = 0
        self.progress = 0
        self.latest_end = 0.0
        self.interference = Interference()
        self.clocks = Clocks()
        self.cost_model: Callable[[Operation, float], float] | None = None
        """Says how long an operation of a stream takes, given what was modelled (s); None: as modelled."""
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = count()
        storage = topology_obj.system.storage
        files = [] if storage is None else [storage.read, storage.write] * topology_obj.nodes
        self._network = Network([*topology_obj.link_bandwidth.tolist(), *files], self.at, lambda: self.now)
        self._streams: dict[tuple[int, str], DeviceStream] = {}
        self._lanes: dict[tuple[int | None, int, str], Lane] = {}
        self._alone_on_link: dict[int, PlanRun] = {}
        self._sharing: dict[PlanRun, None] = {}

    # -- events ------------------------------------------------------------------------------------------------------

    def at(self, time: float, callback: Callable[[], None]) -> None:
        """Call ``callback()`` when the clock reaches ``time`` (s); events at one time run in the order of this call."""
        heapq.heappush(self._events, (max(time, self.now), next(self._serial), callback))

    def withdraw(self, callback: Callable[[], None]) -> None:
        """Have no event call ``callback`` any more."""
        self._events = [event for event in self._events if event[2] != callback]
        heapq.heapify(self._events)

    @property
    def events_in_flight(self) -> int:
        """Number of events that are still to come."""
        return len(self._events)

    @property
    def next_event(self) -> float | None:
        """Time of the next event, None if there is none."""
        return self._events[0][0] if self._events else None

    def step(self) -> bool:
        """Process the next event; False if there is none."""
        if not self._events:
            return False
        time, _, callback = heapq.heappop(self._events)
        self.now = time
        callback()
        return True

    def advance(self) -> bool:
        """Process events until at least one more operation is resolved; False if nothing was left to do that."""
        resolved = self.resolved_count
        while self.resolved_count == resolved:
            if not self.step():
                return False
        return True

    def run(self) -> None:
        """Process every event."""
        while self.step():
            pass

    def fulfil_at(self, condition: Condition, time: float) -> None:
        """``condition`` is true once the clock reaches ``time`` (s)."""

        def fulfil() -> None:
            self.resolved_count += 1
            condition.fulfil(self.now)

        self.at(time, fulfil)

    # -- streams -----------------------------------------------------------------------------------------------------

    def stream(self, sip: int, name: str) -> DeviceStream:
        """The stream called ``name`` of a SIP, created on first use."""
        key = (sip, name)
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = DeviceStream(sip, name)
        return stream

    def lane(self, rank: int | None, sip: int, name: str) -> Lane:
        """What rows of the log have of operations of a rank on a stream, created on first use."""
        key = rank, sip, name
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(rank, self.stream(sip, name))
        return lane

    def forget_unresolved(self) -> None:
        """What has not been resolved never will be (its world is gone): streams go on without it."""
        for stream in self._streams.values():
            if stream.tail is not None and stream.tail.end is None:
                stream.tail, stream.end = None, 0.0
            stream.places, stream.before, stream.together = [], (), None
        self.interference.clear()
        self.clocks.clear()

    def reserve(self, op: Operation, together: int | None = None) -> None:
        """Give ``op`` the next place on its stream, before it is known when it can be submitted: what others have to come for.

        ``together``: a number that is the same for operations which take one place, side by side: they all start after what
        is before them, and what comes after them starts when all have ended.
        """
        stream = self._streams.get((op.sip, op.stream)) or self.stream(op.sip, op.stream)
        if together is None or together != stream.together:
            stream.before = tuple(stream.places) or (() if stream.tail is None else (stream.tail,))
            stream.places, stream.together = [], together
        stream.places.append(op)
        stream.tail = op
        op.ahead = stream.before

    def submit(self, op: Operation, *, after: Sequence[Operation] = ()) -> Operation:
        """Enqueue ``op`` on its stream: it starts once it is enqueued, its stream is free and ``after`` have ended.

        An operation without a duration waits for :meth:`set_duration`.
        """
        if self.cost_model is not None and op.duration is not None:
            op.duration = self.cost_model(op, op.duration)
        if op.duration is not None and not after:
            stream = self.stream(op.sip, op.stream)
            tail = stream.tail
            free = stream.end if tail is None else tail.end
            if free is not None:  # nearly always: its times are known at once
                start = op.enqueue if free < op.enqueue else free
                op.duration = self._beside(op, start, op.duration)
                op.start, op.end = start, start + op.duration
                stream.tail = op
                self.op_log.add(op)
                if op.end > self.latest_end:
                    self.latest_end = op.end
                return op

        def start_at(start: float) -> None:
            if op.end is not None:
                return  # it failed meanwhile
            op.start = start
            if op.duration is not None:
                op.duration = self._beside(op, start, op.duration)
                self._end_stream_op(op, start + op.duration)

        self._chain(op, after, start_at)
        return op

    def append(self, lane: Lane, title: Title, enqueue: float, seconds: float, host: float) -> Row | Operation:
        """Put an operation of ``seconds`` on PEs on a stream and into the log: as a row, if its end is known, which it nearly
        always is. ``host``: seconds of the host for it.

        For operations at the usual pace, where no cost model has a say.
        """
        stream = lane.queue
        tail = stream.tail
        free = stream.end if tail is None else tail.end
        if free is None:
            op = Operation(title.name, title.kind, lane.rank, lane.sip, lane.stream, enqueue, seconds, title.spread)
            op.nbytes, op.host, op.draw = title.nbytes, host, title.draw
            return self.submit(op)
        start = enqueue if free < enqueue else free
        seconds = self.clocks.slowed((lane.sip, lane.stream), title, start, seconds)
        if self.interference.posted:
            seconds = self.interference.stretched(lane.sip, title.kind, start, seconds)
        end = start + seconds
        stream.tail, stream.end = None, end
        row = title, lane, enqueue, start, end, seconds, host
        log = self.op_log
        recent = log.operations.recent
        recent.append(row)
        if len(recent) >= log.often:
            log.fold()
        if end > self.latest_end:
            self.latest_end = end
        return row

    def set_duration(self, op: Operation, seconds: float) -> None:
        """Tell how long ``op`` takes, now that it has been executed."""
        op.duration = seconds if self.cost_model is None else self.cost_model(op, seconds)
        if op.start is not None and op.end is None:
            op.duration = self._beside(op, op.start, op.duration)
            self._end_stream_op(op, op.start + op.duration)

    def break_off(self, op: Operation) -> None:
        """End ``op``, whose work was broken off before it was known how long it takes."""
        if op.end is None and (op.duration is None or op.start is not None):
            self.set_duration(op, 0.0)

    def _beside(self, op: Operation, start: float, seconds: float) -> float:
        """How long an operation of ``seconds`` takes in its rank, after what its SIP has done, and beside its collectives."""
        seconds *= op.pace
        if op.kind in ON_PES:
            seconds = self.clocks.slowed((op.sip, op.stream), op, start, seconds)
            return self.interference.stretched(op.sip, op.kind, start, seconds)
        return seconds

    def end_after_waiting(self, op: Operation, seconds: float, waited: float) -> None:
        """End ``op``, which has started: it worked for ``seconds`` and waited for others for ``waited`` seconds."""
        op.duration = (seconds if self.cost_model is None else self.cost_model(op, seconds)) * op.pace
        if op.end is None:
            assert op.start is not None
            self._end_stream_op(op, op.start + waited + op.duration)

    def _end_stream_op(self, op: Operation, end: float) -> None:
        self._count_resolved(end)
        op.resolve(end if op.start is None else op.start, end)

    def _count_resolved(self, end: float, operations: int = 1) -> None:
        self.resolved_count += operations
        self.progress += operations
        if end > self.latest_end:
            self.latest_end = end

    def _chain(self, op: Operation, after: Sequence[Operation], start_at: Callable[[float], None]) -> None:
        """Put ``op`` at the tail of its stream and call ``start_at(time)`` once its start is known."""
        start, pending = self._enqueue(op, after)
        if not pending:
            start_at(start)
        else:
            # kernels of the compute stream are notified last, when it is known what runs beside them
            self._when_ended(start, pending, start_at, first=not is_default(op.stream))

    def _enqueue(self, op: Operation, after: Sequence[Operation]) -> tuple[float, Sequence[Operation]]:
        """Put ``op`` at the tail of its stream: when it starts, if nothing is pending, and what is."""
        start = op.enqueue
        self.op_log.add(op)
        ahead = op.ahead
        if ahead is None:
            stream = self.stream(op.sip, op.stream)
            tail, stream.tail = stream.tail, op
            if stream.places:
                stream.places, stream.before, stream.together = [], (), None
            ahead = () if tail is None else (tail,)
            free = stream.end if tail is None else tail.end
            if free is not None and free > start:
                start = free
            if free is not None and not after:  # nearly always
                return start, ()
        pending: list[Operation] = []
        for other in (*ahead, *after):
            if other.end is None:
                pending.append(other)
            elif other.end > start:
                start = other.end
        return start, pending

    @staticmethod
    def _when_ended(
        start: float, pending: Sequence[Operation], start_at: Callable[[float], None], *, first: bool = False
    ) -> None:
        """Once all of ``pending`` have ended, call ``start_at(time)`` with their last end, ``start`` at the earliest."""
        left = len(pending)

        def one_less() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                start_at(max([start, *(other.end for other in pending if other.end is not None)]))

        for other in pending:
            other.when_resolved(one_less, first=first)

    # -- traffic -----------------------------------------------------------------------------------------------------

    def submit_transfer(
        self, op: Operation, links: Sequence[int], nbytes: int, *, latency: float, after: Sequence[Operation] = ()
    ) -> Operation:
        """Enqueue a copy of ``nbytes`` over ``links``; it ends ``latency`` seconds after its last byte has left."""

        def start_at(start: float) -> None:
            op.start = start
            self.at(start, lambda: self._start_transfer(op, links, nbytes, latency))

        self._chain(op, after, start_at)
        return op

    def _start_transfer(self, op: Operation, links: Sequence[int], nbytes: int, latency: float) -> None:
        if not links or nbytes == 0:
            self._resolve_at(op, self.now + latency)
        else:
            self.start_flow(links, nbytes, lambda at: self._resolve_at(op, at + latency), cap=float("inf"))

    def _resolve_at(self, op: Operation, end: float) -> None:
        def resolve() -> None:
            self._count_resolved(end)
            op.resolve(op.enqueue if op.start is None else op.start, end)

        self.at(end, resolve)

    def storage_link(self, node: int, writes: bool) -> int:
        """The link that stands for what a node's storage writes, or reads; only in a system that describes one."""
        return len(self.topology.links) + 2 * node + writes

    def start_flow(
        self,
        links: Sequence[int],
        nbytes: float,
        on_done: Callable[[float], None],
        *,
        cap: float,
        on_behalf_of: PlanRun | None = None,
    ) -> Flow:
        """Send ``nbytes`` over ``links`` now, at ``cap`` bytes/s at most; collectives it meets share with it."""
        for link in links:
            owner = self._alone_on_link.get(link)
            if owner is not None and owner is not on_behalf_of:
                self._demote(owner)
        return self._network.start(links, nbytes, on_done, cap=cap)

    def submit_collective(
        self,
        plan: TransferPlan,
        parts: Sequence[Operation],
        after: Sequence[Sequence[Operation]],
        seats: Seats | None = None,
        absent: Callable[[int, float], None] | None = None,
    ) -> PlanRun:
        """Enqueue a collective: ``parts[m]`` is member m's operation, ``after[m]`` what must end before it starts.

        ``seats``: which members have a part, where not all do; the others start when the part that they follow does, and
        ``absent(member, time)`` is called when one of them has ended.
        """
        starts = [0.0] * plan.members
        own = range(plan.members) if seats is None else seats.own
        part_of = dict(zip(own, parts, strict=True))

        def on_members_end(members: Sequence[int], time: float) -> None:
            took = max(0.0, time - run.last_start)
            there = members if seats is None else [member for member in members if member in part_of]
            self._count_resolved(time, len(there))
            self.resolved_count += len(there) < len(members)  # those without a part have ended, too
            for member in there:
                part = part_of[member]
                part.duration = took
                part.resolve(starts[member], time)
            if absent is not None:
                for member in members:
                    if member not in part_of:
                        absent(member, time)

        run = PlanRun(self, plan, on_members_end)
        waiting: dict[int, tuple[float, Sequence[Operation]]] = {}

        def start() -> None:
            if seats is not None:
                starts[:] = [starts[seats.own[follows]] for follows in seats.follows]
            run.member_start = starts.copy()
            self.at(min(starts), partial(self._start_plan, run))

        def member_ready(member: int, at: float) -> None:
            starts[member] = part_of[member].start = at
            del waiting[member]
            if not waiting:
                start()

        for (member, part), behind in zip(part_of.items(), after, strict=True):
            at, pending = self._enqueue(part, behind)
            if pending:
                waiting[member] = at, pending
            else:
                starts[member] = part.start = at
        if not waiting:
            start()
        for member, (at, pending) in list(waiting.items()):
            self._when_ended(at, pending, partial(member_ready, member), first=True)
        return run

    def submit_arrival(
        self, op: Operation, arrived: Operation, seconds: float, *, after: Sequence[Operation] = ()
    ) -> None:
        """Enqueue the receiving side of what is sent into a buffer: it ends when all has ``arrived``, and ``seconds`` after its
        own start at the earliest, in which it takes from the buffer what was there before it started."""

        def start_at(start: float) -> None:
            op.start = start
            arrived.when_resolved(partial(end_after, start))

        def end_after(start: float) -> None:
            if op.end is not None:
                return  # it failed meanwhile
            there = start if arrived.end is None else arrived.end
            op.duration = max(seconds, there - start) if there > start else seconds
            self._end_stream_op(op, max(start + seconds, there))

        self._chain(op, after, start_at)

    def _start_plan(self, run: PlanRun) -> None:
        # A member that came early waits: nothing moves before the present, when the others are known to have come.
        now = self.now
        run.member_start = [start if start > now else now for start in run.member_start]
        run.last_start = max(run.member_start)
        plan = run.plan
        links = plan.links
        if plan.contention_free and not self._sharing and self._free(links):
            self._run_alone(run)
            return
        in_use = [] if self._free(links) else [
            link for link in links if link in self._alone_on_link or self._network.busy(link)
        ]  # fmt: skip
        crossing = any(not links.isdisjoint(other.plan.links) for other in self._sharing)
        if plan.contention_free and not in_use and not crossing:
            self._run_alone(run)
            return
        for owner in dict.fromkeys(self._alone_on_link[link] for link in sorted(in_use) if link in self._alone_on_link):
            self._demote(owner)
        self._sharing[run] = None
        run.start_shared()

    def _run_alone(self, run: PlanRun) -> None:
        self._alone_on_link.update(dict.fromkeys(run.plan.links, run))
        run.start_alone()

    def _free(self, links: frozenset[int]) -> bool:
        """Whether certainly nothing is on these links."""
        return not self._network.flows and links.isdisjoint(self._alone_on_link)

    def _demote(self, run: PlanRun) -> None:
        self._release_links(run)
        self._sharing[run] = None
        run.demote(self.now)

    def _release_links(self, run: PlanRun) -> None:
        alone = self._alone_on_link
        links = run.plan.links
        if alone.get(next(iter(links), -1)) is run:  # it has all of them or none
            for link in links:
                del alone[link]

    def plan_finished(self, run: PlanRun) -> None:
        """Called by a run when its last member has ended."""
        self._release_links(run)
        self._sharing.pop(run, None)
