"""Hosts: one per rank and one for main. Each has a clock, the streams that it enqueues on, and a SIP that it drives.

:class:`Hosts` says who runs, and what time it is for the caller.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from operator import attrgetter
from typing import Any, Protocol

import torch
from greenlet import getcurrent

from kernbench.errors import KernbenchError
from kernbench.order import Order, RankOrder
from kernbench.scheduler import RankScheduler
from kernbench.scheduler.crew import acts_for_a_rank
from kernbench.sim_engine.log_rows import as_operation
from kernbench.sim_engine.operation import COMPUTE_STREAM, Lane, Operation
from kernbench.simulation.ranks.folding import Folding
from kernbench.simulation.ranks.graph_capture import GraphCapture
from kernbench.simulation.ranks.work_counts import Account


def seed_of(seed: int, rank: int | None) -> int:
    """The seed of a rank's generators until it sets one: differs between ranks, as separate processes' do. Main: ``seed``."""
    return seed if rank is None else seed * 1_000_003 + rank + 1


class HostWatcher(Protocol):
    """Is notified of what a host does while it does it."""

    def launched(self, op: Operation) -> None:
        """The host has put an operation on a stream; its clock is when the call returns."""

    def waited(self, begin: float, for_gpu: bool) -> None:
        """The host has waited since ``begin`` (virtual s), for a GPU or for another rank; its clock is when it goes on."""

    def allocated(self, nbytes: int, in_all: int, reserved: int, sip: int) -> None:
        """The program has taken ``nbytes`` of a SIP's memory, or given them back (negative); it has ``in_all`` now."""

    def beside(self) -> AbstractContextManager[object]:
        """For the length of a block, what torch computes is no operation of the program."""

    def passed_on(self) -> None:
        """What is being recorded is a wrapper's operation: what it consists of is the program's."""

    def within(self) -> AbstractContextManager[object]:
        """For the length of a block, while an operation is recorded, what torch computes is the program's again."""


def _detour(name: str, usual: object) -> Any:
    """An attribute of a host on which the bare path of an operation depends: another value than the ``usual`` one is one more
    reason to take the whole path (:attr:`Host.detours`)."""
    slot = f"_{name}"

    def change(host: Host, value: object) -> None:
        host.detours += (value is not usual) - (getattr(host, slot) is not usual)
        setattr(host, slot, value)

    return property(attrgetter(slot), change)


class Tails(dict[str, Any]):
    """The last operation that a host has put on each of its streams, by the stream's name.

    One of the bare path is kept as the row of the log that it is, and is an :class:`Operation` to all that look.
    """

    def get(self, name: str, default: Any = None) -> Any:
        """The last operation of a stream."""
        last = super().get(name, default)
        return as_operation(last) if type(last) is tuple else last

    def __getitem__(self, name: str) -> Operation:
        return as_operation(super().__getitem__(name))

    def values(self) -> list[Operation]:  # type: ignore[override]
        """Those of all streams."""
        return [as_operation(each) for each in super().values()]

    def marks(self) -> list[Any]:
        """What compares equal as long as nothing has been put on any stream."""
        return list(super().values())


