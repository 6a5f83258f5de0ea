"""The table and the plot of a sweep. They depend on the points alone: not on workers, order or time of day."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernbench.errors import ConfigError
from kernbench.grid import label
from kernbench.output_files import replacing
from kernbench.sweep.outcome import OK, Outcome
from kernbench.sweep.spec import PlotSpec
from kernbench.sweep.workers import Keyed

Row = dict[str, Any]


def rows_of(tasks: Sequence[Keyed], outcomes: dict[str, Outcome]) -> list[Row]:
    """One row per finished point, in the order of the grid, all with the same columns.

    Axes come first, then metrics in the order in which points have them, then ``status`` and ``error``. A metric with the
    name of an axis is called ``result_<name>``.
    """
    done = [(task, outcomes[task.key]) for task in tasks if task.key in outcomes]
    axes = list(tasks[0].point) if tasks else []
    columns: dict[str, None] = {}
    for _, outcome in done:
        columns.update(dict.fromkeys(outcome.metrics))
    return [
        {
            **task.point,
            **{f"result_{name}" if name in axes else name: outcome.metrics.get(name) for name in columns},
            "status": outcome.status,
            "error": outcome.error,
        }
        for task, outcome in done
    ]


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Numbers are written so that reading them gives the same numbers."""
    with replacing(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(rows[0] if rows else ())
        writer.writerows([_cell(value) for value in row.values()] for row in rows)


def _cell(value: object) -> Any:
    return "" if value is None else repr(value) if isinstance(value, float) else value


def write_parquet(path: Path, rows: Sequence[Row]) -> bool:
    """The same table as Parquet; False if pyarrow is not installed. A column of mixed types becomes text."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        return False
    names = list(rows[0]) if rows else []
    columns = {}
    for name in names:
        values = [row[name] for row in rows]
        kinds = {type(value) for value in values if value is not None}
        mixed = (len(kinds) > 1 and kinds != {int, float}) or not kinds <= {bool, int, float, str}
        columns[name] = [None if value is None else str(value) for value in values] if mixed else values
    with replacing(path) as part:
        pyarrow.parquet.write_table(pyarrow.table(columns), part)
    return True


def draw(path: Path, plot: PlotSpec, rows: Sequence[Row], title: str) -> None:
    """Draw the plot as SVG. Raises ConfigError if a column is missing or matplotlib is not installed."""
    names = list(rows[0]) if rows else []
    for name in (plot.x, plot.y, *plot.by):
        if name not in names:
            raise ConfigError(f"plot: there is no column {name!r}; the table has {', '.join(names)}")
    try:
        import matplotlib
    except ImportError:
        raise ConfigError("a plot needs matplotlib: install kernbench[plot]") from None
    from matplotlib.figure import Figure

    lines: dict[str, list[tuple[object, Any]]] = {}
    for row in rows:
        if row["status"] == OK and row[plot.y] is not None:
            lines.setdefault(label({name: row[name] for name in plot.by}), []).append((row[plot.x], row[plot.y]))
    with matplotlib.rc_context({"svg.hashsalt": "kernbench", "text.parse_math": False}):
        figure = Figure(figsize=(7, 4.5), layout="constrained")
        axes = figure.subplots()
        for name, points in lines.items():
            axes.plot(*zip(*sorted(points, key=_sortable), strict=True), marker="o", label=name or None)
        axes.set(xlabel=plot.x, ylabel=plot.y, title=title)
        if plot.log:
            drawn = [point for points in lines.values() for point in points]
            for scale, values in (("xscale", [x for x, _ in drawn]), ("yscale", [y for _, y in drawn])):
                if values and all(_can_be_logarithmic(value) for value in values):
                    axes.set(**{scale: "log"})
        axes.grid(alpha=0.3)
        if plot.by:
            axes.legend()
        with replacing(path) as part:
            figure.savefig(part, format="svg", metadata={"Date": None})


def _can_be_logarithmic(value: object) -> bool:
    return isinstance(value, (int, float)) and 0 < value < math.inf


def _sortable(pair: tuple[object, object]) -> tuple[bool, Any]:
    return isinstance(pair[0], str), pair[0]
