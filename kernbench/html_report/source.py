"""What a report is made of: a run that has just ended, or the file of a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kernbench.cost.op_costs import OpCosts
from kernbench.errors import KernbenchError, message_of
from kernbench.html_report.findings import findings_of
from kernbench.html_report.links import ShownLinks, links_of
from kernbench.html_report.memory import memory_of
from kernbench.memory.limits import format_size
from kernbench.plurals import counted
from kernbench.scheduler import user_traceback
from kernbench.sim_engine.engine import GraphEngine
from kernbench.simulation.simulation import Simulation
from kernbench.topology.units import DURATION
from kernbench.trace.memory_report import notes_that_python_hides
from kernbench.trace.reading import TraceFile
from kernbench.trace.report import TraceReport, report_of
from kernbench.trace.run_result import RunResult
from kernbench.trace.spans import Span
from kernbench.trace.timeline import Timeline


class ReportedRun(Protocol):
    """A context, as far as a report is made of it."""

    engine: GraphEngine
    simulation: Simulation

    @property
    def op_costs(self) -> OpCosts:
        """What torch's operations cost, and which of the costs are not known."""


@dataclass(frozen=True)
class ReportSource:
    """What is shown.

    Attributes:
        title, subtitle: what ran, and on what.
        spans: of the timeline.
        figures: their times summed up.
        facts: what the run came to: label, value, and a word more, possibly empty.
        notes: what must be said beside the figures, in sentences.
        failures: of ranks that failed: rank, first line, and the whole text.
        findings: pictures of what went wrong (:mod:`kernbench.html_report.findings`).
        steps: of a training program, a row each.
        memory: of ranks, over time and at their peaks.
        links: what links carried, and bandwidths beside their limits; None: nothing is known.
        requests: of a serving engine, as spans of no rank; no part of ``spans``.
        serving: what the engine achieved; None: there was none.
        peaks: the device's matrix FLOP/s by format and its memory's bytes/s, as far as they are known.
    """

    title: str
    subtitle: str
    spans: Sequence[Span]
    figures: TraceReport
    facts: Sequence[tuple[str, str, str]]
    notes: Sequence[str] = ()
    failures: Sequence[dict[str, Any]] = ()
    findings: Sequence[dict[str, object]] = ()
    steps: Sequence[dict[str, Any]] = ()
    memory: Sequence[dict[str, Any]] = ()
    peaks: Mapping[str, object] = field(default_factory=dict)
    links: ShownLinks | None = None
    requests: Sequence[Span] = ()
    serving: dict[str, object] | None = None


def source_of_run(
    run: ReportedRun, result: RunResult, *, errors: Mapping[int, BaseException] | None = None
) -> ReportSource:
    """A run that has ended, still open, and what it came to; ``errors``: what ranks failed with."""
    timeline = Timeline.of(run, max_steps=0)
    figures = report_of(timeline.spans)
    topology = run.engine.topology
    device = topology.device
    nodes = f"{topology.nodes} nodes of " if topology.nodes > 1 else ""
    formats = ("fp8", "bf16", "fp16", "tf32", "fp32")
    return ReportSource(
        title=" ".join((result.program, *result.arguments)) or timeline.title or "a run",
        subtitle=f"{nodes}{topology.system.name}, {device.description or device.name}; kernbench {result.kernbench}",
        spans=timeline.spans,
        figures=figures,
        facts=[*_facts(result, figures), *_races(run.simulation)],
        notes=result.notes,
        failures=[_failure(rank, error) for rank, error in sorted((errors or {}).items())],
        findings=findings_of(run.simulation, errors or {}),
        steps=[step.model_dump() for step in result.steps],
        memory=memory_of(run.simulation),
        links=links_of(run.engine, figures.length),
        requests=timeline.requests,
        serving=None if result.serving is None else result.serving.model_dump(exclude={"of_requests"}),
        peaks={
            "matrix": {name: device.matrix_rate(name) for name in formats if name in device.matrix.known()},
            "memory": device.hbm_copy_bandwidth,
        },
    )


