"""How wrong the models are: estimates beside measured tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from kernbench.collective_kinds import TIMED, timed_name
from kernbench.cost.collective_world import resolve_system
from kernbench.cost.collectives import collective_time
from kernbench.cost.devices import resolve_device
from kernbench.cost.estimate import Floats
from kernbench.cost.gemm import gemm_time
from kernbench.cost.memory_bound import memory_bound_time, traffic_of
from kernbench.cost.reference import (
    MEASURED,
    Table,
    gemm_shape,
    number,
    operand_dtype,
    read_manifest,
    result_dtype,
    seconds_of,
    select_rows,
)
from kernbench.cost.table_files import TableFile, column_name, read_table
from kernbench.errors import ConfigError
from kernbench.input_files import expanded, is_file, shortened, shown_path
from kernbench.topology import load_fabric
from kernbench.topology.problems import MOST_PROBLEMS
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


# Seconds, low and high of some points on a system or a device.
Estimator = Callable[[Any], tuple[Floats, Floats, Floats]]


@dataclass(frozen=True, slots=True)
class MeasuredTable:
    """The points of one table, read once, and the way to estimate them.

    Attributes:
        size: bytes of each point.
        measured: seconds.
        given: the system or device that the table was measured on.
        estimator: seconds, low and high of the points on a system or device.
        build: the estimator of some of the points, by their indices.
    """

    table: Table
    size: Floats
    measured: Floats
    given: Any
    estimator: Estimator = field(repr=False)
    build: Callable[[Any], Estimator] = field(repr=False)

    def thinned(self, most: int) -> MeasuredTable:
        """At most so many of the points, evenly spread over the table."""
        if self.size.size <= most:
            return self
        kept = np.unique(np.linspace(0, self.size.size - 1, most).round().astype(int))
        estimator = self.build(kept)
        return replace(self, size=self.size[kept], measured=self.measured[kept], estimator=estimator)

    def compare(self, given: Any = None) -> Comparison:
        """The estimates beside the measurements; on another system or device, where one is given."""
        return Comparison(self.table, self.size, self.measured, *self.estimator(given or self.given))


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
    return system if table.fabric is None else system.joined_by(load_fabric(_beside(table.fabric, beside)))


def _beside(name: str, directory: Path) -> str:
    """A path of a manifest counts from the manifest."""
    path = directory / name
    return str(path) if name.endswith((".yaml", ".yml")) and is_file(path) else name


def load(table: Table, directory: Path) -> MeasuredTable:
    """The points of one table.

    Args:
        table: entry of a manifest in ``directory``.

    Raises:
        ConfigError: the file or its columns do not fit the entry.
    """
    path = _file(table.file, directory)
    found = read_table(path)
    table = _completed(table, found)
    rows = list(select_rows(table, found, path))
    columns = {table.column} if table.column else MEASURED
    filled = [row for row in rows if any(row.get(column) for column in columns)]
    rows = filled or rows  # rows that were not measured are left out; that none is, is said below
    if not rows:
        raise ConfigError(f"table {path}: no rows for this entry (ranks, nodes, dtype, device, where)")
    return _LOAD[table.kind](table, path, rows, directory)


def load_manifest(path: Path) -> list[MeasuredTable]:
    """All tables of a manifest. Raises ConfigError, which names the problems of all of them."""
    found, problems = [], []
    for place, table in enumerate(read_manifest(path).tables):
        try:
            measured = load(table, path.parent)
            measured.compare()
            found.append(measured)
        except _NO_FIGURES as error:
            said = isinstance(error, ConfigError) and str(error).startswith("table ")
            reason = shortened(error, 1000) if isinstance(error, ValueError) else f"{type(error).__name__} {error}"
            problems.append(
                reason if said else f"{shown_path(path)}: tables.{place} ({shortened(table.file)}): {reason}"
            )
    if problems:
        more = [f"... and {len(problems) - MOST_PROBLEMS} more"] if len(problems) > MOST_PROBLEMS else []
        raise ConfigError("\n".join([*problems[:MOST_PROBLEMS], *more]))
    return found


_NO_FIGURES = (ValueError, KeyError, OverflowError, ZeroDivisionError)
"""What comes of cells that hold no numbers, or numbers of no size that there is: a row's whole computation is its check."""


def compare(table: Table, directory: Path, *, system: Any = None, device: Any = None) -> Comparison:
    """The estimates of one table beside its measurements.

    Args:
        table: entry of a manifest in ``directory``.
        system, device: instead of the table's own.

    Raises:
        ConfigError: the file or its columns do not fit the entry.
    """
    return load(table, directory).compare(system or device)


def compare_manifest(path: Path) -> list[Comparison]:
    """All tables of a manifest. Raises ConfigError."""
    return [measured.compare() for measured in load_manifest(path)]


def _file(name: str, directory: Path) -> Path:
    """A manifest's file: beside the manifest, or else from the working directory."""
    beside = directory / expanded(name)
    return beside if is_file(beside) or not is_file(name) else Path(name)


def _completed(table: Table, found: TableFile) -> Table:
    """An entry with what it leaves open and the file itself says."""
    update: dict[str, Any] = {
        key: value for key, value in found.about.items() if key != "dtype" and key not in table.model_fields_set
    }
    update["column"] = None if table.column is None else column_name(table.column)
    update["where"] = {column_name(key): value for key, value in table.where.items()}
    return table.model_copy(update=update)


