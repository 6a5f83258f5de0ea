"""Fitting a described system to its owner's measurements: at most four figures, from as few as four points (ADR 0034).

The figures are those of the description itself: what the fabric delivers, what a hop takes, what a device sustains. So
the result is an ordinary system file. The fit is robust: it minimises the mean of the absolute log error, clipped, with
a weak pull towards where it started that decides what the points leave open.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from kernbench.collective_kinds import timed_name
from kernbench.cost.collective_world import resolve_system
from kernbench.cost.generations import generation_of
from kernbench.errors import ConfigError
from kernbench.input_files import read_text
from kernbench.topology.system import SystemSpec
from kernbench.validation.comparisons import Comparison, MeasuredTable
from kernbench.validation.fitting import PULL, robust, search
from kernbench.validation.manifests import Table
from kernbench.validation.scores import Score, load_manifest, measured_collective, score
from kernbench.validation.table_files import read_log

LEAST_POINTS = 4
MOST_PARAMETERS = 4


@dataclass(frozen=True, slots=True)
class Parameter:
    """A figure of a system description: its path in the file and the values it may take."""

    path: tuple[str, ...]
    least: float
    most: float

    @property
    def name(self) -> str:
        """Its path as people write it."""
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
    """What a fit found.

    Attributes:
        system: the one that was fitted.
        values: each figure before and after.
        before, after: the errors with it.
        tables: of each table the points before and after.
    """

    system: SystemSpec
    values: dict[Parameter, tuple[float, float]]
    before: Score
    after: Score
    tables: list[tuple[Comparison, Comparison]]


def measure_manifest(path: Path) -> list[MeasuredTable]:
    """The tables of a manifest. Raises ConfigError."""
    return load_manifest(path)


def measure_log(
    path: Path, *, collective: str | None = None, ranks: int | None = None, nodes: int | None = None
) -> list[MeasuredTable]:
    """The points of nccl-tests' own output. What it does not say (some runs print no ranks) is to be given.

    Raises ConfigError.
    """
    found = read_log(read_text(path))
    if found is None:
        raise ConfigError(
            f"{path} is neither a manifest nor nccl-tests' output: no rows of size, count, type, ... time"
        )
    given = {"collective": collective, "ranks": ranks, "nodes": nodes}
    about = {**found.about, **{key: value for key, value in given.items() if value is not None}}
    if missing := [name for name in given if name not in about]:
        raise ConfigError(f"{path} does not say {', '.join(missing)}; give --{' and --'.join(missing)}")
    timed_name(str(about["collective"]))
    table = Table.model_validate({"file": path.name, "kind": "collective", "system": "given", **about, "dtype": None})
    points = [(float(row["size_bytes"]), float(row["oop_us"]) * 1e-6) for row in found.rows if row.get("oop_us")]
    points = [(size, seconds) for size, seconds in points if size > 0 and seconds > 0]
    if not points:
        raise ConfigError(f"{path}: no row has a size and a time of more than zero")
    return [measured_collective(table, path, points, None)]


def parameters_for(tables: Sequence[Table]) -> list[Parameter]:
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


def calibrate(system: object, tables: Sequence[MeasuredTable], *, name: str) -> Calibration:
    """Fit a system to measurements.

    Args:
        system: shipped name, YAML path or description to start from.
        tables: what was measured.
        name: of the resulting system.

    Raises:
        ConfigError: fewer than four points, or tables that the system cannot run.
    """
    start = resolve_system(system).model_copy(update={"name": name})

    def measure(system: SystemSpec) -> list[Comparison]:
        return [item.compare(system if item.table.kind == "collective" else system.device) for item in tables]

    before = measure(start)
    points = sum(item.size.size for item in before)
    if points < LEAST_POINTS:
        raise ConfigError(f"{points} points are too few to fit; at least {LEAST_POINTS} are needed")
    parameters = parameters_for([item.table for item in tables])
    origin = [math.log(_get(start, parameter)) for parameter in parameters]

    def build(position: Sequence[float]) -> SystemSpec:
        spec = start
        for parameter, value in zip(parameters, position, strict=True):
            spec = _put(spec, parameter.path, math.exp(value))
        return spec

    def loss(position: Sequence[float]) -> float:
        error = np.concatenate([np.log(item.seconds / item.measured) for item in measure(build(position))])
        pull = sum(abs(value - first) for value, first in zip(position, origin, strict=True)) / points
        return robust(error) + PULL * pull

    position = search(loss, origin, [(math.log(p.least), math.log(p.most)) for p in parameters])
    fitted = build(position)
    values = {p: (math.exp(a), math.exp(b)) for p, a, b in zip(parameters, origin, position, strict=True)}
    after = measure(fitted)
    return Calibration(fitted, values, score(before), score(after), list(zip(before, after, strict=True)))


def _get(system: SystemSpec, parameter: Parameter) -> float:
    value: Any = system
    for key in parameter.path:
        value = getattr(value, key, None)
        if value is None and parameter is MATRIX_EFFICIENCY:
            return generation_of(system.device).gemm.efficiency["fp16"]
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
