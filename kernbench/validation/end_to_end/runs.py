"""Running the rows side by side, each as ``kernbench run --no-data`` in a process of its own, with a journal."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path

from kernbench.grid import Point
from kernbench.sweep.outcome import FAILED, OK, Outcome
from kernbench.sweep.runner import Progress, StudyRunner
from kernbench.topology import resolve_topology
from kernbench.trace.run_result import RunResult
from kernbench.validation.end_to_end.jobs import Job, job_of
from kernbench.validation.end_to_end.published import Published
from kernbench.what_if.process import run_in_process

_HOME = Path(str(files("kernbench")))


@dataclass(frozen=True)
class RowTask:
    """One row, in the form in which points are run.

    Attributes:
        index: its place in the table.
        key: what a journal knows it by: its command and the text of all of kernbench.
        point: the row's id.
        arguments: of ``kernbench``.
        timeout: seconds of real time after which it is given up, None: never.
    """

    index: int
    key: str
    point: Point
    arguments: tuple[str, ...]
    timeout: float | None


def arguments_of(job: Job) -> tuple[str, ...]:
    """The command line of ``kernbench`` for a job."""
    per_node = resolve_topology(job.system).topology_obj.sips_per_node
    nodes = max(job.gpus // per_node, 1)
    return (
        "run", "--no-data", "--no-summary", "--ranks", "auto", "--memory-limit", "off", "--system", job.system,
        "--nproc-per-node", str(min(job.gpus, per_node)), "--nnodes", str(nodes), str(_program(job)), *job.arguments,
    )  # fmt: skip


def _program(job: Job) -> Path:
    return _HOME / "programs" / f"{job.program}.py"


def _program_texts(job: Job) -> list[str]:
    """The program, and what it has in common with others."""
    texts: dict[Path, str] = {}
    todo = [_program(job)]
    while todo:
        path = todo.pop()
        own = texts[path] = path.read_text(encoding="utf-8")
        others = [each for each in sorted(path.parent.glob("*.py")) if f"kernbench.programs.{each.stem} " in own]
        todo += [each for each in others if each not in texts]
    return list(texts.values())


def run_rows(
    rows: Sequence[Published],
    *,
    output: Path,
    scheduler: str | None = None,
    jobs: int = 0,
    fresh: bool = False,
    timeout: float | None = None,
    progress: Progress | None = None,
) -> dict[str, Outcome]:
    """What the rows came to, by their id. Those that cannot be run, and those that fail, have an error.

    Args:
        rows: of the table.
        output: directory of ``journal.jsonl``, from which an interrupted call goes on.
        scheduler: address of a running Dask scheduler; by default this machine.
        jobs: runs side by side; 0: one for each core.
        fresh: forget what an earlier call has done.
        timeout: seconds of real time after which a run is given up.
        progress: called with each outcome, how many rows are done, and how many there are.
    """
    planned = {row.id: job_of(row) for row in rows}
    text = _text_of_kernbench()
    tasks = []
    for index, row in enumerate(rows):
        job = planned[row.id]
        arguments = arguments_of(job)
        key = hashlib.sha256(json.dumps([text, *_program_texts(job), *arguments]).encode()).hexdigest()
        tasks.append(RowTask(index, key, {"row": row.id}, arguments, timeout))
    tasks.sort(key=lambda task: "--compile" in task.arguments)  # the quickest first
    runner = StudyRunner(output, scheduler, jobs or None, not fresh, retry_failed=True, progress=progress)
    points = runner.run(tasks, run_row, own_processes=True)
    found = {str(task.point["row"]): outcome for task, outcome in zip(tasks, points.outcomes, strict=True)}
    return {row.id: found[row.id] for row in rows}


def run_row(task: RowTask) -> Outcome:
    """Run one row. Whatever happens is part of the outcome."""
    begin = time.monotonic()
    ran = run_in_process(task.arguments, {}, Path.cwd(), task.timeout)
    outcome = Outcome(task.index, task.key, FAILED, {}, ran.error, ran.detail)
    if ran.result is not None and ran.result.throughput is None:
        return replace(outcome, error="made no optimizer step")
    if ran.result is not None:
        outcome = replace(outcome, status=OK, metrics=figures_of(ran.result))
    return replace(outcome, metrics={**outcome.metrics, "host_seconds": round(time.monotonic() - begin, 1)})


def figures_of(result: RunResult) -> Mapping[str, object]:
    """What is kept of a run: seconds per step, what they are spent on, bytes reserved at most, and its notes."""
    assert result.throughput is not None
    return {
        "seconds": result.throughput.seconds_per_step,
        "parts": [list(part.model_dump().values()) for part in result.throughput.parts],
        "reserved": max(rank.reserved_bytes for rank in result.ranks),
        "allocated": max(rank.allocated_bytes for rank in result.ranks),
        "mfu": result.throughput.mfu,
        "notes": list(result.notes),
    }


def _text_of_kernbench() -> str:
    """A digest of kernbench's own text, descriptions of systems included: what an older one came to is not taken for its."""
    home = _HOME
    configs = home / "configs" if (home / "configs").is_dir() else home.parent / "configs"
    digest = hashlib.sha256()
    for path in sorted([*home.rglob("*.py"), *configs.rglob("*.yaml")]):
        if home / "validation" not in path.parents and path.parent != home / "programs":
            digest.update(path.read_bytes())
    return digest.hexdigest()
