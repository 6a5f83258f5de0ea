"""A sweep from its description to its table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernbench.stand_ins import standing_in
from kernbench.sweep.outcome import Outcome
from kernbench.sweep.point import run_task
from kernbench.sweep.runner import Progress, StudyRunner
from kernbench.sweep.spec import SweepSpec, read_sweep, reference_of, tasks_of
from kernbench.sweep.table import Row, draw, rows_of, write_csv, write_parquet


@dataclass(frozen=True)
class SweepResult:
    """What a sweep did.

    Attributes:
        rows: the table, one row per point in the order of the grid.
        ran: points that were simulated now; the others were in the journal.
        failed: outcomes of the points that failed.
        files: what was written.
    """

    rows: list[Row]
    ran: int
    failed: list[Outcome]
    files: list[Path]


def sweep(
    spec: str | Path | SweepSpec | Mapping[str, Any],
    *,
    output: str | Path | None = None,
    scheduler: str | None = None,
    jobs: int | None = None,
    resume: bool = True,
    retry_failed: bool = False,
    progress: Progress | None = None,
) -> SweepResult:
    """Run a program over a grid, as independent simulations.

    Args:
        spec: a YAML file, a :class:`SweepSpec`, or a mapping with its keys, in which ``program`` may be a function.
        output: directory for ``table.csv``, ``table.parquet`` (with pyarrow), ``plot.svg`` and the journal; by default
            the file's name without its ending, or ``sweep``.
        scheduler: address of a running Dask scheduler; by default a cluster on this machine.
        jobs: processes of that cluster, by default one per core; 0 runs here, one point after the other.
        resume: take what the journal knows of these points, program and version; else begin anew.
        retry_failed: run again the points that failed before.
        progress: called with each outcome, how many points are done, and how many there are.

    Returns:
        the table. It is the same whatever the number of workers. A point that fails is a row with its error.

    Raises:
        ConfigError: the description is wrong.
    """
    if isinstance(spec, (str, Path)):
        directory = Path(output) if output is not None else Path(spec).with_suffix("")
        described = read_sweep(spec)
    else:
        directory = Path(output) if output is not None else Path("sweep")
        if isinstance(spec, SweepSpec):
            described = spec
        else:
            described = SweepSpec.model_validate({**spec, "program": reference_of(spec["program"])})
    runner = StudyRunner(directory, scheduler, jobs, resume, retry_failed, progress)
    with standing_in(described.stand_ins):
        return _swept(described, runner)


def _swept(described: SweepSpec, runner: StudyRunner) -> SweepResult:
    tasks = tasks_of(described)
    points = runner.run(tasks, run_task, own_processes=False)
    rows = rows_of(tasks, points.by_key)
    files = [runner.directory / "table.csv"]
    write_csv(files[0], rows)
    if write_parquet(runner.directory / "table.parquet", rows):
        files.append(runner.directory / "table.parquet")
    if described.plot is not None and len(points.failed) < len(rows):
        draw(runner.directory / "plot.svg", described.plot, rows, described.program.rpartition("/")[2])
        files.append(runner.directory / "plot.svg")
    return SweepResult(rows, points.ran, points.failed, files)
