"""The way between a rank's program and the simulation, in the rank's process: calls one way, replies the other."""

from __future__ import annotations

import os
import threading
from _thread import RLock, allocate_lock
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum, auto
from typing import Any, NoReturn

from kernbench.errors import KernbenchError
from kernbench.processes.channel import Portable, Wire, restored
from kernbench.processes.held_signals import HeldSignals
from kernbench.processes.payload import Payloads, Posted
from kernbench.processes.shared_memory import SharedMemory
from kernbench.scheduler.crew import Crew, being_outside, is_outside
from kernbench.sim_engine import Operation
from kernbench.simulation.ranks.hosts import Host
from kernbench.simulation.ranks.locations import user_location
from kernbench.simulation.ranks.training_steps import StoppedAfterSteps
from kernbench.simulation.simulation import Simulation
from kernbench.simulation.values.collective_values import Effect
from kernbench.triton_engine.memory import write_epoch

_AMONG_RANKS = frozenset({"post", "message", "store", "await_values", "wait_for_first", "group", "ask_for", "drive"})
"""Calls that only a rank can make."""

_FOR_OPERATIONS = frozenset({"wait", "wait_for_first", "finish_stream", "synchronize"})
"""Calls that wait for operations."""

_MOST_KEPT = 256
"""Calls that are kept before they are sent, though the answer has no waiter."""


SETTLE = -1
"""In the place of a thread's number: the simulation wants to know when threads that take no turns rest."""


LOOK = -2
"""Likewise: it wants to know whether what a thread waits for is ready."""


SHARED = -3
"""Likewise: it says that another process uses a SIP, too; there is no answer."""


ASKED = -4
"""In the place of a thread's number: what those that take no turns have to say."""


class _Numbered(threading.local):
    number: int | None = None


class _Ticket:
    """The number of an operation, which the simulation may forget once the operation has no holder here."""

    __slots__ = ("_released", "number")

    def __init__(self, number: int, released: list[int]) -> None:
        self.number = number
        self._released = released

    def __del__(self) -> None:
        self._released.append(self.number)


class Settle(Enum):
    """How long threads that take no turns are waited for.

    Attributes:
        BEFORE_TIME: those that have begun, or gone on, until they rest.
        IDLE: all, until nothing is expected of them: nothing else can happen.
        STILL: not at all: they have nothing to do.
    """

    BEFORE_TIME = auto()
    IDLE = auto()
    STILL = auto()


class RankHost(Host):
    """The host of a rank that is a process."""

    side: Uplink

    def let_wait(self, name: str, operations: Any) -> None:
        """See :class:`Host`: here, and in the simulation, where it counts."""
        operations = tuple(operations)
        self.side.cast("let_wait", name, self.side.numbers(operations), self.clock)
        super().let_wait(name, operations)