class Host:
    """One rank's host, or main's.

    Attributes:
        rank: index, None for main.
        sip: SIP that it drives.
        home: the one that it drove first: its own.
        streams_elsewhere: names of the streams that are current on other SIPs, by SIP.
        clock: its host clock, virtual seconds.
        busy: seconds that it has spent on the program's side of operations.
        prepared: of them, those since the last launch: views, what autograd keeps.
        each: what a launch costs while no operator of the program is called one by one (:meth:`launching`), None otherwise.
        stream: name of the stream that it enqueues on now, the one that is current on the SIP that it drives. No two streams
            of a host have one name.
        tails: the last operation it enqueued on each stream, by the stream's name.
        unsettled: launches whose values are to come because they wait for others, by the stream's name, where no event tells
            us when the host looks at what they write.
        awaited: what the next operation of a stream has to wait for besides the one before it, by the stream's name.
        capture: the graph that it captures now, if it does.
        cold: whether what it enqueues finds nothing in the caches.
        memory_pool: number of the program's own pool that it allocates from; 0: none.
        sync_debug: what becomes of operations that have the host wait for a GPU: 0 nothing, 1 a warning, 2 an error.
        unrecorded: whether what torch computes now is no operation of the program: a part of one that is recorded as a whole.
        looked_at: when it began its last look at what another process may write, s; none yet: below 0.
        asked: seconds that its looks at clocks have taken since then.
        untimed: whether looks at its clock are not the program's, but of torch's own code.
        takes_memory: whether what it makes on a GPU is counted: not while it compiles, which depends on a cache.
        reaches: pairs of SIPs the first of which may use the other's memory: CUDA's peer access, which torch's copies enable.
        uses_gpu: whether its program has put anything on a GPU: then only that is recorded, else everything is.
        phase: what its program does (:mod:`kernbench.memory.ledger`).
        backward_passes: those that its program has begun.
        graph_task: autograd's number of the last of them that has computed anything; -1: none has.
        step: steps of its program that have ended (:mod:`kernbench.simulation.ranks.training_steps`).
        generator: its random generator.
        account: what it has done so far.
        order: what happens before what it does; None: no listener.
        watcher: receives what it does; None: no listener.
        detours: reasons for which operations take the whole path and not the bare one: features that listen, a capture, a
            profile, code whose operations are not the program's, and so on. 0: none.
        lanes: by stream's name, the last one of that name that it has put a row on.
    """

    capture: GraphCapture | None = _detour("capture", None)
    each: float | None = _detour("each", None)
    unrecorded: bool = _detour("unrecorded", False)
    watcher: HostWatcher | None = _detour("watcher", None)

    def __init__(self, rank: int | None, sip: int, seed: int, clock: float = 0.0, detours: int = 0) -> None:
        self.detours = detours
        self.lanes: dict[str, Lane] = {}
        self.rank = rank
        self.sip = self.home = sip
        self.streams_elsewhere: dict[int, str] = {}
        self.clock = clock
        self.stream = COMPUTE_STREAM
        self.tails = Tails()
        self.awaited: dict[str, list[Operation]] = {}
        self.unsettled: dict[str, list[Operation]] = {}
        self.busy = 0.0
        self.prepared = 0.0
        self._each = self._capture = self._watcher = None
        self.cold = False
        self.memory_pool = 0
        self.sync_debug = 0
        self.untimed = False
        self.looked_at = -1.0
        self.asked = 0.0
        self.idle_polls = 0
        self.phase = 0
        self.backward_passes = 0
        self.graph_task = -1
        self.step = 0
        self._unrecorded = False
        self.takes_memory = True
        self.reaches: set[tuple[int, int]] = set()
        self.uses_gpu = False
        self.progress_seen = -1
        self.account = Account()
        self.order: RankOrder | None = None
        self._seed = seed_of(seed, rank)
        self._generator: torch.Generator | None = None

    @contextmanager
    def detour(self) -> Iterator[None]:
        """For the length of a block, operations take the whole path."""
        self.detours += 1
        try:
            yield
        finally:
            self.detours -= 1

    @property
    def generator(self) -> torch.Generator:
        """The rank's generator, seeded by the context's seed and the rank until it is seeded by hand."""
        if self._generator is None:
            self._generator = torch.Generator().manual_seed(self._seed)
        return self._generator

    def default_stream(self, sip: int) -> str:
        """Name of the default stream of a SIP."""
        return COMPUTE_STREAM if sip == self.home else f"{COMPUTE_STREAM} of SIP {sip}"

    def stream_on(self, sip: int) -> str:
        """Name of the stream that is current on a SIP."""
        if sip == self.sip:
            return self.stream
        return self.streams_elsewhere.get(sip) or self.default_stream(sip)

    def drive(self, sip: int) -> None:
        """Go on to a SIP, and to the stream that is current there."""
        if sip != self.sip:
            self.streams_elsewhere[self.sip] = self.stream
            self.stream, self.sip = self.stream_on(sip), sip

    @contextmanager
    def driving(self, sip: int | None) -> Iterator[None]:
        """Drive a SIP for the length of a block; None: the one that it drives."""
        before = self.sip
        self.drive(before if sip is None else sip)
        try:
            yield
        finally:
            self.drive(before)

    def prepare(self, seconds: float) -> None:
        """Spend time on what launches nothing by itself; nothing where :meth:`launching` holds."""
        if self.each is None:
            self.clock += seconds
            self.busy += seconds
            self.prepared += seconds

    def launch(self, seconds: float) -> float:
        """Spend time on a launch; gives what has been spent since the launch before."""
        if self.each is not None:
            seconds = self.each
        self.clock += seconds
        self.busy += seconds
        spent, self.prepared = seconds + self.prepared, 0.0
        return spent

    @property
    def in_graph(self) -> bool:
        """Whether what it enqueues now is part of a graph's replay."""
        return self.each == 0.0

    @contextmanager
    def launching(self, each: float) -> Iterator[None]:
        """For the length of a block, a launch costs ``each`` seconds and nothing else costs any: compiled code calls its
        kernels without Python's operators, autograd and views between them, a captured graph (0) all at once."""
        outer, self.each = self.each, each
        try:
            yield
        finally:
            self.each = outer

    def before(self, name: str) -> tuple[Operation, ...]:
        """What a stream has to do, or to wait for, before what is enqueued next."""
        tail, waits = self.tails.get(name), self.awaited.get(name)
        if tail is None:
            return tuple(waits or ())
        return (tail, *waits) if waits else (tail,)

    def let_wait(self, name: str, operations: Iterable[Operation]) -> None:
        """What is enqueued next on the stream called ``name`` starts after ``operations``."""
        waits = self.awaited.setdefault(name, [])
        for op in operations:
            if op.end is not None and op.end <= self.clock:
                continue
            beside = [each for each in waits if each.stream == op.stream and each.sip == op.sip]
            if any(each is op or each.enqueue > op.enqueue for each in beside):
                continue  # what comes after it on its stream is waited for
            for each in beside:
                if each.enqueue < op.enqueue:
                    waits.remove(each)  # a host that runs ahead waits for many of one stream
            waits.append(op)

    def take_awaited(self) -> Sequence[Operation]:
        """What the operation that is enqueued now has to wait for."""
        if not self.awaited:
            return ()
        taken = self.awaited.pop(self.stream, ())
        if self.unsettled:  # what comes later on this stream has to wait for the values too
            self.unsettled.setdefault(self.stream, []).extend(op for op in taken if not op.executed)
        return taken

    def awaiting_values(self) -> Sequence[Operation]:
        """What the operation that is enqueued now has to wait for and whose values are to come."""
        return [op for op in self.awaited.get(self.stream, ()) if not op.executed] if self.awaited else ()

    def streams_of(self, sip: int | None) -> list[str]:
        """Names of the streams of a SIP (None: of all). Those on which nothing is yet, as of a receive that is to come, are of
        the SIP that all others are of."""
        names = [name for name in self.tails if sip is None or self.tails[name].sip == sip]
        if len(names) < len(self.tails):
            return names
        received = () if self.order is None else self.order.streams
        return list(dict.fromkeys([*names, *self.awaited, *received]))

    def before_all(self, streams: Iterable[str]) -> list[Operation]:
        """What some streams have to do, or to wait for, before what is enqueued next on them."""
        return list(dict.fromkeys(op for name in streams for op in self.before(name)))

    @contextmanager
    def waiting_for(self, streams: Collection[str]) -> Iterator[list[Operation]]:
        """A block in which the host waits for all that is on some streams now, and that these have to wait for: the
        operations. What other threads of the rank enqueue there meanwhile it does not wait for."""
        taken = {name: [*self.awaited[name]] for name in streams if name in self.awaited}
        order = self.order
        ends = [] if order is None else order.ends(streams)
        with self.one_wait():
            yield self.before_all(streams)
        for name, operations in taken.items():
            left = [op for op in self.awaited.get(name, ()) if op not in operations]
            if left:
                self.awaited[name] = left
            else:
                self.awaited.pop(name, None)
        if order is not None:
            for end in ends:
                order.host_waits(end)

    @contextmanager
    def as_one(self) -> Iterator[None]:
        """For the length of a block, what torch computes is no operation of the program."""
        outer, self.unrecorded = self.unrecorded, True
        try:
            with nullcontext() if self.watcher is None else self.watcher.beside():
                yield
        finally:
            self.unrecorded = outer

    @contextmanager
    def one_wait(self) -> Iterator[None]:
        """For the length of a block the host waits for a GPU, to its watcher once."""
        watcher, self.watcher, begin = self.watcher, None, self.clock
        try:
            yield
        finally:
            self.watcher = watcher
            if watcher is not None and self.clock > begin:
                watcher.waited(begin, for_gpu=True)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """For the length of a block, what is done is no part of the program and takes no time: compiling, say."""
        clock = self.clock
        try:
            with self.as_one():
                yield
        finally:
            self.clock = clock

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """For the length of a block the host compiles, which takes neither time nor memory of a GPU."""
        outer, self.takes_memory = self.takes_memory, False
        try:
            with self.aside():
                yield
        finally:
            self.takes_memory = outer

    @contextmanager
    def launching_graph(self, overhead: float) -> Iterator[None]:
        """For the length of a block, what is enqueued belongs to one graph, whose launch costs ``overhead`` s."""
        self.prepare(overhead)
        with self.launching(0.0):
            yield