def source_of_trace(trace: TraceFile, name: str) -> ReportSource:
    """What a trace's file holds."""
    figures = report_of(trace.spans)
    return ReportSource(
        title=trace.title or name, subtitle="from a trace", spans=trace.spans, figures=figures,
        facts=[*_times(figures), ("ranks", str(len(figures.ranks)), "")],
        notes=["From a trace: what it does not hold (memory, FLOPs, links, what was assumed) is not shown."],
    )  # fmt: skip


def _failure(rank: int, error: BaseException) -> dict[str, object]:
    """What a rank failed with, in words."""
    shown = user_traceback(error).rstrip()
    traceback = "\n".join((shown, *notes_that_python_hides([error], shown)))
    report = f"{type(error).__name__}: {message_of(error)}"
    failure: dict[str, Any] = {"rank": rank, "report": report, "text": traceback}
    if isinstance(error, KernbenchError):  # says itself where and why
        failure |= {"text": report, "traceback": traceback}
    return failure


_STATUS = {
    "ok": "ended well",
    "stopped": "stopped after its steps",
    "interrupted": "interrupted",
    "out_of_memory": "out of memory",
    "failed": "failed",
}


def _facts(result: RunResult, figures: TraceReport) -> Sequence[tuple[str, str, str]]:
    ran = len(result.ranks)
    facts = [("status", _STATUS[result.status], ""), *_times(figures)]
    facts.append(("ranks", str(result.gpus), "" if ran == result.gpus else f"{ran} of them ran, for the others"))
    done = result.throughput
    if done is not None:
        first, last = done.steps
        which = f"step {first}" if first == last else f"steps {first}-{last}"
        facts.append(("time per step", DURATION.format(done.seconds_per_step), which))
        if done.tokens_per_second:
            facts.append(("tokens/s", f"{done.tokens_per_second:,.0f}", ""))
        elif done.samples_per_second:
            facts.append(("samples/s", f"{done.samples_per_second:,.1f}", ""))
        if done.model_flops_per_second_per_gpu:
            facts.append(("MFU", f"{done.mfu:.1%}", f"HFU {done.hfu:.1%} of {_peaks(done.peaks)}"))
    if result.serving is not None:
        serving = result.serving
        facts.append(("requests/s", f"{serving.requests_per_second:,.3f}", counted(serving.requests, "request")))
        facts.append(("generated tokens/s", f"{serving.generated_tokens_per_second:,.0f}", ""))
        for label, found in (("TTFT", serving.ttft), ("TPOT", serving.tpot)):
            if found is not None:
                facts.append((label, DURATION.format(found.p50), f"median; p99 {DURATION.format(found.p99)}"))
    for label, name in (
        ("allocated at most", "allocated_bytes"),
        ("reserved at most", "reserved_bytes"),
        ("the device must have", "device_bytes"),
    ):
        sizes = {rank.rank: getattr(rank, name) for rank in result.ranks}
        most = max(sizes, key=sizes.__getitem__, default=None)
        if most is not None and sizes[most]:
            of = f", of {format_size(result.ranks[0].capacity_bytes)}" if name == "device_bytes" else ""
            facts.append((label, format_size(sizes[most]), f"memory of rank {most}{of}"))
    return facts


def _races(simulation: Simulation) -> list[tuple[str, str, str]]:
    found = [] if simulation.order is None else simulation.order.races.found
    return [("races", str(len(found)), "accesses that nothing orders, by their lines")] if found else []


def _times(figures: TraceReport) -> list[tuple[str, str, str]]:
    low, high = DURATION.format(figures.low), DURATION.format(figures.high)
    return [("virtual time", DURATION.format(figures.length), f"80 % between {low} and {high}" if low != high else "")]


def _peaks(peaks: Mapping[str, float]) -> str:
    return " and ".join(f"{rate / 1e12:,.0f} TFLOP/s ({name})" for name, rate in peaks.items())
