"""What a run came to, for machines: the file of ``kernbench run --json``.

One JSON object, whose fields are those of :class:`RunResult`; ``python -m kernbench.trace.run_result`` prints its JSON schema.
Times are virtual seconds, sizes bytes. ``version`` changes when a field changes its meaning or goes; new fields may come.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import PydanticSerializationError

from kernbench.errors import ConfigError, message_of
from kernbench.input_files import read_json, shortened, shown_path
from kernbench.output_files import write_file
from kernbench.simulation.simulation import Simulation
from kernbench.spec_files import check_json
from kernbench.trace.critical import critical_path
from kernbench.trace.memory_report import RankMemory, fullest_of_ranks
from kernbench.trace.notes import notes_of
from kernbench.trace.process_figures import OWN_CLOCKS, ProcessFigures
from kernbench.trace.rank_times import RankTime, rank_times, traffic
from kernbench.trace.serving_figures import ServingResult, serving_result
from kernbench.trace.step_parts import mean_parts, parts_of
from kernbench.trace.step_times import TOLERANCE, StepTimes, achieved
from kernbench.trace.timeline import Timeline
from kernbench.version import __version__

VERSION = 1


Status = Literal["ok", "stopped", "interrupted", "out_of_memory", "failed"]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class ResultOfRank(_Part):
    """Where a rank's time went (seconds; shares of ``seconds``), and its memory, on its fullest device. Of ranks that do the
    same, one is run."""

    rank: int
    seconds: float
    compute: float = Field(description="seconds in which an operation ran on its device")
    communication: float = Field(description="seconds in which none did, and a collective or message was under way")
    host: float = Field(description="seconds in which its program was enqueueing, and none of the above")
    idle: float
    allocated_bytes: int = Field(
        default=0, description="most bytes that its tensors had at one time, torch.cuda.max_memory_allocated"
    )
    reserved_bytes: int = Field(
        default=0, description="most bytes that its allocator held for them, torch.cuda.max_memory_reserved"
    )
    device_bytes: int = Field(description="what its device must have: reserved, and what is stated besides")
    capacity_bytes: int = Field(description="what its device has")


class ResultOfStep(_Part):
    """One step. Shares are of its time, averaged over ranks; null where the log has not kept the operations."""

    number: int
    begin: float = Field(description="virtual seconds of the run")
    seconds: float
    compute: float | None
    communication: float | None
    idle: float | None
    model_flops: int = Field(description="over all ranks")
    recomputed_flops: int = Field(description="of forward work that was repeated, over all ranks")
    tokens: int
    samples: int


class ResultOfPart(_Part):
    """What a step's critical path is spent on: seconds of one kind of work, and their 80 % interval."""

    kind: str
    seconds: float
    low: float
    high: float


class Throughput(_Part):
    """What typical steps achieve: the equal ones where there are any, else all but the first."""

    steps: tuple[int, int] = Field(description="first and last of them")
    equal: bool = Field(description="whether they are equal")
    tolerance: float = Field(description="within which they are, as a share")
    seconds_per_step: float
    parts: tuple[ResultOfPart, ...] = Field(
        default=(), description="what these seconds are spent on; they add up to them"
    )
    tokens_per_second: float | None
    samples_per_second: float | None
    model_flops_per_second_per_gpu: float
    mfu: float = Field(description="model FLOPs utilization, a share")
    hfu: float = Field(description="hardware FLOPs utilization, a share: with what was recomputed")
    peaks: dict[str, float] = Field(description="of one device's matrix engines, FLOP/s, by format with FLOPs")


class ResultOfCollective(_Part):
    """What was sent by one kind of collective, over all ranks."""

    name: str
    calls: int
    bytes: int


class Failure(_Part):
    """Why a rank failed. ``short_bytes``: of one out of memory, how much its device lacked at least."""

    rank: int
    error: str
    short_bytes: int | None = None


