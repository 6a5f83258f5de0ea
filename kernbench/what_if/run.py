"""From a question to its answer: runs side by side, a journal, a table, a picture."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kernbench.output_files import write_file
from kernbench.sweep.outcome import FAILED, Outcome
from kernbench.sweep.runner import Progress, StudyRunner
from kernbench.sweep.table import Row, rows_of, write_csv
from kernbench.what_if.picture import draw
from kernbench.what_if.point import run_task, tasks_of
from kernbench.what_if.question import GPUS, Question

FORMAT, VERSION = "kernbench.what-if", 1

MEASURES = (
    ("tokens_per_second", "tokens/s"),
    ("samples_per_second", "samples/s"),
    ("flops_per_second", "FLOP/s"),
    ("steps_per_second", "steps/s"),
)
"""Throughputs by column and unit, the most telling first: one is used if every run that fits has it."""


@dataclass(frozen=True)
class Answer:
    """What the runs came to.

    Attributes:
        rows: one per point, best first: those that fit by throughput per GPU, then those out of memory by how much they lack,
            then those that failed.
        measure: the column that throughput is taken from; the rows have it divided by GPUs in ``throughput_per_gpu``.
        unit: of it.
        ran: points that ran now; the others were in the journal.
        failed: outcomes of the points that failed.
        files: what was written.
    """

    rows: list[Row]
    measure: str
    unit: str
    ran: int
    failed: list[Outcome]
    files: list[Path]


def ask(
    question: Question,
    *,
    output: str | Path,
    scheduler: str | None = None,
    jobs: int | None = None,
    resume: bool = True,
    retry_failed: bool = False,
    timeout: float | None = None,
    progress: Progress | None = None,
) -> Answer:
    """Run a program at every point of a question, each as ``kernbench run`` does in a process of its own.

    Args:
        question: what to run.
        output: directory for ``table.csv``, ``answer.json``, ``plot.svg`` (with matplotlib) and the journal.
        scheduler: address of a running Dask scheduler; by default this machine.
        jobs: runs side by side, by default one per core; 0: one after the other.
        resume: take what the journal knows of these points; else begin anew.
        retry_failed: run again the points that failed before.
        timeout: seconds of real time after which a run is given up.
        progress: called with each outcome, how many points are done, and how many there are.

    Raises:
        ConfigError: the question is wrong.
    """
    tasks = tasks_of(question, timeout=timeout)
    directory = Path(output)
    points = StudyRunner(directory, scheduler, jobs, resume, retry_failed, progress).run(
        tasks, run_task, own_processes=True
    )
    measure, unit, rows = ranked(rows_of(tasks, points.by_key))
    files = [directory / "table.csv", directory / "answer.json"]
    write_csv(files[0], rows)
    _write_json(files[1], question, measure, unit, rows)
    if draw(directory / "plot.svg", rows, [*question.settings], unit, Path(question.program).name):
        files.append(directory / "plot.svg")
    return Answer(rows, measure, unit, points.ran, points.failed, files)


def ranked(rows: list[Row]) -> tuple[str, str, list[Row]]:
    """The column that throughput is taken from, its unit per second, and the rows with it per GPU, best first."""
    fitting = [row for row in rows if row.get("fits")]
    measure, unit = next(
        ((name, unit) for name, unit in MEASURES if fitting and all(row[name] for row in fitting)), MEASURES[-1]
    )

    def order(row: Row) -> tuple[int, float]:
        if row.get("fits"):
            return 0, -(row["throughput_per_gpu"] or 0.0)
        return (2, 0.0) if row["status"] == FAILED else (1, row["over_bytes"])

    with_figure = [
        {**row, "throughput_per_gpu": row[measure] / row[GPUS] if row.get(measure) else None} for row in rows
    ]
    return measure, unit, sorted(with_figure, key=order)


def _write_json(path: Path, question: Question, measure: str, unit: str, rows: list[Row]) -> None:
    data: dict[str, Any] = {
        "format": FORMAT, "version": VERSION, "question": asdict(question), "throughput": measure, "unit": unit, "rows": rows,
    }  # fmt: skip
    write_file(path, json.dumps(data, indent=2) + "\n")