def _points(
    table: Table, path: Path, points: Sequence[tuple[float, float]], given: Any, build: Callable[[Any], Estimator]
) -> MeasuredTable:
    """Points that can be compared: with a time, and not below ``min_bytes``. ``build`` gets their indices."""
    size, measured = (np.array(column, dtype=float) for column in zip(*points, strict=True))
    timed = measured > 0  # below a timer's resolution there is nothing to compare with
    if not timed.any():
        raise ConfigError(f"table {path}: no row has a time of more than zero")
    keep = (size >= table.min_bytes) & timed
    if not keep.any():
        raise ConfigError(f"table {path}: no rows of at least {table.min_bytes:g} bytes")
    rows = np.flatnonzero(keep)
    return MeasuredTable(table, size[rows], measured[rows], given, build(rows), lambda at: build(rows[at]))


def _collective(table: Table, path: Path, rows: Sequence[Mapping[str, str]], directory: Path) -> MeasuredTable:
    if table.ranks is None:
        raise ConfigError(f"table {path}: the manifest's entry needs `ranks`")
    factor = TIMED[timed_name(table.collective or "all_reduce")].bus_factor(table.ranks)
    points = []
    for row in rows:
        size = number(row, "size_bytes", path)
        points.append((size, seconds_of(row, path, table, nbytes=size, bus_factor=factor)))
    return measured_collective(table, path, points, table_system(table, directory))


def measured_collective(table: Table, path: Path, points: Sequence[tuple[float, float]], system: Any) -> MeasuredTable:
    """Sizes and durations of a collective, to be compared with a system's estimates."""

    def build(keep: Any) -> Estimator:
        sizes = np.array([size for size, _ in points])[keep]

        def estimate(system: Any) -> tuple[Floats, Floats, Floats]:
            found = collective_time(
                system,
                table.collective or "all_reduce",
                sizes,
                ranks=table.ranks or 1,
                nodes=table.nodes,
                dtype=table.dtype or "float32",
                algorithm=table.algorithm,
                kind=table.time,
                placement=table.placement,
                gpus_per_process=table.gpus_per_process,
            )
            return found.seconds, found.low, found.high

        return estimate

    return _points(table, path, points, system, build)


def _device(table: Table, directory: Path) -> Any:
    """The device of a kernel's table, or of its system."""
    if table.device is not None:
        return resolve_device(_beside(table.device, directory))
    return table_system(table, directory).device


def _gemm(table: Table, path: Path, rows: Sequence[Mapping[str, str]], directory: Path) -> MeasuredTable:
    shapes = np.array([gemm_shape(row, path) for row in rows])
    flops = 2.0 * shapes.prod(axis=1)
    texts = np.array([row.get("dtype") or table.dtype or "float16" for row in rows])
    m, n, k, batch = shapes.T
    moved = 2.0 * batch * (m * k + k * n + m * n)
    points = [(size, seconds_of(row, path, table, flops=f)) for size, row, f in zip(moved, rows, flops, strict=True)]

    def build(keep: Any) -> Estimator:
        return lambda device: _gemm_times(device, shapes[keep], texts[keep])

    return _points(table, path, points, _device(table, directory), build)


def _gemm_times(device: Any, shapes: Any, texts: Any) -> tuple[Floats, Floats, Floats]:
    seconds, low, high = (np.empty(len(shapes)) for _ in range(3))
    for text in np.unique(texts):
        at, dtype, out = texts == text, operand_dtype(str(text)), result_dtype(str(text))
        m, n, k, batch = shapes[at].T
        found = gemm_time(device, m, n, k, dtype=dtype, batch=batch, out_dtype=out)
        seconds[at], low[at], high[at] = found.seconds, found.low, found.high
    return seconds, low, high


# What a file's name says of its operation, where neither table nor manifest does.
_OP_IN_NAME = ("softmax", "layernorm", "rmsnorm", "gelu", "silu", "relu", "vecadd", "add", "copy")


def _op(table: Table, row: Mapping[str, str]) -> str:
    named = row.get("op") or table.op or next((op for op in _OP_IN_NAME if op in table.file.lower()), None)
    if named is None:
        raise ConfigError(f"table {table.file}: neither a column nor the manifest's entry says which `op` it is of")
    gated = row.get("gated")
    return named if gated is None else f"{named}/{'gated' if gated == 'True' else 'plain'}"


def _shape(row: Mapping[str, str], path: Path) -> tuple[int, ...]:
    for columns in (("tokens", "dim"), ("M", "N"), ("elements",)):
        if all(column in row for column in columns):
            return tuple(int(number(row, column, path)) for column in columns)
    raise ConfigError(f"table {path} has no shape columns; expected tokens and dim, M and N, or elements")


def _memory_bound(table: Table, path: Path, rows: Sequence[Mapping[str, str]], directory: Path) -> MeasuredTable:
    calls, points = [], []
    for row in rows:
        op, shape = _op(table, row), _shape(row, path)
        dtype = row.get("dtype") or table.dtype or "float16"
        cold = "triton_us" in row if table.cold is None else table.cold
        calls.append((op, shape, dtype, cold))
        points.append((traffic_of(op, shape, dtype), seconds_of(row, path, table, elements=float(np.prod(shape)))))

    def build(keep: Any) -> Estimator:
        kept = [calls[index] for index in keep]

        def estimate(device: Any) -> tuple[Floats, Floats, Floats]:
            found = [memory_bound_time(device, op, shape, dtype=dtype, cold=cold) for op, shape, dtype, cold in kept]
            seconds, low, high = (
                np.array(column)
                for column in zip(*((item.seconds, item.low, item.high) for item in found), strict=True)
            )
            return seconds, low, high

        return estimate

    return _points(table, path, points, _device(table, directory), build)


_LOAD: dict[str, Callable[[Table, Path, Sequence[Mapping[str, str]], Path], MeasuredTable]] = {
    "collective": _collective,
    "gemm": _gemm,
    "memory_bound": _memory_bound,
}
