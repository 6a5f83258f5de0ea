"""What the rows came to: figures beside the published ones, how wrong they are, and the file that keeps them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel

from kernbench.cost.uncertainty import step_interval
from kernbench.errors import ConfigError
from kernbench.input_files import read_json, shown_path
from kernbench.output_files import write_file
from kernbench.spec_files import check_json
from kernbench.sweep.outcome import OK, Outcome
from kernbench.trace.step_parts import PathPart
from kernbench.validation.end_to_end.published import Published

FORMAT, VERSION = "kernbench.end-to-end", 1


class StepResult(NamedTuple):
    """A row and what was modelled of it.

    Attributes:
        row: as published.
        seconds: of a step; None if it was not run, and ``problem`` says why.
        parts: what these are spent on.
        reserved: bytes that the caching allocator of the fullest rank reserved.
        host_seconds: that the run took on the machine on which it was run.
        problem: why there are no figures, or empty.
        allocated: bytes that tensors of the fullest rank had at most.
    """

    row: Published
    seconds: float | None
    parts: tuple[PathPart, ...] = ()
    reserved: int = 0
    host_seconds: float = 0.0
    problem: str = ""
    allocated: int = 0

    @property
    def interval(self) -> tuple[float, float]:
        """Seconds of a step, at least and at most, four times of five."""
        return step_interval(self.parts)

    @property
    def tokens_per_second(self) -> float:
        """Of one GPU."""
        assert self.seconds is not None
        return self.row.tokens_per_second * self.row.seconds / self.seconds

    @property
    def error(self) -> float:
        """Of the seconds of a step: how far above the published ones, as a share."""
        assert self.seconds is not None
        return self.seconds / self.row.seconds - 1.0

    @property
    def covered(self) -> bool:
        """Whether the interval has the published time."""
        low, high = self.interval
        return low <= self.row.seconds <= high

    @property
    def memory_error(self) -> float | None:
        """Of the bytes reserved or allocated, where either is published."""
        if self.row.allocated is not None:
            return self.allocated / self.row.allocated - 1.0
        return None if self.row.memory is None else self.reserved / self.row.memory - 1.0


class StepScore(NamedTuple):
    """How wrong some rows are: shares of the published figures, without signs but for ``signed``."""

    rows: int
    median: float
    worst: float
    signed: float
    covered: float


def result_of(row: Published, outcome: Outcome) -> StepResult:
    """What a run of ``row`` came to."""
    found = outcome.metrics
    took = float(found.get("host_seconds", 0.0))
    if outcome.status != OK:
        return StepResult(row, None, host_seconds=took, problem=outcome.error)
    parts = tuple(PathPart(*part) for part in found["parts"])
    return StepResult(
        row, float(found["seconds"]), parts, int(found["reserved"]), took, allocated=int(found["allocated"])
    )


def score(results: Iterable[StepResult]) -> StepScore | None:
    """How wrong the times of some rows are; None if none of them was run."""
    ran = [result for result in results if result.seconds is not None]
    if not ran:
        return None
    errors = [result.error for result in ran]
    sizes = list(map(abs, errors))
    inside = sum(result.covered for result in ran) / len(ran)
    return StepScore(len(ran), statistics.median(sizes), max(sizes), statistics.median(errors), inside)


def groups(results: Sequence[StepResult]) -> dict[str, list[StepResult]]:
    """The rows that are judged together: all, eager and compiled ones, and those of each source and device."""
    found: dict[str, list[StepResult]] = {
        "all": list(results),
        "eager, or not said": [each for each in results if not each.row.compiled],
        "compiled": [each for each in results if each.row.compiled],
    }
    for result in results:
        found.setdefault(result.row.source, []).append(result)
    for result in results:
        found.setdefault(f"{result.row.source}, {result.row.gpu.split(' ')[0]}", []).append(result)
    return found


# -- the file ------------------------------------------------------------------------------------------------------------


def write_results(path: Path, results: Iterable[StepResult]) -> None:
    """Write results as JSON."""
    rows = [
        {
            "id": result.row.id,
            "seconds": result.seconds,
            "parts": {part.kind: [_digits(figure) for figure in part[1:]] for part in result.parts},
            "reserved": result.reserved,
            "host_seconds": result.host_seconds,
            "problem": result.problem,
            **({"allocated": result.allocated} if result.row.layout else {}),
        }
        for result in results
    ]
    lines = ",\n".join(json.dumps(row) for row in rows)
    text = f'{{"format": "{FORMAT}", "version": {VERSION}, "rows": [\n{lines}\n]}}\n'
    write_file(path, text)


def _digits(figure: float) -> float:
    return float(f"{figure:.6g}")


class _WrittenRow(BaseModel):
    id: str
    seconds: float | None
    parts: dict[str, tuple[float, float, float]]
    reserved: int
    host_seconds: float
    problem: str
    allocated: int = 0


class _Written(BaseModel):
    rows: list[_WrittenRow]


def merged(older: Iterable[StepResult], newer: Iterable[StepResult]) -> list[StepResult]:
    """All rows that either has, in the order of the table; of those that both have, the newer ones."""
    found = {result.row.id: result for result in (*older, *newer)}
    return [found[row_id] for row_id in sorted(found)]


def read_results(path: Path, rows: Iterable[Published]) -> list[StepResult]:
    """The results in a file that :func:`write_results` wrote, of those of ``rows`` that it has. Raises ConfigError."""
    data = read_json(path)
    if not isinstance(data, dict) or (data.get("format"), data.get("version")) != (FORMAT, VERSION):
        raise ConfigError(
            f"{shown_path(path)} is of another format or version: write it again with validate --end-to-end --json"
        )
    found = {line.id: line for line in check_json(data, _Written, path).rows}
    return [
        StepResult(
            row, line.seconds, tuple(PathPart(kind, *figures) for kind, figures in line.parts.items()), line.reserved,
            line.host_seconds, line.problem, line.allocated,
        )
        for row in rows if (line := found.get(row.id)) is not None
    ]  # fmt: skip
