"""A sweep from its description to its table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernbench.stand_ins import standing_in
from kernbench.sweep.cluster import run_here, run_on_dask
from kernbench.sweep.journal import Journal
from kernbench.sweep.outcome import FAILED, OK, Outcome
from kernbench.sweep.point import run_task
from kernbench.sweep.spec import SweepSpec, read_sweep, reference_of, tasks_of
from kernbench.sweep.table import Row, draw, rows_of, write_csv, write_parquet

Progress = Callable[[Outcome, int, int], None]


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


def keep(
    journal: Journal, outcomes: Iterable[Outcome], done: dict[str, Outcome], total: int, *, fresh: bool,
    progress: Progress | None,
) -> None:  # fmt: skip
    """Write outcomes to the journal and into ``done`` as they come, and tell of each."""
    journal.open(fresh=fresh)
    try:
        for outcome in outcomes:
            done[outcome.key] = outcome
            journal.add(outcome)
            if progress is not None:
                progress(outcome, len(done), total)
    finally:
        journal.close()


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
    with standing_in(described.stand_ins):
        return _swept(
            described, directory, scheduler, jobs, resume=resume, retry_failed=retry_failed, progress=progress
        )


def _swept(
    described: SweepSpec, directory: Path, scheduler: str | None, jobs: int | None, *, resume: bool, retry_failed: bool,
    progress: Progress | None,
) -> SweepResult:  # fmt: skip
    tasks = tasks_of(described)
    journal = Journal(directory / "journal.jsonl")
    todo, done = journal.todo(tasks, resume=resume, retry_failed=retry_failed)
    outcomes = (
        run_here(todo, run_task)
        if jobs == 0 or not todo
        else run_on_dask(todo, run_task, scheduler=scheduler, jobs=jobs)
    )
    keep(journal, outcomes, done, len(tasks), fresh=not resume, progress=progress)
    rows = rows_of(tasks, done)
    files = [directory / "table.csv"]
    write_csv(files[0], rows)
    if write_parquet(directory / "table.parquet", rows):
        files.append(directory / "table.parquet")
    if described.plot is not None and any(outcome.status == OK for outcome in done.values()):
        draw(directory / "plot.svg", described.plot, rows, described.program.rpartition("/")[2])
        files.append(directory / "plot.svg")
    failed = [done[task.key] for task in tasks if done[task.key].status == FAILED]
    return SweepResult(rows, len(todo), failed, files)
