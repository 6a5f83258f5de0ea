"""One point: ``kernbench run`` in a process of its own, and what it came to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernbench.cost.uncertainty import step_interval
from kernbench.errors import ConfigError
from kernbench.grid import Point
from kernbench.input_files import is_file, read_text, shown_path
from kernbench.program_files import find_module
from kernbench.sweep.outcome import FAILED, OK, Outcome
from kernbench.topology import resolve_topology
from kernbench.trace.run_result import RunResult
from kernbench.version import __version__
from kernbench.what_if.process import run_in_process
from kernbench.what_if.question import GPUS, SYSTEM, Question


@dataclass(frozen=True)
class RunTask:
    """A run, in a form that another process understands.

    Attributes:
        index: its place in the grid.
        key: what a journal knows it by: the program's text, its arguments, variables and system, kernbench's version.
        point: the values of the settings.
        arguments: of ``kernbench``, without the file of the result.
        environment: variables that the run has besides.
        folder: where it runs.
        problem: why it cannot run; empty if it can.
        timeout: seconds of real time after which it is given up, None: never.
    """

    index: int
    key: str
    point: Point
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    folder: str
    problem: str = ""
    timeout: float | None = None


def tasks_of(question: Question, *, timeout: float | None = None) -> list[RunTask]:
    """The runs that answer a question, in the order of its grid.

    Raises:
        ConfigError: the question is wrong, the program cannot be found, or there is no such system.
    """
    points, templates, source = question.points(), question.templates(), _source_of(question)
    nodes = {name: resolve_topology(name).topology_obj.sips_per_node for name in question.systems}
    described = {name: _text_of(name) for name in question.systems}
    tasks = []
    for index, point in enumerate(points):
        filled = {what: [each.at(point) for each in found] for what, found in templates.items()}
        per_node, gpus = nodes[point[SYSTEM]], point[GPUS]
        several = gpus > per_node
        arguments = [
            "run", "--system", point[SYSTEM], "--nproc-per-node", str(min(gpus, per_node)),
            *(["--nnodes", str(gpus // per_node)] if several else []),
            *([] if question.data else ["--no-data"]),
            *("--memory-limit", "off"),  # so that it is known how much would be missing
            *([] if question.steps is None else ["--steps", str(question.steps)]),
            *question.options,
            *(part for option in ("--tokens-per-step", "--samples-per-step")
              for part in ([option, *filled[option]] if option in filled else [])),
            *(["-m"] if question.module else []), question.program, *filled["argument"],
        ]  # fmt: skip
        environment = {what.removeprefix("--env "): filled[what][0] for what in filled if what.startswith("--env ")}
        problem = "" if not several or gpus % per_node == 0 else f"{gpus} GPUs are no whole nodes of {per_node}"
        identity = json.dumps([__version__, source, arguments, environment, described[point[SYSTEM]]], sort_keys=True)
        key = hashlib.sha256(identity.encode()).hexdigest()
        tasks.append(RunTask(index, key, point, tuple(arguments), environment, str(Path.cwd()), problem, timeout))
    return tasks


def _source_of(question: Question) -> str:
    """A digest of the program's text, so that what an older one came to is not taken for this one's."""
    if question.module:
        spec = find_module(question.program)
        if spec is None:
            raise ConfigError(f"no module named {question.program!r} that could be run")
        path = Path(spec.origin or "")
    else:
        path = Path(question.program)
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(f"cannot read {shown_path(question.program)}: {error.strerror}") from None


def _text_of(system: str) -> str:
    """The text of a system's file; of a shipped one its name, which with the version says all."""
    path = Path(system)
    return read_text(path) if path.suffix in (".yaml", ".yml") and is_file(path) else system


def run_task(task: RunTask) -> Outcome:
    """Run a point. Whatever happens is part of the outcome; one that does not fit its memory is no failure but a finding."""
    if task.problem:
        return Outcome(task.index, task.key, FAILED, {}, task.problem)
    ran = run_in_process(task.arguments, task.environment, task.folder, task.timeout)
    if ran.result is None:
        return Outcome(task.index, task.key, FAILED, {}, ran.error, ran.detail)
    return Outcome(task.index, task.key, OK, metrics_of(ran.result))


def metrics_of(result: RunResult) -> dict[str, object]:
    """The figures of a run that rows have. Seconds, bytes, FLOP/s; shares of one.

    ``over_bytes``: by how much a device's memory would have to be larger, 0 if the program fits. ``at_least``: whether the
    program was stopped where it ran out of memory, so that it may need more than that. ``seconds_low``, ``seconds_high``: the
    80 % interval of ``seconds_per_step``, where the log has what it is made of. Of a serving engine tokens are generated ones,
    and there are ``ttft_p50``, ``ttft_p99``, ``tpot_p50``, ``tpot_p99``, in seconds.
    """
    reached = result.throughput
    steps = [] if reached is None else result.steps[reached.steps[0] - 1 : reached.steps[1]]
    fullest = max(result.ranks, key=lambda rank: rank.device_bytes - rank.capacity_bytes)
    short = max((failure.short_bytes or 0 for failure in result.failures), default=0)
    over = max(short, fullest.device_bytes - fullest.capacity_bytes, 0)
    interval: tuple[float | None, float | None] = (None, None)
    if reached and reached.parts:
        interval = step_interval((part.kind, part.seconds, part.low, part.high) for part in reached.parts)
    figures: dict[str, Any] = {
        "seconds_per_step": reached.seconds_per_step if reached else None,
        "seconds_low": interval[0],
        "seconds_high": interval[1],
        "tokens_per_second": reached.tokens_per_second if reached else None,
        "samples_per_second": reached.samples_per_second if reached else None,
        "steps_per_second": 1 / reached.seconds_per_step if reached and reached.seconds_per_step else None,
        "flops_per_second": reached.model_flops_per_second_per_gpu * result.gpus if reached else None,
        "mfu": reached.mfu if reached else None,
        "hfu": reached.hfu if reached else None,
        "equal_steps": reached.equal if reached else None,
        **{name: _mean([getattr(step, name) for step in steps]) for name in ("compute", "communication", "idle")},
        "device_bytes": fullest.device_bytes,
        "capacity_bytes": fullest.capacity_bytes,
        "fits": result.status != "out_of_memory" and not over,
        "over_bytes": over,
        "at_least": result.status == "out_of_memory",
        "notes": "; ".join(result.notes),
    }
    if result.serving is not None:
        served = result.serving
        figures["tokens_per_second"] = served.generated_tokens_per_second or None
        for name, found in (("ttft", served.ttft), ("tpot", served.tpot)):
            figures |= {f"{name}_{part}": None if found is None else getattr(found, part) for part in ("p50", "p99")}
    return figures


def _mean(shares: Sequence[float | None]) -> float | None:
    known = [share for share in shares if share is not None]
    return sum(known) / len(known) if known else None
