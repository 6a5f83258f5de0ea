"""The timeline of a simulation as spans and messages: what exporters, tables and pictures are made from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from kernbench.cost.op_costs import OpCosts
from kernbench.memory.ledger import Ledger, category_of
from kernbench.notebook_html import block, paragraph, picture
from kernbench.plurals import counted
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.log_rows import LoggedOperations
from kernbench.sim_engine.op_log import CollectiveTrace
from kernbench.sim_engine.operation import shown
from kernbench.simulation.ranks.serving_requests import EngineStep, Requests
from kernbench.topology import Topology
from kernbench.trace.picture import timeline_picture
from kernbench.trace.request_spans import request_spans
from kernbench.trace.spans import COMPUTE_KINDS, HOST, ChunkStep, Span

MAX_STEPS = 20_000
"""Chunk steps that a timeline holds unless more are asked for."""


class MemoryChange(NamedTuple):
    """Bytes that a rank (None: main) allocated on a SIP, or gave back (negative), at a moment (s), and what they were for."""

    rank: int | None
    sip: int
    at: float
    category: str
    change: int


@dataclass(frozen=True)
class Timeline:
    """What happened, in the order of the log.

    Attributes:
        topology: the system.
        title: the simulation's name, possibly empty.
        spans: what ran on streams and hosts.
        messages: chunk steps of the collectives that fit the limit.
        steps_left_out: chunk steps of those that do not.
        collectives_left_out: number of the latter.
        unfinished: operations that have not ended.
        dropped: what the log has not kept, in a sentence.
        ledgers: what each process allocated on each SIP.
        unmodelled: operators that no model knows, each in a sentence.
        interrupted: the signal that ended the run; empty: none did.
        requests: of a serving engine, each as two spans; no part of ``spans``.
        engine_steps: of it.
    """

    topology: Topology
    title: str
    spans: tuple[Span, ...]
    messages: tuple[ChunkStep, ...]
    steps_left_out: int
    collectives_left_out: int
    unfinished: int
    dropped: str = ""
    ledgers: tuple[Ledger, ...] = ()
    unmodelled: tuple[str, ...] = ()
    interrupted: str = ""
    requests: tuple[Span, ...] = ()
    engine_steps: tuple[EngineStep, ...] = ()

    @classmethod
    def of(cls, source: HasEngine | GraphEngine, *, max_steps: int | None = MAX_STEPS) -> Timeline:
        """Read the log of a context or an engine.

        Args:
            source: the simulation; it may still be running.
            max_steps: chunk steps to keep. A collective is kept whole or not at all, in the order of the log. None: all.
        """
        engine = engine_of(source)
        log = engine.op_log
        messages: list[ChunkStep] = []
        left_out = collectives_left_out = 0
        for trace in log.collectives:
            if max_steps is not None and len(messages) + len(trace.run.plan) > max_steps:
                left_out += len(trace.run.plan)
                collectives_left_out += 1
            else:
                messages += _messages(trace)
        reported = getattr(getattr(source, "simulation", source), "requests", None)
        records, steps = reported.all() if isinstance(reported, Requests) else ([], [])
        return cls(
            topology=engine.topology,
            title=str(getattr(source, "correlation_id", "")),
            spans=(*_host_spans(engine), *_stream_spans(log.operations)),
            messages=tuple(messages),
            steps_left_out=left_out,
            collectives_left_out=collectives_left_out,
            unfinished=int(np.isnan(log.operations.columns().end).sum()),
            dropped=log.note,
            ledgers=tuple(log.ledgers),
            unmodelled=() if isinstance(source, GraphEngine) else source.op_costs.unmodelled.sentences,
            interrupted=str(getattr(getattr(source, "simulation", source), "interrupted", "")),
            requests=tuple(request_spans(records)),
            engine_steps=tuple(steps),
        )

    def memory(self) -> list[MemoryChange]:
        """What was allocated and given back, by moment."""
        changes = [
            MemoryChange(ledger.rank, ledger.sip, at, category_of(entry), change)
            for ledger in self.ledgers
            for at, entry, change in ledger.changes()
        ]
        return sorted(changes, key=lambda change: change.at)

    def _repr_html_(self) -> str:
        """What a notebook shows of it: its picture."""
        return block(picture(timeline_picture(self), "timeline"), paragraph(self.note))

    @property
    def ranks(self) -> list[int]:
        """Every rank that did anything."""
        found = {span.rank for span in self.spans if span.rank is not None}
        return sorted(found.union(*((message.src, message.dst) for message in self.messages)))

    @property
    def end(self) -> float:
        """When the last thing ended, virtual seconds."""
        return max([0.0, *(span.end for span in self.spans), *(message.arrived for message in self.messages)])

    @property
    def note(self) -> str:
        """What is missing from it or not modelled, in a sentence; empty if nothing is."""
        parts = [f"interrupted by {self.interrupted}"] if self.interrupted else []
        parts += [*([self.dropped] if self.dropped else []), *self.unmodelled]
        if self.steps_left_out:
            parts.append(
                f"{self.steps_left_out} chunk steps of {self.collectives_left_out} collectives are not shown "
                "(max_steps=None shows all)"
            )
        if self.unfinished:
            parts.append(
                f"{counted(self.unfinished, 'operation')} had not ended and {'is' if self.unfinished == 1 else 'are'} not "
                "shown"
            )
        return "; ".join(parts)


class HasEngine(Protocol):
    """A context, as far as a timeline is made of it."""

    engine: GraphEngine

    @property
    def op_costs(self) -> OpCosts:
        """What torch's operations cost, and which of the costs are not known."""