class RunResult(_Part):
    """What a run came to.

    Attributes:
        status: ``ok``; ``stopped``, after ``--steps``; ``interrupted``, by Ctrl-C or SIGTERM; ``out_of_memory`` or
            ``failed``, and ``failures`` say why.
        seconds: of all of it; ``throughput`` is null if the program made no steps.
    """

    format: Literal["kernbench.run"] = "kernbench.run"
    version: Literal[1] = 1
    kernbench: str
    program: str
    arguments: tuple[str, ...]
    options: dict[str, Any] = Field(
        default={}, description="of the run, by the names of docs/options.md, that are not at their defaults"
    )
    system: str
    gpus: int
    status: Status
    failures: tuple[Failure, ...]
    seconds: float
    steps: tuple[ResultOfStep, ...]
    throughput: Throughput | None
    extrapolated: dict[int, float] = Field(description="steps, and seconds that they take")
    ranks: tuple[ResultOfRank, ...]
    collectives: tuple[ResultOfCollective, ...]
    serving: ServingResult | None = Field(
        default=None, description="of a serving engine, as far as it reported requests"
    )
    processes: tuple[ProcessFigures, ...] = Field(
        default=(),
        description="processes that the program started which are no ranks, and used GPUs: each has a clock of its own",
    )
    notes: tuple[str, ...]


def result_of(
    simulation: Simulation,
    *,
    program: str,
    arguments: Sequence[str] = (),
    options: Mapping[str, object] | None = None,
    errors: Mapping[int, BaseException] | None = None,
    tokens: int | None = None,
    samples: int | None = None,
    extrapolate: int | None = None,
    notes: Sequence[str] = (),
    limits: Mapping[str, float] | None = None,
    processes: Sequence[ProcessFigures] = (),
) -> RunResult:
    """Sum up a simulation whose ranks have ended.

    Args:
        simulation: still open, as memory is counted until it is closed.
        program, arguments: what ran.
        options: of the run, by name.
        errors: what ranks failed with.
        tokens, samples: of a step, of the whole job; by default what the program reported.
        extrapolate: a number of steps.
        notes: what is to be said of the run, in sentences.
        limits: of the goodput of a serving engine, seconds by measure.
        processes: that used GPUs and are no ranks.
    """
    times = StepTimes.of(simulation)
    figures = achieved(times, simulation.topology.device, tokens=tokens, samples=samples)
    throughput = None
    if figures is not None:
        typical = times.typical
        path = critical_path(Timeline.of(simulation, max_steps=0).spans)
        parts = mean_parts(parts_of(path, typical[0].begin, typical[-1].end), len(typical))
        throughput = Throughput(
            steps=(typical[0].number, typical[-1].number), equal=bool(times.steady), tolerance=TOLERANCE,
            seconds_per_step=figures.seconds, parts=tuple(ResultOfPart(**part._asdict()) for part in parts),
            tokens_per_second=figures.tokens / figures.seconds if figures.tokens else None,
            samples_per_second=figures.samples / figures.seconds if figures.samples else None,
            model_flops_per_second_per_gpu=figures.flops_per_gpu, mfu=figures.mfu, hfu=figures.hfu, peaks=dict(figures.peaks),
        )  # fmt: skip
    failures = tuple(failure_of(rank, error) for rank, error in sorted((errors or {}).items()))
    whole = None if extrapolate is None else times.extrapolate(extrapolate)
    fullest = fullest_of_ranks(simulation)
    lines = rank_times(simulation)
    ranks = [_of_rank(simulation, line, fullest.get(line.rank)) for line in lines]
    gpus = len(ranks) if simulation.hosts.folding is None else simulation.hosts.folding.world
    return RunResult(
        kernbench=__version__,
        program=program,
        arguments=tuple(arguments),
        options=dict(options or {}),
        system=simulation.topology.system.name,
        gpus=gpus,
        status=_status(failures, times, simulation.interrupted),
        failures=failures,
        seconds=max((line.seconds for line in ranks), default=0.0),
        steps=tuple(
            ResultOfStep(
                number=step.number,
                begin=step.begin,
                seconds=step.seconds,
                compute=step.compute,
                communication=step.communication,
                idle=step.idle,
                model_flops=sum(step.flops.values()),
                recomputed_flops=sum(step.recomputed.values()),
                tokens=step.tokens if tokens is None else tokens,
                samples=step.samples if samples is None else samples,
            )
            for step in times.steps
        ),
        throughput=throughput,
        extrapolated={} if extrapolate is None or whole is None else {extrapolate: whole},
        ranks=tuple(ranks),
        collectives=tuple(
            ResultOfCollective(name=each.name, calls=each.calls, bytes=each.nbytes) for each in traffic(simulation)
        ),
        serving=serving_result(simulation.requests, gpus, limits),
        processes=tuple(processes),
        notes=(*times.notes, *notes_of(simulation, lines), *notes, *([OWN_CLOCKS] if processes else ())),
    )


