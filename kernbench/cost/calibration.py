"""Fitting a described system to its owner's measurements: at most four figures, from as few as four points (ADR 0034).

The figures are those of the description itself: what the fabric delivers, what a hop takes, what a device sustains. So
the result is an ordinary system file. The fit is robust: it minimises the mean of the absolute log error, clipped, with
a weak pull towards where it started that decides what the points leave open.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from kernbench.cost.collective_names import collective_name
from kernbench.cost.collective_world import resolve_system
from kernbench.cost.devices import generation_of
from kernbench.cost.gemm import KERNELS
from kernbench.cost.reference import Table, read_manifest
from kernbench.cost.validation import Comparison, Score, compare, compare_points, score
from kernbench.errors import ConfigError
from kernbench.topology.system import SystemSpec

LEAST_POINTS = 4
MOST_PARAMETERS = 4
_CLIP = 0.7  # log error beyond which a point is an outlier, all the same how far
_PULL = 0.1  # weight of the log distance from the start, shared among the points: few of them move little
_STEPS = (0.7, 0.35, 0.18, 0.09, 0.045, 0.02, 0.01)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A figure of a system description: its path in the file and the values it may take."""

    path: tuple[str, ...]
    least: float
    most: float

    @property
    def name(self) -> str:
        return ".".join(self.path)


FABRIC_LATENCY = Parameter(("fabric", "latency"), 2e-7, 2e-3)
FABRIC_BANDWIDTH = Parameter(("fabric", "bandwidth"), 1e7, 1e12)
FABRIC_CONGESTION = Parameter(("fabric", "congestion"), 1e-4, 0.5)
LINK_EFFICIENCY = Parameter(("sips", "link", "efficiency"), 0.05, 1.0)
LINK_LATENCY = Parameter(("sips", "link", "latency"), 2e-8, 5e-5)
MATRIX_EFFICIENCY = Parameter(("sips", "device", "matrix_efficiency"), 0.05, 1.0)
COPY_EFFICIENCY = Parameter(("sips", "device", "hbm", "copy_efficiency"), 0.05, 1.0)
LAUNCH_LATENCY = Parameter(("sips", "device", "launch", "latency"), 2e-7, 1e-4)


@dataclass(frozen=True, slots=True)
class Calibration:
    """What a fit found."""

    system: SystemSpec
    values: dict[Parameter, tuple[float, float]]
    before: Score
    after: Score


Measure = Callable[[SystemSpec], list[Comparison]]


def measure_manifest(path: Path) -> tuple[Measure, list[Table]]:
    """The comparisons of a manifest's tables with any system, and the tables."""
    tables = read_manifest(path).tables

    def measure(system: SystemSpec) -> list[Comparison]:
        return [
            compare(
                table, path.parent, **({"system": system} if table.kind == "collective" else {"device": system.device})
            )
            for table in tables
        ]

    return measure, tables


_RANK = re.compile(r"#\s+Rank\s+\d+ .*? on\s+(\S+) device")
_ROW = re.compile(r"\s*(\d+)\s+\d+\s+(\w+)\s+\S+\s+(-?\d+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)")
_TEST = re.compile(r"(all_reduce|all_gather|reduce_scatter|alltoall|broadcast|reduce|sendrecv)_perf")


