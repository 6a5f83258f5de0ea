"""Values: runs what was launched, in the order of each rank's streams, as late as it may.

Launches are deferred until a value is read. That is what lets one drain run the same kernel of many ranks as one batch. A
kernel may find that it waits for memory that another writer has yet to write: it is suspended, what its rank launched after
it on the same stream waits behind it, and it is resumed at the next drain.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

from kernbench.sim_engine.condition import Condition
from kernbench.sim_engine.operation import Operation


class Deferred(Protocol):
    """A launch whose values have not been computed yet.

    Attributes:
        op: its operation; marked executed, or failed, when it has run.
        rank: whose program order it belongs to (None: main).
        batch_key: launches of different ranks with equal keys may run as one batch.
        touches: identities of the storages it may read or write.
        after: operations, besides those before it on its stream, whose values must be there first.
    """

    op: Operation
    rank: int | None
    batch_key: Hashable
    touches: frozenset[int]
    after: Sequence[Operation]

    def start_batch(self, batch: Sequence[Deferred]) -> Running:
        """Begin to compute the values of ``batch``, which contains self."""


class Running(Protocol):
    """A batch that is being computed."""

    def run(self) -> bool:
        """Go on as far as possible; True if anything happened, False if it waits for exactly what it waited for."""

    @property
    def errors(self) -> Sequence[BaseException | None] | None:
        """None while it waits for another writer; once it has ended, an error or None for each launch of the batch."""

    def describe_wait(self) -> str:
        """What it waits for, for a deadlock report."""


class Finished:
    """A batch that ran to its end at once."""

    def __init__(self, errors: Sequence[BaseException | None]) -> None:
        self.errors: Sequence[BaseException | None] | None = errors

    def run(self) -> bool:
        """Nothing is left to do."""
        return False

    def describe_wait(self) -> str:
        """It waits for no writer."""
        return "nothing"


_Queue = tuple[int | None, str]
_Each = TypeVar("_Each")


class Pick(Protocol):
    """Says what goes first (:mod:`kernbench.order.choices`)."""

    def __call__(self, point: str, options: Sequence[Hashable], place: Callable[[], object] | None = None) -> int:
        """The index of one of ``options``, which are names, at a point; ``place``: tells where that is."""


def _queue_of(launch: Deferred) -> _Queue:
    return launch.rank, launch.op.stream


def _turn(launch: Deferred) -> str:
    """Whose turn it may be."""
    return f"rank {launch.rank}, {launch.op.stream}"


class DataExecutor:
    """The launches that are still to be computed, one queue per rank and stream."""

    def __init__(self) -> None:
        self._queues: dict[_Queue, deque[Deferred]] = {}
        self._touched: dict[int, int] = {}
        self._suspended: list[tuple[Running, list[Deferred]]] = []
        self._awaited: list[tuple[Sequence[Operation], Condition]] = []
        self.failed: list[Operation] = []
        """Operations that failed and whose error may not have been raised yet."""
        self.on_settled: Callable[[Operation], None] | None = None
        """Called with each operation whose values have been computed, or failed to."""
        self.on_broken_off: Callable[[Operation], None] | None = None
        """Called with each operation that was broken off while it was computed: it has to end."""
        self.pick: Pick | None = None
        """Says which of several is computed next (:mod:`kernbench.order.choices`); None: the first one is."""
        self._late: dict[Operation, bool] = {}
        """Of what was asked whether it comes later, when ranks have run on as far as they can: the answer."""

    def __len__(self) -> int:
        return sum(map(len, self._queues.values())) + sum(len(batch) for _, batch in self._suspended)

    def submit(self, launch: Deferred) -> None:
        """Keep a launch for later."""
        launch.op.executed = False
        for storage in launch.touches:
            self._touched[storage] = self._touched.get(storage, 0) + 1
        self._queues.setdefault(_queue_of(launch), deque()).append(launch)

    def touches_any(self, storages: Iterable[int]) -> bool:
        """Whether a kept launch may read or write one of these storages."""
        return bool(self._touched) and any(storage in self._touched for storage in storages)

    def keeps(self, op: Operation) -> bool:
        """Whether the launch of an operation is kept or suspended."""
        return any(launch.op is op for launch in self._launches())

    def kept(self, rank: int | None) -> list[Operation]:
        """The operations of a rank whose launches are kept or suspended."""
        return [launch.op for launch in self._launches() if launch.rank == rank]

    def _launches(self) -> list[Deferred]:
        kept = [launch for queue in self._queues.values() for launch in queue]
        return kept + [launch for _, batch in self._suspended for launch in batch]

    def when_executed(self, operations: Sequence[Operation], condition: Condition) -> None:
        """Fulfil ``condition`` once the values of all ``operations`` are there."""
        self._awaited.append((operations, condition))

    def awaited(self) -> list[Operation]:
        """Operations whose values are to come and which kept launches, or conditions of :meth:`when_executed`, wait for."""
        after = [launch.after for launch in self._launches()] + [operations for operations, _ in self._awaited]
        return [op for operations in after for op in operations if not op.executed]

    def flush(self, now: float) -> bool:
        """Run every kept launch that can run; an error ends its own operation only. Returns whether anything ran.

        Ranks advance together: the heads of all queues are grouped by batch key, so that the same kernel launched by
        many ranks runs once.
        """
        ran = False
        while self._queues or self._suspended:
            begin: Sequence[Callable[[float], bool]] = (self._resume_suspended, self._start_heads)
            if self.pick is not None and self._suspended and self._queues and self.pick("h", ("waited", "new")):
                begin = begin[::-1]
            moved = [step(now) for step in begin]
            if not any(moved):
                break
            ran = True
        return self._tell() or ran

    def _tell(self) -> bool:
        """Fulfil the conditions whose operations have been executed; False if there is none."""
        if not self._awaited:
            return False
        waiting, self._awaited = self._awaited, []
        told = False
        for operations, condition in waiting:
            if all(op.executed for op in operations):
                condition.fulfil()
                told = True
            else:
                self._awaited.append((operations, condition))
        return told

    def suspended(self) -> list[tuple[list[Deferred], str]]:
        """The batches that wait for another writer, and for what."""
        return [(batch, running.describe_wait()) for running, batch in self._suspended]

    def suspended_ranks(self) -> set[int]:
        """The ranks whose kernels wait for another writer."""
        return {launch.rank for _, batch in self._suspended for launch in batch if launch.rank is not None}

    def abandon(self, error: BaseException, now: float) -> None:
        """Fail every kept launch with ``error``: it can never run."""
        kept, awaited = self._launches(), self._awaited
        self.clear()
        for launch in kept:
            launch.op.fail(error, now)
        for _, condition in awaited:
            condition.fail(error, now)

    def clear(self) -> None:
        """Drop every kept launch, and forget failures."""
        self.failed.clear()
        self._queues.clear()
        self._touched.clear()
        self._suspended.clear()
        self._awaited.clear()
        self._late.clear()

    def _resume_suspended(self, now: float) -> bool:
        moved = False
        waiting, self._suspended = self._suspended, []
        turns = [(batch[0], (running, batch)) for running, batch in waiting]
        try:
            for running, batch in self._in_turn(turns):
                if self.pick is not None and self._comes_late(batch[0]):
                    self._suspended.append((running, batch))
                    continue
                with self._taken(batch, now):
                    went_on = running.run()
                    self._settle(running, batch, now)
                if went_on:
                    moved = True
                    self._late.pop(batch[0].op, None)
        finally:
            self._suspended += [entry for _, entry in turns]  # the others of what was broken off
        return moved

    @contextmanager
    def _taken(self, batch: list[Deferred], now: float) -> Iterator[None]:
        """Run ``batch``; where that is broken off, as by Ctrl-C or a limit of a test, its operations end: what is raised tells
        that they have not done what they should, and what their streams have behind them goes on."""
        try:
            yield
        except BaseException:
            self._suspended = [entry for entry in self._suspended if entry[1] is not batch]
            for launch in [launch for launch in batch if not launch.op.executed]:
                self._end(launch, None, now)
                if self.on_broken_off is not None:
                    self.on_broken_off(launch.op)
            raise

    def _comes_late(self, launch: Deferred) -> bool:
        """Whether a launch, or one that may go on after it has waited, is left alone until ranks have run on."""
        if self.pick is None or launch.rank is None:
            return False
        late = self._late.get(launch.op)
        if late is None:
            late = self._late[launch.op] = bool(self.pick("d", (_turn(launch), "later"), lambda: _turn(launch)))
        return late

    def release(self) -> bool:
        """Ranks have run on as far as they can: what was to come later may run; False if there is nothing of the kind."""
        if True not in self._late.values():
            return False
        self._late = dict.fromkeys(self._late, False)
        return True

    def _in_turn(self, named: list[tuple[Deferred, _Each]]) -> Iterator[_Each]:
        """One after the other, as they are or as a policy picks them."""
        while named:
            at = 0 if self.pick is None else self.pick("k", [_turn(launch) for launch, _ in named])
            yield named.pop(at)[1]

    def _apart(self, batch: list[Deferred]) -> Iterator[list[Deferred]]:
        """Launches that can run as one batch, or some of them alone."""
        while self.pick is not None and len(batch) > 1:
            at = self.pick("b", ("together", *map(_turn, batch)))
            if not at:
                break
            yield [batch.pop(at - 1)]
        yield batch

    def _start_heads(self, now: float) -> bool:
        blocked = {_queue_of(launch) for _, batch in self._suspended for launch in batch}
        heads: dict[Hashable, list[Deferred]] = {}
        for key in [key for key in self._queues if key not in blocked]:
            queue = self._queues[key]
            launch = queue[0]
            if launch.after and not all(op.executed for op in launch.after):
                continue
            if self.pick is not None and self._comes_late(launch):
                continue
            queue.popleft()
            if not queue:
                del self._queues[key]
            heads.setdefault((key[1], launch.batch_key), []).append(launch)  # two of one rank share memory: no batch
        left = {id(launch): launch for batch in heads.values() for launch in batch}
        try:
            for together in self._in_turn([(batch[0], batch) for batch in heads.values()]):
                for batch in self._apart(together):
                    with self._taken(batch, now):
                        for launch in batch:
                            del left[id(launch)]
                        self._late.pop(batch[0].op, None)
                        running = batch[0].start_batch(batch)
                        self._settle(running, batch, now)
        finally:
            for launch in [
                launch for launch in left.values() if not launch.op.executed
            ]:  # the others of what was broken off
                self._queues.setdefault(_queue_of(launch), deque()).appendleft(launch)
        return bool(heads)

    def withdraw(self, op: Operation, error: BaseException, now: float) -> None:
        """Fail what waits for another writer and has waited too long; what its stream has behind it goes on."""
        for _, batch in self._suspended:
            for launch in [launch for launch in batch if launch.op is op]:
                batch.remove(launch)
                self._end(launch, error, now)
        self._suspended = [entry for entry in self._suspended if entry[1]]

    def _settle(self, running: Running, batch: list[Deferred], now: float) -> None:
        errors = running.errors
        if errors is None:
            self._suspended.append((running, batch))
            return
        for launch, error in zip(batch, errors, strict=True):
            self._end(launch, error, now if launch.op.end is None else launch.op.end)

    def _end(self, launch: Deferred, error: BaseException | None, at: float) -> None:
        self._late.pop(launch.op, None)
        for storage in launch.touches:
            left = self._touched.pop(storage, 1) - 1
            if left:
                self._touched[storage] = left
        if error is not None:
            launch.op.fail(error, at)
            self.failed.append(launch.op)
        self.computed(launch.op)

    def computed(self, op: Operation) -> None:
        """Nothing more is to come of an operation's values."""
        op.executed = True
        if self.on_settled is not None:
            self.on_settled(op)
