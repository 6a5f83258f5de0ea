"""How wrong the models are: estimates beside measured tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kernbench.cost.collective_world import resolve_system
from kernbench.cost.collectives import collective_time
from kernbench.cost.estimate import Floats
from kernbench.cost.gemm import gemm_time
from kernbench.cost.memory_bound import memory_bound_time, traffic_of
from kernbench.cost.reference import (
    Table,
    gemm_shape,
    number,
    operand_dtype,
    read_manifest,
    result_dtype,
    seconds_of,
    select_rows,
)
from kernbench.errors import ConfigError
from kernbench.topology import load_fabric
from kernbench.topology.system import SystemSpec

# Size bands of the report: name and upper end in bytes.
BANDS = (("<=64K", 2.0**16), ("<=1M", 2.0**20), ("<=32M", 2.0**25), (">32M", np.inf))


@dataclass(frozen=True, slots=True)
class Comparison:
    """The points of one table: bytes, measured and estimated seconds, and the interval."""

    table: Table
    size: Floats
    measured: Floats
    seconds: Floats
    low: Floats
    high: Floats

    @property
    def error(self) -> Floats:
        """Signed relative error: how far the estimate is above the measurement."""
        return self.seconds / self.measured - 1.0


@dataclass(frozen=True, slots=True)
class Score:
    """Errors as shares of the measured time."""

    points: int
    median: float
    p90: float
    signed: float
    coverage: float
    bands: dict[str, float]


def score(comparisons: list[Comparison]) -> Score:
    """The errors of all points of some tables together."""
    error = np.concatenate([item.error for item in comparisons])
    size = np.concatenate([item.size for item in comparisons])
    inside = np.concatenate([(item.low <= item.measured) & (item.measured <= item.high) for item in comparisons])
    absolute = np.abs(error)
    bands, below = {}, -1.0
    for name, upto in BANDS:
        here = absolute[(size > below) & (size <= upto)]
        if here.size:
            bands[name] = float(np.median(here))
        below = upto
    return Score(
        points=error.size,
        median=float(np.median(absolute)),
        p90=float(np.quantile(absolute, 0.9)),
        signed=float(np.median(error)),
        coverage=float(np.mean(inside)),
        bands=bands,
    )


def table_system(table: Table, beside: Path) -> SystemSpec:
    """The system of a table, joined by the table's fabric."""
    assert table.system is not None
    system = resolve_system(_beside(table.system, beside))
    if table.fabric is None:
        return system
    return system.model_copy(update={"fabric": load_fabric(_beside(table.fabric, beside))})


def _beside(name: str, directory: Path) -> str:
    """A path of a manifest counts from the manifest."""
    path = directory / name
    return str(path) if name.endswith((".yaml", ".yml")) and path.is_file() else name


def compare(table: Table, directory: Path, *, system: Any = None, device: Any = None) -> Comparison:
    """The estimates of one table beside its measurements.

    Args:
        table: entry of a manifest in ``directory``.
        system, device: instead of the table's own.

    Raises:
        ConfigError: the file or its columns do not fit the entry.
    """
    path = directory / table.file
    rows = list(select_rows(table, path))
    if not rows:
        raise ConfigError(f"table {path}: no rows for this entry (ranks, nodes, dtype, device, where)")
    given = system or device
    if given is None:
        given = table_system(table, directory) if table.kind == "collective" else _beside(table.device or "", directory)
    found = _COMPARE[table.kind](table, path, rows, given)
    timed = found.measured > 0  # below a timer's resolution there is nothing to compare with
    if not timed.any():
        raise ConfigError(f"table {path}: no row has a time of more than zero")
    keep = (found.size >= table.min_bytes) & timed
    if not keep.any():
        raise ConfigError(f"table {path}: no rows of at least {table.min_bytes:g} bytes")
    parts = (value[keep] for value in (found.size, found.measured, found.seconds, found.low, found.high))
    return Comparison(table, *parts)


