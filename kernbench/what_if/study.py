"""The page of a question: step times with their intervals, throughput against memory, and the table, best first."""

from __future__ import annotations

from kernbench.html_report.study import Study, StudyChart, columns_of, failures_of
from kernbench.sweep.outcome import FAILED
from kernbench.trace.steps_report import scaled
from kernbench.what_if.question import GPUS, SYSTEM, Question
from kernbench.what_if.run import Answer

_UNITS = {
    "compute": "share", "communication": "share", "idle": "share", "mfu": "share", "hfu": "share", "seconds_per_step": "s",
    "seconds_low": "s", "seconds_high": "s", "flops_per_second": "FLOP/s",
}  # fmt: skip


def study_of(question: Question, answer: Answer) -> Study:
    """What a question's runs came to."""
    rows, named = answer.rows, [SYSTEM, GPUS, *question.settings]
    fit = sum(bool(row.get("fits")) for row in rows)
    failed = [row for row in rows if row["status"] == FAILED]
    steps = any(row.get("seconds_per_step") for row in rows)
    charts = []
    if steps:
        charts = [
            StudyChart(
                "bars", "Time per step, and its 80 % interval; red: does not fit", y=["seconds_per_step"], by=named,
                low="seconds_low", high="seconds_high", good="fits",
            ),
            StudyChart(
                "points", f"{answer.unit} per GPU against the memory of the fullest GPU", x=["device_bytes"],
                y=["throughput_per_gpu"], by=named, good="fits",
            ),
        ]  # fmt: skip
    best = next((row for row in rows if row.get("fits") and row.get("throughput_per_gpu")), None)
    return Study(
        title=f"what if: {question.program.rpartition('/')[2]}",
        subtitle=" ".join(map(str, question.arguments)),
        facts=[
            ("points", str(len(rows)), f"{answer.ran} run now"),
            ("fit", str(fit), ""),
            ("out of memory", str(len(rows) - fit - len(failed)), ""),
            *([("failed", str(len(failed)), "")] if failed else []),
            *([("best", f"{_number(best['throughput_per_gpu'])} {answer.unit}/GPU",
                ", ".join(f"{name} {best[name]}" for name in named))] if best is not None else []),
        ],
        columns=columns_of(rows, {**_UNITS, "throughput_per_gpu": answer.unit, answer.measure: answer.unit}),
        rows=[list(row.values()) for row in rows],
        charts=charts,
        notes=list(dict.fromkeys(str(row["notes"]) for row in rows if row.get("notes"))),
        findings=failures_of(rows, named),
    )  # fmt: skip


def _number(value: float) -> str:
    return scaled(value) if value >= 1e7 else f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
