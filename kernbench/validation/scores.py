"""How wrong the models are: estimates beside measured tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kernbench.collective_kinds import TIMED, timed_name
from kernbench.cost.collectives import collective_time
from kernbench.cost.devices import GivenDevice
from kernbench.cost.estimate import Floats
from kernbench.errors import ConfigError
from kernbench.input_files import expanded, is_file, shortened, shown_path
from kernbench.topology.problems import MOST_PROBLEMS
from kernbench.validation.comparisons import Comparison, Estimator, MeasuredTable, comparable
from kernbench.validation.manifests import MEASURED, Table, number, read_manifest, seconds_of, select_rows
from kernbench.validation.measured_kernels import LOADS
from kernbench.validation.measured_on import table_system
from kernbench.validation.table_files import TableFile, column_name, read_table

# Size bands of the report: name and upper end in bytes.
BANDS = (("<=64K", 2.0**16), ("<=1M", 2.0**20), ("<=32M", 2.0**25), (">32M", np.inf))


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


def compare(table: Table, directory: Path, *, system: object = None, device: GivenDevice | None = None) -> Comparison:
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

        def estimate(system: object) -> tuple[Floats, Floats, Floats]:
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

    return comparable(table, path, points, system, build)


_LOAD: Mapping[str, Callable[[Table, Path, Sequence[Mapping[str, str]], Path], MeasuredTable]] = {
    "collective": _collective,
    **LOADS,
}
