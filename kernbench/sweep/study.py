"""The page of a sweep: any figure over any axis, and the table."""

from __future__ import annotations

from kernbench.html_report.study import Study, StudyChart, columns_of, failures_of
from kernbench.sweep.outcome import FAILED
from kernbench.sweep.run import SweepResult
from kernbench.sweep.spec import SweepSpec
from kernbench.sweep.table import Row
from kernbench.topology.units import DURATION

_NO_FIGURES = ("status", "error")


def study_of(spec: SweepSpec, result: SweepResult) -> Study:
    """What a sweep came to. The figure that is shown first is that of its plot, else ``virtual_seconds``."""
    rows, axes = result.rows, list(spec.axes)
    figures = [name for name in (rows[0] if rows else ()) if name not in (*axes, *_NO_FIGURES) and _number(rows, name)]
    wanted = spec.plot or None
    first = wanted.y if wanted is not None else "virtual_seconds"
    over = wanted.x if wanted is not None else _widest(rows, axes)
    charts = []
    if figures and axes:
        charts.append(
            StudyChart(
                "lines", "Figures over axes", x=_first(over, [*axes, *(figures if over in figures else ())]),
                y=_first(first, figures), by=axes, log=wanted.log if wanted is not None else False,
            )
        )  # fmt: skip
    failed = [row for row in rows if row["status"] == FAILED]
    name = spec.program.rpartition("/")[2]
    return Study(
        title=f"sweep of {name}",
        subtitle=", ".join(f"{axis}: {', '.join(map(str, values))}" for axis, values in spec.axes.items()),
        facts=[
            ("points", str(len(rows)), f"{result.ran} run now"),
            *([("failed", str(len(failed)), "")] if failed else []),
            *((f"{end} {first}", _written(first, value), "") for end, value in _extremes(rows, first)),
        ],
        columns=columns_of(rows, {}),
        rows=[list(row.values()) for row in rows],
        charts=charts,
        notes=[f"Fixed: {', '.join(f'{key}={value}' for key, value in spec.fixed.items())}"] if spec.fixed else [],
        findings=failures_of(rows, axes),
    )


def _number(rows: list[Row], name: str) -> bool:
    values = [row[name] for row in rows if row[name] is not None]
    return bool(values) and all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)


def _widest(rows: list[Row], axes: list[str]) -> str:
    """The axis of numbers with the most values."""
    counts = {axis: len({row[axis] for row in rows}) for axis in axes if _number(rows, axis)}
    return max(counts, key=lambda axis: counts[axis], default=axes[0] if axes else "")


def _first(name: str, names: list[str]) -> list[str]:
    return sorted(names, key=lambda each: each != name)


def _written(name: str, value: float) -> str:
    return DURATION.format(value) if name.endswith("seconds") else f"{value:,.6g}"


def _extremes(rows: list[Row], name: str) -> list[tuple[str, float]]:
    values = [row[name] for row in rows if isinstance(row.get(name), (int, float))]
    return [("least", min(values)), ("most", max(values))] if values else []