def compare_manifest(path: Path) -> list[Comparison]:
    """All tables of a manifest. Raises ConfigError."""
    return [compare(table, path.parent) for table in read_manifest(path).tables]


def _collective(table: Table, path: Path, rows: list[dict[str, str]], system: Any) -> Comparison:
    size = np.array([number(row, "size_bytes", path) for row in rows])
    measured = np.array([seconds_of(row, path, table) for row in rows])
    return compare_points(table, size, measured, system)


def compare_points(table: Table, size: Floats, measured: Floats, system: SystemSpec) -> Comparison:
    """Measured sizes and durations of a collective beside a system's estimates."""
    if table.ranks is None:
        raise ConfigError(f"table {table.title}: the manifest's entry needs `ranks`")
    estimate = collective_time(
        system,
        table.collective or "all_reduce",
        size,
        ranks=table.ranks,
        nodes=table.nodes,
        dtype=table.dtype or "float32",
        algorithm=table.algorithm,
        kind=table.time,
        placement=table.placement,
        gpus_per_process=table.gpus_per_process,
    )
    return Comparison(table, size, measured, estimate.seconds, estimate.low, estimate.high)


def _gemm(table: Table, path: Path, rows: list[dict[str, str]], device: Any) -> Comparison:
    shapes = np.array([gemm_shape(row, path) for row in rows])
    flops = 2.0 * shapes.prod(axis=1)
    measured = np.array([seconds_of(row, path, table, flops=f) for row, f in zip(rows, flops, strict=True)])
    texts = np.array([row.get("dtype") or table.dtype or "float16" for row in rows])
    seconds, low, high = (np.empty(len(rows)) for _ in range(3))
    m, n, k, batch = shapes.T
    for text in np.unique(texts):
        at, dtype, out = texts == text, operand_dtype(str(text)), result_dtype(str(text))
        found = gemm_time(device, m[at], n[at], k[at], dtype=dtype, batch=batch[at], out_dtype=out)
        seconds[at], low[at], high[at] = found.seconds, found.low, found.high
    moved = 2.0 * batch * (m * k + k * n + m * n)
    return Comparison(table, moved, measured, seconds, low, high)


# What a file's name says of its operation, where neither table nor manifest does.
_OP_IN_NAME = ("softmax", "layernorm", "rmsnorm", "gelu", "silu", "relu", "vecadd", "add", "copy")


def _op(table: Table, row: dict[str, str]) -> str:
    named = row.get("op") or table.op or next((op for op in _OP_IN_NAME if op in table.file.lower()), None)
    if named is None:
        raise ConfigError(f"table {table.file}: neither a column nor the manifest's entry says which `op` it is of")
    gated = row.get("gated")
    return named if gated is None else f"{named}/{'gated' if gated == 'True' else 'plain'}"


def _shape(row: dict[str, str], path: Path) -> tuple[int, ...]:
    for columns in (("tokens", "dim"), ("M", "N"), ("elements",)):
        if all(column in row for column in columns):
            return tuple(int(number(row, column, path)) for column in columns)
    raise ConfigError(f"table {path} has no shape columns; expected tokens and dim, M and N, or elements")


def _memory_bound(table: Table, path: Path, rows: list[dict[str, str]], device: Any) -> Comparison:
    dtype = table.dtype or "float16"
    points = []
    for row in rows:
        op, shape = _op(table, row), _shape(row, path)
        cold = "triton_us" in row if table.cold is None else table.cold
        estimate = memory_bound_time(device, op, shape, dtype=dtype, cold=cold)
        measured = seconds_of(row, path, table, elements=float(np.prod(shape)))
        points.append((traffic_of(op, shape, dtype), measured, estimate.seconds, estimate.low, estimate.high))
    return Comparison(table, *np.array(points, dtype=float).T)


_COMPARE: dict[str, Callable[[Table, Path, list[dict[str, str]], Any], Comparison]] = {
    "collective": _collective,
    "gemm": _gemm,
    "memory_bound": _memory_bound,
}
