"""The op log: what ran, where, when, on which memory.

One record per copy, kernel, GEMM, elementwise or reduction operation and collective, and one per chunk step of a
collective. Records of chunk steps are expanded from the plan's arrays when they are read, so that a large
collective costs the log nothing while it runs.

An operation whose times are known when it is enqueued, and which is like others before it, is a :data:`Row`; rows are kept in
columns, 48 bytes each. It becomes an :class:`Operation` for readers, and for what waits for it. Others are objects from
the start.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from kernbench.defaults import LOG_LIMIT
from kernbench.errors import ConfigError
from kernbench.memory.ledger import Ledger
from kernbench.plurals import counted
from kernbench.sim_engine.condition import Condition
from kernbench.sim_engine.operation import Lane, Operation
from kernbench.sim_engine.plan_run import PlanRun


class MemoryRange(NamedTuple):
    """Memory that an operation reads or writes. Every operand names its own memory space.

    Attributes:
        space: ``"hbm"``, ``"sram"``, ``"tcm"`` or ``"host"``.
        sip: SIP that owns the memory (the SIP of the host link, for ``"host"``).
        address: first byte, in that space.
        nbytes: length, bytes.
        access: ``"r"``, ``"w"`` or ``"rw"``.
        name: what the user calls it, if anything.
    """

    space: str
    sip: int
    address: int
    nbytes: int
    access: str
    name: str = ""


class MemoryRanges(Sequence[MemoryRange]):
    """Ranges of which many lie behind one another, as the cells of a collective do.

    Args:
        runs: in order, the first range of each run, and how many there are, each behind the one before it.
    """

    __slots__ = ("_runs",)

    def __init__(self, runs: Sequence[tuple[MemoryRange, int]]) -> None:
        self._runs = runs

    def __len__(self) -> int:
        return sum(count for _, count in self._runs)

    @overload
    def __getitem__(self, at: int) -> MemoryRange: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[MemoryRange, ...]: ...
    def __getitem__(self, at: int | slice) -> MemoryRange | tuple[MemoryRange, ...]:
        if isinstance(at, slice):
            return tuple(self)[at]
        number = at + len(self) if at < 0 else at
        for first, count in self._runs:
            if 0 <= number < count:
                return first._replace(address=first.address + number * first.nbytes)
            number -= count
        raise IndexError(at)

    def __iter__(self) -> Iterator[MemoryRange]:
        for first, count in self._runs:
            for number in range(count):
                yield first._replace(address=first.address + number * first.nbytes)

    def __reduce__(self) -> Any:
        return MemoryRanges, (self._runs,)


@dataclass(frozen=True, slots=True)
class OpRecord:
    """One line of the log. Times are virtual seconds.

    Attributes:
        kind: ``"kernel"``, ``"gemm"``, ``"attention"``, ``"math"``, ``"dma"``, ``"collective"`` or ``"collective_step"``.
        name: the operation.
        rank: rank that caused it, None for main.
        sip, stream: where it ran; a step's stream is the name of its queue.
        enqueue, start, end: seconds.
        nbytes: payload, bytes.
        operands: memory touched.
        links: links crossed, by index.
        peer: rank at the other end of a message, else None.
        detail: whatever else is worth showing.
    """

    kind: str
    name: str
    rank: int | None
    sip: int
    stream: str
    enqueue: float
    start: float
    end: float
    nbytes: int = 0
    operands: tuple[MemoryRange, ...] = ()
    links: tuple[int, ...] = ()
    peer: int | None = None
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class CollectiveTrace:
    """A collective that ran: the plan with its times, and who its members are."""

    name: str
    run: PlanRun
    ranks: Sequence[int]
    sips: Sequence[int]
    buffer_kind: str
    addresses: Sequence[int]
    chunk_offsets: Sequence[int]
    detail: dict[str, Any]


HostWait = tuple[int | None, float, float, "Operation | Condition", int]
"""A host that waited: rank (None: main), from and until when (s), for what, and its SIP. A plain tuple: waits are many."""


@dataclass(eq=False, frozen=True, slots=True)
class Title:
    """What operations of one plan have in common.

    Attributes:
        name, kind, nbytes: see :class:`Operation`.
        spread: shares of its duration by which measurements lie below and above it.
        draw: see :class:`Operation`.
    """

    name: str
    kind: str
    nbytes: int
    spread: tuple[float, float]
    draw: float = 0.0


Row = tuple[Title, Lane, float, float, float, float, float]
"""An operation that has ended: what it is, whose, when it was enqueued, started and ended, how long it took, and the host's
seconds for it."""


def as_operation(entry: Any) -> Any:
    """A row as the :class:`Operation` that it is; all else as it is."""
    if type(entry) is not tuple:
        return entry
    title, lane, enqueue, start, end, seconds, host = entry
    op = Operation(title.name, title.kind, lane.rank, lane.sip, lane.stream, enqueue, seconds, title.spread)
    op.nbytes, op.host, op.start, op.end = title.nbytes, host, start, end
    return op


class LogColumns(NamedTuple):
    """What a log's operations have, each a value of an array: for sums over all of them, which need no objects.

    Attributes:
        names, kinds: in the order in which they are first met.
        name, kind: of each operation, its place among them.
        rank: -1 of main's.
        start, end: virtual seconds, NaN while unknown.
        nbytes: payload, bytes.
    """

    names: Sequence[str]
    kinds: Sequence[str]
    name: NDArray[np.int64]
    kind: NDArray[np.int64]
    rank: NDArray[np.int64]
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    nbytes: NDArray[np.int64]

    @property
    def ended(self) -> NDArray[np.bool_]:
        """Whether each has ended."""
        return ~(np.isnan(self.start) | np.isnan(self.end))

    def is_kind(self, kind: str) -> NDArray[np.bool_]:
        """Whether each is of a kind."""
        return self.kind == (self.kinds.index(kind) if kind in self.kinds else -1)


FOLD_AT = 4096
"""Entries that a log keeps as they come before it puts them into columns."""


class LoggedOperations(Sequence[Operation]):
    """Operations in the order of enqueueing. Rows are in columns, the others objects beside them."""

    def __init__(self) -> None:
        self.recent: list[Row | Operation] = []
        self._times = array("d")  # five of each row: those behind its title and its lane
        self._heads = array(
            "I"
        )  # two of each row: the numbers of its title and of its lane; of an object, twice `_OBJECT`
        self._objects: dict[int, Operation] = {}
        self._known: dict[Any, int] = {}
        self._by_number: list[Any] = []
        self._dropped = 0

    def append(self, entry: Row | Operation) -> None:
        """Note an operation."""
        self.recent.append(entry)
        if len(self.recent) >= FOLD_AT:
            self.fold()

    def fold(self) -> None:
        """Put what has come lately into the columns."""
        recent, numbers = self.recent, self._known
        first = self._dropped + len(self._heads) // 2
        rows = []
        for at, entry in enumerate(recent):
            if type(entry) is tuple:
                rows.append(entry)
                for head in entry[:2]:
                    if head not in numbers:
                        numbers[head] = len(self._by_number)
                        self._by_number.append(head)
            else:
                self._objects[first + at] = entry  # type: ignore[assignment]
                rows.append(_NO_ROW)
        self._heads.extend(
            chain.from_iterable([(numbers.get(row[0], _OBJECT), numbers.get(row[1], 0)) for row in rows])
        )
        self._times.extend(chain.from_iterable([row[2:] for row in rows]))
        recent.clear()

    def drop(self, count: int) -> list[Operation]:
        """Forget the first ``count``, which are given once more."""
        self.fold()
        gone = self[:count]
        del self._heads[: 2 * count], self._times[: 5 * count]
        for number in range(self._dropped, self._dropped + count):
            self._objects.pop(number, None)
        self._dropped += count
        return gone

    def columns(self) -> LogColumns:
        """All of them as they are now."""
        self.fold()
        heads = np.array(self._heads, np.int64).reshape(-1, 2)
        times = np.array(self._times, np.float64).reshape(-1, 5)
        names: dict[str, int] = {}
        kinds: dict[str, int] = {}

        def place(known: dict[str, int], word: str) -> int:
            return known.setdefault(word, len(known))

        titles = np.zeros((len(self._by_number), 4), np.int64)  # name, kind, bytes of titles; rank of lanes
        for number, head in enumerate(self._by_number):
            if type(head) is Title:
                titles[number, :3] = place(names, head.name), place(kinds, head.kind), head.nbytes
            else:
                titles[number, 3] = -1 if head.rank is None else head.rank
        rows = heads[:, 0] != _OBJECT
        of_title = np.zeros((len(heads), 3), np.int64)
        of_title[rows] = titles[heads[rows, 0], :3]
        rank, start, end = np.full(len(heads), -1), times[:, 1], times[:, 2]
        rank[rows] = titles[heads[rows, 1], 3]
        for number, op in self._objects.items():
            at = number - self._dropped
            of_title[at] = place(names, op.name), place(kinds, op.kind), op.nbytes
            rank[at] = -1 if op.rank is None else op.rank
            start[at] = np.nan if op.start is None else op.start
            end[at] = np.nan if op.end is None else op.end
        return LogColumns([*names], [*kinds], of_title[:, 0], of_title[:, 1], rank, start, end, of_title[:, 2])

    def entries(self) -> Iterator[Any]:
        """All of them as they are kept, rows as rows."""
        self.fold()
        heads, times, by_number, objects = self._heads, self._times, self._by_number, self._objects
        for at in range(len(heads) // 2):
            title = heads[2 * at]
            if title == _OBJECT:
                yield objects[self._dropped + at]
            else:
                yield by_number[title], by_number[heads[2 * at + 1]], *times[5 * at : 5 * at + 5]

    def __len__(self) -> int:
        return len(self._heads) // 2 + len(self.recent)

    def _folded(self, at: int) -> Operation:
        title = self._heads[2 * at]
        if title == _OBJECT:
            return self._objects[self._dropped + at]
        heads, times = self._by_number, self._times
        found: Operation = as_operation((heads[title], heads[self._heads[2 * at + 1]], *times[5 * at : 5 * at + 5]))
        return found

    @overload
    def __getitem__(self, at: int) -> Operation: ...
    @overload
    def __getitem__(self, at: slice) -> list[Operation]: ...
    def __getitem__(self, at: int | slice) -> Operation | list[Operation]:
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(len(self)))]
        number = at + len(self) if at < 0 else at
        folded = len(self._heads) // 2
        if 0 <= number < folded:
            return self._folded(number)
        if not folded <= number < len(self):
            raise IndexError(at)
        found: Operation = as_operation(self.recent[number - folded])
        return found

    def __iter__(self) -> Iterator[Operation]:
        return map(self.__getitem__, range(len(self)))


_OBJECT = (1 << 32) - 1
_NO_ROW: Any = (None, None, 0.0, 0.0, 0.0, 0.0, 0.0)


class OpLog:
    """The operations of one simulation, in the order of enqueueing: the last ``limit`` of them (ADR 0048).

    What is older is dropped, a quarter of the limit at a time, with the collectives and the waits of that time.

    Args:
        limit: how many operations to keep; None: all.

    Attributes:
        operations: what was enqueued.
        collectives: the collectives that were matched, with their chunk steps.
        waits: the times that a rank's host spent waiting.
        dropped: how many operations are not kept any more.
        begin: virtual seconds from which on the log is complete.
        ledgers: what each process allocated on each SIP.
    """

    def __init__(self, limit: int | None = LOG_LIMIT) -> None:
        if limit is not None and limit < 1:
            raise ConfigError(
                f"log_limit {limit}: expected the number of operations to keep, at least 1, or None for all"
            )
        self.operations = LoggedOperations()
        self.collectives: list[CollectiveTrace] = []
        self.waits: list[HostWait] = []
        self.ledgers: list[Ledger] = []
        self.dropped = 0
        self.begin = 0.0
        self._limit = limit or 0
        self._most = sys.maxsize if limit is None else limit + max(1, limit // 4)

    def add(self, op: Operation) -> None:
        """Note an operation that has been enqueued."""
        operations = self.operations
        operations.append(op)
        if len(operations) > self._most:
            self._drop(len(operations) - self._limit)

    def fold(self) -> None:
        """Put rows that have come lately into the columns, and drop what is over the limit."""
        operations = self.operations
        operations.fold()
        if len(operations) > self._most:
            self._drop(len(operations) - self._limit)

    def add_wait(self, wait: HostWait) -> None:
        """Note that a host has waited."""
        waits = self.waits
        waits.append(wait)
        if len(waits) > self._most:
            del waits[: len(waits) - self._limit]
            self.begin = max(self.begin, waits[0][2])

    def _drop(self, count: int) -> None:
        gone = self.operations.drop(count)
        self.begin = max([self.begin, *(op.enqueue if op.end is None else op.end for op in gone)])
        self.dropped += count
        self.waits = [wait for wait in self.waits if wait[2] >= self.begin]
        self.collectives = [
            trace for trace in self.collectives if not trace.run.finished or trace.run.last_start >= self.begin
        ]

    @property
    def note(self) -> str:
        """What is missing, in a sentence; empty if nothing is."""
        if not self.dropped and not self.begin:
            return ""
        return (
            f"the first {counted(self.dropped, 'operation')}, up to {self.begin * 1e3:.6g} ms, were dropped: the log keeps the "
            f"last {self._limit} (simulate(log_limit=...))"
        )

    def __len__(self) -> int:
        return len(self.operations) + sum(len(trace.run.plan) for trace in self.collectives)

    def records(self, *, steps: bool = True) -> Iterator[OpRecord]:
        """Yield the log: operations in the order of enqueueing, then (``steps``) the chunk steps of collectives.

        Operations that have not been resolved yet are left out.
        """
        for op in self.operations:
            if op.end is None or op.start is None:
                continue
            yield OpRecord(
                op.kind, op.name, op.rank, op.sip, op.stream, op.enqueue, op.start, op.end,
                op.nbytes, tuple(op.operands), detail=dict(op.detail or {}),
            )  # fmt: skip
        if steps:
            for trace in self.collectives:
                yield from _step_records(trace)


def _step_records(trace: CollectiveTrace) -> Iterator[OpRecord]:
    plan, times = trace.run.plan, trace.run.times
    columns = zip(
        plan.src.tolist(), plan.dst.tolist(), plan.src_chunk.tolist(), plan.dst_chunk.tolist(), plan.nbytes.tolist(),
        plan.queue.tolist(), plan.reduces.tolist(), times.start.tolist(), times.arrived.tolist(), strict=True,
    )  # fmt: skip
    for src, dst, src_chunk, dst_chunk, nbytes, queue, reduces, start, arrived in columns:
        source, target = trace.ranks[src], trace.ranks[dst]
        yield OpRecord(
            kind="collective_step",
            name=f"{trace.name} {'reduce' if reduces else 'copy'} chunk {dst_chunk}",
            rank=source,
            sip=trace.sips[src],
            stream=f"queue {source}->{target}",
            enqueue=start,
            start=start,
            end=arrived,
            nbytes=nbytes,
            operands=(
                MemoryRange("hbm", trace.sips[src], trace.addresses[src] + trace.chunk_offsets[src_chunk], nbytes, "r"),
                MemoryRange(trace.buffer_kind, trace.sips[dst], 0, nbytes, "rw", "IPCQ slots"),
                MemoryRange(
                    "hbm", trace.sips[dst], trace.addresses[dst] + trace.chunk_offsets[dst_chunk], nbytes,
                    "rw" if reduces else "w",
                ),
            ),
            links=plan.queue_links[queue],
            peer=target,
        )  # fmt: skip
