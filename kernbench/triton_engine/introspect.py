"""What a kernel is and where its time goes: TTIR, counts, resources, wall time per source line."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from .launching import LaunchRecord


@dataclass(frozen=True)
class Line:
    """One source line of a kernel: wall seconds on this machine, executions, bytes moved, floating-point operations."""

    file: str
    number: int
    seconds: float
    executions: int
    nbytes: int
    flops: int
    text: str


def lines_of(record: LaunchRecord) -> list[Line]:
    """Source lines of a profiled launch, most expensive first.

    Raises:
        ValueError: the launch was not profiled (``record_launches(profile=True)``).
    """
    execution = record.execution
    if execution is None or execution.profile is None:
        raise ValueError("not profiled: record the launch with record_launches(profile=True)")
    seconds: dict[tuple[str, int], float] = defaultdict(float)
    runs: dict[tuple[str, int], int] = defaultdict(int)
    for index, (spent, times) in execution.profile.items():
        user = execution.program.ops[index].loc.user
        seconds[user.file, user.line] += spent
        runs[user.file, user.line] += int(times)
    out = []
    for (file, number), spent in seconds.items():
        nbytes, flops = record.counts.by_line.get(f"{file}:{number}", (0, 0))
        out.append(Line(file, number, spent, runs[file, number], nbytes, flops, _source(file, number)))
    return sorted(out, key=lambda line: -line.seconds)


def _source(file: str, number: int) -> str:
    try:
        return Path(file).read_text(encoding="utf-8").splitlines()[number - 1].strip()
    except (OSError, IndexError):
        return ""


def ttir_of(record: LaunchRecord) -> str:
    """The TTIR that ran."""
    return record.execution.program.ttir if record.execution is not None else ""