class Hosts:
    """The hosts of one simulation.

    Args:
        scheduler: knows which rank runs.
        sips: rank r drives the r-th unless it sets another.
        seed: of the ranks' generators.

    Attributes:
        main: main's host.
        of_rank: the ranks' hosts, of the last spawn.
        folding: which ranks of it run, None: all.
        needs: if all run, who has wanted something of whom that only they can do.
        detours: reasons for which all hosts take the whole path: features of the simulation that listen.
        observing: whether a plugin's hook is running: what it does is not the program's.
        inside_kernel: whether a kernel written in Python is running.
        order: watches the order of events in ranks; None: no watcher.
    """

    def __init__(self, scheduler: RankScheduler, sips: Sequence[int], seed: int) -> None:
        self.sips = sips
        self.seed = seed
        self.detours = 0
        self.main = Host(None, sips[0], seed)
        self.of_rank: dict[int, Host] = {}
        self.folding: Folding | None = None
        self.needs: set[tuple[int, tuple[int, ...]]] = set()
        self.observing = False
        self.inside_kernel = False
        self.order: Order | None = None
        self._rank_by_greenlet = scheduler.rank_by_greenlet
        self._rank_of_scheduler = scheduler.rank

    def has_ended(self, rank: int) -> bool:
        """Whether the program of a rank has."""
        found = self._rank_of_scheduler(rank)
        return found is not None and not found.live

    def add_detour(self) -> None:
        """From now on, all hosts take the whole path."""
        self.detours += 1
        for host in (self.main, *self.of_rank.values()):
            host.detours += 1

    def open(self, count: int, clock: float, folding: Folding | None = None) -> None:
        """Hosts for the ranks of a spawn that run, all at ``clock`` s."""
        self.folding = folding
        self.needs.clear()
        ranks = range(count) if folding is None else folding.live
        self.of_rank = {rank: Host(rank, self.sips[rank], self.seed, clock, self.detours) for rank in ranks}
        if self.order is not None:
            world = object()
            for rank, host in self.of_rank.items():
                host.order = self.order.of(rank, world)

    def sip_of(self, rank: int) -> int:
        """The SIP that a rank drives, also one that does not run: it would drive its own."""
        host = self.of_rank.get(rank)
        return self.sips[rank] if host is None else host.sip

    def need(self, members: Sequence[int], what: str) -> None:
        """The rank that runs wants something of ``members`` which only they can do.

        Raises :class:`~kernbench.simulation.ranks.folding.StandInNeededError` if one of them does not run.
        """
        if self.folding is not None:
            self.folding.need(self.current_rank(), members, what)
        else:
            self.needs.add((self.current_rank(), tuple(members)))

    def current(self) -> Host:
        """The host that runs: a rank's, or main's."""
        rank = self._rank_by_greenlet.get(getcurrent())
        if rank is None:
            if not acts_for_a_rank():
                return self.main
            rank = self._rank_by_greenlet[getcurrent()]
        return self.of_rank[rank]

    def current_rank(self) -> int:
        """The rank that runs. Raises :class:`KernbenchError` in main."""
        rank = self._rank_by_greenlet.get(getcurrent())
        if rank is None and acts_for_a_rank():
            rank = self._rank_by_greenlet[getcurrent()]
        if rank is None:
            raise KernbenchError("this is for ranks: call it inside the function given to ctx.multiprocessing.spawn")
        return rank

    def settle_main(self, present: float) -> None:
        """Move main's clock to ``present`` s, and past the clocks of all ranks."""
        self.main.clock = max([self.main.clock, present, *(host.clock for host in self.of_rank.values())])

    def forbid_observers(self, what: str) -> None:
        """Raise if a plugin that observes tries to ``what``: it is no part of the program."""
        if self.observing:
            raise KernbenchError(f"a plugin that observes cannot {what}: it is no part of the program")