def engine_of(source: HasEngine | GraphEngine) -> GraphEngine:
    """The engine of a context, or the engine itself."""
    return source if isinstance(source, GraphEngine) else source.engine


def _stream_spans(operations: LoggedOperations) -> Iterator[Span]:
    for op in operations.entries():
        if type(op) is tuple:
            title, lane, _, start, end, modelled, _ = op
            took, (below, above) = end - start, title.spread
            yield Span(
                lane.rank, lane.sip, shown(lane.stream), title.name, title.kind, start, end, title.nbytes,
                dict(title.detail or {}), (took - below * modelled, took + above * modelled),
            )  # fmt: skip
        elif op.start is not None and op.end is not None:
            yield Span(
                op.rank, op.sip, shown(op.stream), op.name, op.kind, op.start, op.end, op.nbytes, dict(op.detail or {}),
                op.interval,
            )  # fmt: skip


def _host_spans(engine: GraphEngine) -> Iterator[Span]:
    """What each host did: launches, which the cost of a launch tells from the time of enqueueing, and waits."""
    launch = engine.topology.device.launch
    by_rank: dict[int | None, list[Span]] = {}
    for op in engine.op_log.operations.entries():
        if type(op) is tuple:
            title, who, returned, host = op[0], op[1], op[2], op[6]
        else:
            title = who = op
            returned, host = op.enqueue, op.host
        if title.kind in COMPUTE_KINDS or title.kind == "dma":
            returned -= launch.latency  # the device sees it a latency after the call has returned
        elif title.kind != "collective":
            continue
        span = Span(who.rank, who.sip, HOST, f"launch {title.name}", "launch", returned - host, returned)
        by_rank.setdefault(who.rank, []).append(span)
    for rank, begin, end, awaited, sip in engine.op_log.waits:
        what = awaited.name if awaited.kind == "condition" else f"wait for {awaited.name}"
        by_rank.setdefault(rank, []).append(Span(rank, sip, HOST, what, "wait", begin, end))
    for spans in by_rank.values():
        free = 0.0
        for span in sorted(spans, key=lambda span: (span.begin, span.end)):
            begin = max(span.begin, free)  # two clocks rounded differently must not make two spans overlap
            if span.end >= begin:
                yield span if begin == span.begin else _begun_at(span, begin)
                free = span.end


def _begun_at(span: Span, begin: float) -> Span:
    return Span(span.rank, span.sip, span.track, span.name, span.kind, begin, span.end, span.nbytes, span.detail)


def _messages(trace: CollectiveTrace) -> Iterator[ChunkStep]:
    """The chunk steps that have arrived."""
    plan, times = trace.run.plan, trace.run.times
    for i in np.flatnonzero(~np.isnan(times.arrived)).tolist():
        yield ChunkStep(
            trace.name,
            trace.ranks[plan.src[i]],
            trace.ranks[plan.dst[i]],
            float(times.start[i]),
            float(times.sent[i]),
            float(times.arrived[i]),
            int(plan.nbytes[i]),
            int(plan.dst_chunk[i]),
            bool(plan.reduces[i]),
            plan.queue_links[plan.queue[i]],
        )