def measure_log(
    path: Path, *, collective: str | None = None, ranks: int | None = None, nodes: int | None = None
) -> tuple[Measure, list[Table]]:
    """The same of nccl-tests' own output. What it does not say (older versions print no ranks) is to be given."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"log {path}: {error}") from None
    rows = [match.groups() for line in text.splitlines() if (match := _ROW.match(line))]
    points = [(float(row[0]), float(row[3]) * 1e-6) for row in rows if float(row[3]) > 0 and float(row[0]) > 0]
    if not points:
        raise ConfigError(
            f"{path} is neither a manifest nor nccl-tests' output: no rows of size, count, type, ... time"
        )
    hosts = _RANK.findall(text)
    test = _TEST.search(text)
    collective = collective or (test.group(1) if test else None)
    ranks, nodes = ranks or len(hosts) or None, nodes or len(set(hosts)) or None
    if collective is None or ranks is None or nodes is None:
        missing = [
            name for name, value in (("collective", collective), ("ranks", ranks), ("nodes", nodes)) if value is None
        ]
        raise ConfigError(f"{path} does not say {', '.join(missing)}; give --{' and --'.join(missing)}")
    table = Table(
        file=path.name,
        kind="collective",
        system="given",
        ranks=ranks,
        nodes=nodes,
        collective=collective_name(collective),
        dtype=rows[0][1],
    )
    size, seconds = (np.array(column) for column in zip(*points, strict=True))
    return (lambda system: [compare_points(table, size, seconds, system)]), [table]


def parameters_for(system: SystemSpec, tables: Sequence[Table]) -> list[Parameter]:
    """The figures that some tables can tell, at most four, the most telling ones first."""
    found: list[Parameter] = []
    collectives = [table for table in tables if table.kind == "collective"]
    spread = {table.nodes for table in collectives if table.nodes > 1}
    if spread:
        found += [FABRIC_BANDWIDTH, FABRIC_LATENCY]
    if any(table.nodes == 1 for table in collectives):
        found += [LINK_EFFICIENCY, LINK_LATENCY]
    if any(table.kind == "gemm" for table in tables):
        found += [MATRIX_EFFICIENCY]
    if any(table.kind == "memory_bound" for table in tables):
        found += [COPY_EFFICIENCY]
    if any(table.kind != "collective" for table in tables):
        found += [LAUNCH_LATENCY]
    if len(spread) > 1:
        found += [FABRIC_CONGESTION]
    return found[:MOST_PARAMETERS]


def calibrate(system: Any, measure: Measure, tables: Sequence[Table], *, name: str) -> Calibration:
    """Fit a system to measurements.

    Args:
        system: shipped name, YAML path or description to start from.
        measure: comparisons of the measurements with a system.
        tables: what was measured.
        name: of the resulting system.

    Raises:
        ConfigError: fewer than four points, or tables that the system cannot run.
    """
    start = resolve_system(system).model_copy(update={"name": name})
    before = measure(start)
    points = sum(item.size.size for item in before)
    if points < LEAST_POINTS:
        raise ConfigError(f"{points} points are too few to fit; at least {LEAST_POINTS} are needed")
    parameters = parameters_for(start, tables)
    origin = [math.log(_get(start, parameter)) for parameter in parameters]

    def build(position: Sequence[float]) -> SystemSpec:
        spec = start
        for parameter, value in zip(parameters, position, strict=True):
            spec = _put(spec, parameter.path, math.exp(value))
        return spec

    def loss(position: Sequence[float]) -> float:
        error = np.concatenate([np.log(item.seconds / item.measured) for item in measure(build(position))])
        pull = sum(abs(value - first) for value, first in zip(position, origin, strict=True)) / points
        return float(np.mean(np.minimum(np.abs(error), _CLIP))) + float(np.median(np.abs(error))) + _PULL * pull

    position = _search(loss, origin, parameters)
    fitted = build(position)
    values = {p: (math.exp(a), math.exp(b)) for p, a, b in zip(parameters, origin, position, strict=True)}
    return Calibration(fitted, values, score(before), score(measure(fitted)))


def _search(
    loss: Callable[[Sequence[float]], float], origin: Sequence[float], parameters: Sequence[Parameter]
) -> list[float]:
    """The least loss found by steps along each axis, large ones first, from several starts: the loss has ridges."""
    bounds = [(math.log(parameter.least), math.log(parameter.most)) for parameter in parameters]
    best, least = list(origin), loss(origin)
    for first in range(-1, len(origin)):
        position = list(best)
        if first >= 0:  # the same again after a large step along one axis
            position[first] = min(
                max(position[first] + 1.5 * (1 if first % 2 else -1), bounds[first][0]), bounds[first][1]
            )
        here = loss(position)
        for step in _STEPS:
            improved = True
            while improved:
                improved = False
                for axis, (low, high) in enumerate(bounds):
                    for sign in (1, -1):
                        trial = list(position)
                        trial[axis] = min(max(trial[axis] + sign * step, low), high)
                        value = loss(trial)
                        if value < here - 1e-9:
                            position, here, improved = trial, value, True
        if here < least:
            best, least = position, here
    return best


def _get(system: SystemSpec, parameter: Parameter) -> float:
    value: Any = system
    for key in parameter.path:
        value = getattr(value, key, None)
        if value is None and parameter is MATRIX_EFFICIENCY:
            return KERNELS[generation_of(system.device)].efficiency["fp16"]
        if value is None:
            raise ConfigError(f"system {system.name} has no `{parameter.name}` to fit")
    return float(max(value, parameter.least))


def _put(part: Any, path: tuple[str, ...], value: float) -> Any:
    new = value if len(path) == 1 else _put(getattr(part, path[0]), path[1:], value)
    return part.model_copy(update={path[0]: new})


def system_document(base: str, calibration: Calibration) -> str:
    """A system file that extends ``base`` by the fitted figures."""
    body: dict[str, Any] = {"name": calibration.system.name, "description": f"{base}, calibrated"}
    for parameter, (_, value) in calibration.values.items():
        here = body
        for key in parameter.path[:-1]:
            here = here.setdefault(key, {})
        here[parameter.path[-1]] = float(f"{value:.6g}")
    system = calibration.system
    if "fabric" in body and system.fabric is not None:
        body["fabric"] = {"extends": system.fabric.name, **body["fabric"]}
    if "device" in body.get("sips", {}):
        body["sips"]["device"] = {"extends": system.device.name, **body["sips"]["device"]}
    after = calibration.after
    header = (
        f"# Fitted by `kernbench calibrate` to {after.points} points: median error "
        f"{100 * calibration.before.median:.1f} % before, {100 * after.median:.1f} % after.\n"
    )
    return header + yaml.safe_dump({"extends": base, "system": body}, sort_keys=False)