def _of_rank(simulation: Simulation, line: RankTime, memory: RankMemory | None) -> ResultOfRank:
    allocated, reserved, on_device = (
        (0, 0, 0) if memory is None else (memory.peak, memory.peak_reserved, memory.on_device)
    )
    return ResultOfRank(
        rank=line.rank, seconds=line.total, compute=line.compute, communication=line.communication, host=line.host,
        idle=line.idle, allocated_bytes=allocated, reserved_bytes=reserved, device_bytes=on_device,
        capacity_bytes=simulation.topology.device.hbm.size,
    )  # fmt: skip


def _status(failures: Sequence[Failure], times: StepTimes, interrupted: str) -> Status:
    if any(failure.short_bytes is not None for failure in failures):
        return "out_of_memory"
    if failures:
        return "failed"
    if interrupted:
        return "interrupted"
    return "ok" if times.stopped is None else "stopped"


def failure_of(rank: int, error: BaseException) -> Failure:
    """Why a rank failed, in a line; of a ``torch.OutOfMemoryError``, with how much its device lacked at least."""
    message = message_of(error)
    line = next((line.strip() for line in message.splitlines() if line.strip()), "")
    short = _short(message) if isinstance(error, torch.OutOfMemoryError) else None
    return Failure(rank=rank, error=f"{type(error).__name__}: {line}", short_bytes=short)


_SIZE = r"([\d.]+) (bytes|KiB|MiB|GiB)"
_WANTED = re.compile(rf"Tried to allocate {_SIZE}")
_FREE = re.compile(rf"{_SIZE} is free")
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def _short(message: str) -> int:
    """By torch's wording, which is that of a GPU: what was asked for, less what was free."""
    sizes = [match and float(match[1]) * _UNITS[match[2]] for match in (_WANTED.search(message), _FREE.search(message))]
    wanted, free = (size or 0.0 for size in sizes)
    return max(int(wanted - free), 0)


def write_result(path: str | Path, result: RunResult) -> None:
    """Write a result; a reader never sees half of one."""
    try:
        text = result.model_dump_json(indent=2)
    except (
        PydanticSerializationError
    ):  # a name of a file that is no UTF-8: JSON has an escape for it, pydantic has none
        text = json.dumps(result.model_dump(), indent=2)
    write_file(path, text + "\n")


def read_result(path: str | Path) -> RunResult:
    """Read a file of ``kernbench run --json``. Raises ConfigError if it is none, or of another version."""
    data = read_json(path)
    if not isinstance(data, dict) or data.get("format") != "kernbench.run":
        raise ConfigError(f"{shown_path(path)} was not written by kernbench run --json")
    if data.get("version") != VERSION:
        raise ConfigError(
            f"{shown_path(path)} is of version {shortened(data.get('version'))}; this kernbench reads version {VERSION}: "
            "run it again"
        )
    return check_json(data, RunResult, path)


if __name__ == "__main__":
    print(json.dumps(RunResult.model_json_schema(), indent=2))
