"""What the time of typical steps is spent on: their part of the critical path, by what bounds it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kernbench.cost.estimate import total
from kernbench.cost.uncertainty import step_interval
from kernbench.trace.critical import PathStep

KINDS = ("product", "attention", "memory", "kernel", "communication", "copy", "host", "gap")
"""Matrix products; fused attention; kernels bound by memory; kernels of Triton; collectives and messages; copies between host
and device; a host that launches; none of these."""


class PathPart(NamedTuple):
    """Seconds of one kind on the critical path, and their interval (80 %), errors of one operator added up."""

    kind: str
    seconds: float
    low: float
    high: float


def parts_of(path: Iterable[PathStep], begin: float, end: float) -> tuple[PathPart, ...]:
    """The parts of a critical path between two moments, virtual seconds, in the order of :data:`KINDS`.

    They add up to the whole time between them.
    """
    found: dict[str, list[tuple[str, float, float, float]]] = defaultdict(list)
    for step in path:
        seconds = min(step.end, end) - max(step.begin, begin)
        if seconds > 0:
            found[_kind(step)].append((_name(step), *_interval(step, seconds)))
    return tuple(PathPart(kind, *total(found[kind])) for kind in KINDS if kind in found)


def path_total(path: Sequence[PathStep]) -> tuple[float, float, float]:
    """Seconds, low and high of a critical path: the interval that whole steps are judged by (docs/accuracy.md)."""
    if not path:
        return 0.0, 0.0, 0.0
    begin, end = path[0].begin, path[-1].end
    return end - begin, *step_interval(parts_of(path, begin, end))


def _kind(step: PathStep) -> str:
    if step.span is None or step.kind != "compute":
        return step.kind
    return {"gemm": "product", "math": "memory"}.get(step.span.kind, step.span.kind)


def _name(step: PathStep) -> str:
    return "" if step.span is None else step.span.name


def _interval(step: PathStep, seconds: float) -> tuple[float, float, float]:
    """A part of a step's span: the same share of its interval."""
    if step.span is None or step.span.interval is None or not step.span.seconds:
        return seconds, seconds, seconds
    low, high = (bound / step.span.seconds for bound in step.span.interval)
    return seconds, seconds * low, seconds * high


def mean_parts(parts: Sequence[PathPart], count: int) -> tuple[PathPart, ...]:
    """Those of one of ``count`` steps."""
    return tuple(PathPart(kind, *(figure / count for figure in figures)) for kind, *figures in parts)
