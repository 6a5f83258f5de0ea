"""The op log: what ran, where, when, on which memory.

One record per copy, kernel, GEMM, elementwise or reduction operation and collective, and one per chunk step of a
collective. Records of chunk steps are expanded from the plan's arrays when they are read, so that a large
collective costs the log nothing while it runs.

Operations that are over are kept in columns (:mod:`.log_rows`), 52 bytes each, and so are the waits of hosts
(:mod:`.host_waits`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, overload

from kernbench.defaults import LOG_LIMIT
from kernbench.errors import ConfigError
from kernbench.memory.ledger import Ledger
from kernbench.plurals import counted
from kernbench.sim_engine.host_waits import HostWait, HostWaits
from kernbench.sim_engine.log_rows import FOLD_AT, LoggedOperations
from kernbench.sim_engine.operation import Operation
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

    run: PlanRun
    ranks: Sequence[int]
    sips: Sequence[int]
    buffer_kind: str
    addresses: Sequence[int]
    chunk_offsets: Sequence[int]
    detail: dict[str, Any]

    @property
    def name(self) -> str:
        """In words."""
        return f"{self.detail['op']} #{self.detail['sequence']} on {self.detail['group']}"


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
        often: entries of a kind that it takes as they come before it puts them into columns.
        ledgers: what each process allocated on each SIP.
    """

    def __init__(self, limit: int | None = LOG_LIMIT) -> None:
        if limit is not None and limit < 1:
            raise ConfigError(
                f"log_limit {limit}: expected the number of operations to keep, at least 1, or None for all"
            )
        self.operations = LoggedOperations()
        self.collectives: list[CollectiveTrace] = []
        self.waits = HostWaits()
        self.ledgers: list[Ledger] = []
        self.dropped = 0
        self.begin = 0.0
        self._limit = limit or 0
        self._most = sys.maxsize if limit is None else limit + max(1, limit // 4)
        self.often = FOLD_AT if limit is None else min(FOLD_AT, max(1, limit // 4))

    def add(self, op: Operation) -> None:
        """Note an operation that has been enqueued."""
        recent = self.operations.recent
        recent.append(op)
        if len(recent) >= self.often:
            self.fold()

    def fold(self) -> None:
        """Put rows that have come lately into the columns, and drop what is over the limit."""
        operations = self.operations
        operations.fold()
        if len(operations) >= self._most:
            self._drop(len(operations) - self._limit)

    def add_wait(self, wait: HostWait) -> None:
        """Note that a host has waited."""
        waits = self.waits
        waits.recent.append(wait)
        if len(waits.recent) >= self.often:
            waits.fold()
            if len(waits) >= self._most:
                waits.keep(len(waits) - self._limit)
                self.begin = max(self.begin, waits[0][2])

    def _drop(self, count: int) -> None:
        gone = self.operations.drop(count)
        self.begin = max([self.begin, *(op.enqueue if op.end is None else op.end for op in gone)])
        self.dropped += count
        self.waits.keep_since(self.begin)
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