class Uplink:
    """A rank's way to the simulation.

    Args:
        simulation: this process's copy of it.
        rank: which rank runs here.
        wire: to the simulation.
        shared: memory shared with it.

    Attributes:
        host: of the rank.
        simulation, rank: as given.
        payloads: of its calls.
        posted: its collectives and messages that have not ended, by number.
        writers: of these, those whose values are to come, by the storages that they write.
        apart: whether this is a process that the rank has forked itself (a worker of a ``DataLoader``), which is no rank: what
            it computes is not timed, and it cannot call others.
        crew: the rank's threads, once its program has started one.
        turn: the number of the running thread, None: it takes no turns.
        signals: whose handlers do not run in the middle of what is said.
        settle: returns when threads that take no turns rest; whether one did something until then.
        looks: whether what threads wait for is ready, by the numbers of their calls.
        returning: threads that were away, and wait for their turn.
        shares: marks a SIP as one that other processes use, too.
    """

    def __init__(self, simulation: Simulation, rank: int, wire: Wire, shared: SharedMemory) -> None:
        self.simulation = simulation
        self.rank = rank
        self._wire = wire
        self.payloads = Payloads(shared, simulation.storages)
        self.signals = HeldSignals()
        self._lock = RLock()  # the interpreter's own: a rank's program gets others
        self._kept: list[tuple[Any, ...]] = []
        self._released: list[int] = []
        self._numbered = 0
        self.apart = False
        self.posted: dict[int, Posted] = {}
        self.writers: dict[int, dict[int, Posted]] = {}
        self.crew: Crew | None = None
        self.turn = _Numbered()
        self.settle: Callable[[Settle], bool] = lambda _: False
        self.looks: dict[int, Callable[[], bool]] = {}
        self.returning: set[int | None] = set()
        self.shares: Callable[[int], None]
        self._turns = allocate_lock()
        self._replies: dict[int, tuple[Any, ...]] = {}
        self._waiting: dict[int, Any] = {}
        self._reads: int | None = None
        before = simulation.hosts.of_rank[rank]
        # its operations are put on streams in the simulation's process: none is on the bare path
        self.host = RankHost(rank, before.sip, simulation.seed, before.clock, detours=simulation.hosts.detours + 1)
        self.host.side = self

    def part(self) -> None:
        """In a process that the rank has forked: the way is the rank's alone."""
        self.apart = True
        self._kept = []
        self._wire.close()
        self.host.unrecorded = True

    @property
    def has_turn(self) -> bool:
        """Whether the running thread is the one of the rank's whose turn it is."""
        return self.turn.number is not None and not is_outside()

    @contextmanager
    def away(self, awaits: str, *, own: bool = False) -> Iterator[None]:
        """The block waits for what the simulation does not see. The others go on, until they cannot without this thread.
        ``own``: see :meth:`.RankThreads.outside`."""
        self.compute()
        self.cast("leave", awaits, self.host.clock)
        self.send()
        crew = self.crew
        if crew is None:
            try:
                with self.host.aside():
                    yield
            finally:
                self.call("come_back", own)
            return
        kept = crew.read()
        self.hand_over()
        try:
            with being_outside():
                yield
        finally:
            if crew.closed and self.turn.number:
                raise SystemExit
            with self.signals:
                self.returning.add(self.turn.number)
                with self._lock:  # what is kept is of the thread that runs
                    self._send([("call", "come_back", (own,), None, "", 0, 0.0, user_location())])
                reply = self._reply()
                self.returning.discard(self.turn.number)
                self._hear("come_back", *reply)
                crew.write(kept)

    def begin_turns(self) -> None:
        """In a thread that has got a number: return when it is its turn."""
        self._hear("thread", *self._reply())

    def say(self, item: tuple[object, ...], *, prompt: bool) -> None:
        """In a thread that has no turn: have the simulation call something, before time moves (``prompt``) or when nothing else
        can happen."""
        with self.signals, self._lock:
            self._put(ASKED, (item, prompt))

    def hand_over(self) -> None:
        """The running thread waits for no reply: another one reads those of the threads that do."""
        with self._turns:
            if self._reads is None and self._waiting:
                _wake(next(iter(self._waiting.values())))

    def _reply(self) -> tuple[Any, ...]:
        """The next reply to the running thread."""
        me = self.turn.number
        assert me is not None
        woken = allocate_lock()
        woken.acquire()
        while True:
            with self._turns:
                if (mine := self._replies.pop(me, None)) is not None:
                    self._waiting.pop(me, None)
                    return mine
                self._waiting[me] = woken
                reads = self._reads is None
                if reads:
                    self._reads = me
            if reads:
                self._read()
            else:
                woken.acquire()

    def _read(self) -> None:
        """Read a reply, and wake up whose it is."""
        try:
            number, *reply = self._wire.receive()
        except (EOFError, OSError):
            gone()
        if number == SHARED:
            self.shares(*reply)
        elif number in (SETTLE, LOOK):
            told = self.settle(*reply) if number == SETTLE else self.looks[reply[0]]()
            with self._lock:
                self._wire.send((number, told))
        with self._turns:
            self._reads = None
            if number >= 0:
                self._replies[number] = tuple(reply)
                if number != self.turn.number and number in self._waiting:
                    _wake(self._waiting[number])

    def _require_rank(self, name: str) -> None:
        if name in _AMONG_RANKS:
            raise KernbenchError(
                f"a process that rank {self.rank} has started itself is no rank: it cannot meet others ({name}). Call "
                "torch.distributed in the rank"
            )

    def compute(self) -> None:
        """Before a call that waits: what else there is to tell."""

    def cast(self, name: str, *args: object) -> None:
        """Have the simulation call something, in this rank's turn; nothing comes back."""
        if self.apart:
            return self._require_rank(name)
        self._kept.append((name, *args))
        if len(self._kept) >= _MOST_KEPT:
            self.send()
        return None

    def send(self) -> None:
        """Send what is kept."""
        if self.apart:
            return
        with self.signals, self._lock:
            kept, self._kept = self._kept, []
            if self._released:
                released = self._released.copy()
                del self._released[: len(released)]
                kept.append(("released", released))
            if kept:
                self._send(kept)

    def _send(self, items: list[tuple[Any, ...]]) -> None:
        self._put(self.turn.number or 0, items)

    def _put(self, number: int, body: object) -> None:
        try:
            self._wire.send((number, body))
        except OSError:
            gone()

    def call(self, name: str, *args: object) -> Any:
        """Have the simulation call something, in this rank's turn, and wait until it has. Raises what it raises."""
        if self.apart:
            return self._require_rank(name)
        if self.turn.number is None:
            raise KernbenchError(
                f"a thread of rank {self.rank}'s process cannot ask the simulation for anything ({name}): it has begun before "
                "the process became a rank, or not by threading.Thread. Start it after init_process_group"
            )
        self.compute()
        host, place, crew = self.host, user_location(), self.crew
        own = None if crew is None else crew.read()
        with self.signals:
            with self._lock:
                self.cast("call", name, args, host.clock, host.stream, host.sip, host.busy, place)
                self.send()
            try:
                return self._hear(name, *self._reply())
            finally:
                if crew is not None:
                    crew.write(own)

    def _hear(
        self,
        name: str,
        value: object,
        error: Portable | None,
        clock: float,
        now: float,
        news: Sequence[tuple[Any, ...]],
    ) -> Any:
        """A reply: gives its value, or raises what the call has raised."""
        host = self.host
        begin, host.clock = host.clock, clock
        self.simulation.engine.now = now
        if host.watcher is not None and clock > begin:
            host.watcher.waited(begin, for_gpu=name in _FOR_OPERATIONS and host.uses_gpu)
        for each in news:
            self._learn(*each)
        if error is not None:
            raised = restored(error)
            if self.crew is not None and isinstance(raised, SystemExit):
                self.crew.closed = True  # the rank is being unwound
            if isinstance(raised, StoppedAfterSteps):
                mine = self.simulation.steps.of_rank[self.rank]
                mine.stopped = mine.released = True
            raise raised
        return value

    def _learn(
        self,
        number: int,
        executed: bool,
        start: float | None,
        end: float | None,
        error: Portable | None,
        detail: dict[str, Any] | None,
        effect: Effect | None,
    ) -> None:
        """What has become of a collective or message of this rank."""
        posted = self.posted[number]
        op = posted.op
        if detail is not None:
            op.detail = detail
        if error is not None:
            op.error = restored(error)
        if executed or error is not None or end is not None:
            self._has_come(number, posted)
        if executed and not posted.copied:
            with self.simulation.torch_recorder.paused(), self.host.as_one():
                if op.error is None:
                    self.payloads.take_outputs(posted, effect)
                    write_epoch.bump()
                else:
                    self.payloads.drop(posted)
            op.executed = True
        if end is not None and start is not None:
            del self.posted[number]
            op.resolve(start, end)

    def _has_come(self, number: int, posted: Posted) -> None:
        """Nothing is to come any more from a call of this rank."""
        for storage in posted.writes:
            writers = self.writers.get(storage)
            if writers is not None and writers.pop(number, None) is not None and not writers:
                del self.writers[storage]

    def number(self, op: Operation) -> int:
        """The number of an operation that the simulation has; 0: it has none."""
        return 0 if op.ticket is None else int(op.ticket.number)

    def numbers(self, operations: Sequence[Operation]) -> list[int]:
        """Those of operations that have one."""
        return [op.ticket.number for op in operations if op.ticket is not None]

    def enter(self, op: Operation) -> int:
        """Give a number to an operation that the simulation is notified of."""
        self._numbered += 1
        op.ticket = _Ticket(self._numbered, self._released)
        return self._numbered


def _wake(lock: Any) -> None:
    if lock.locked():
        lock.release()


def gone() -> NoReturn:
    """The simulation is gone: no receiver is left."""
    os._exit(1)
