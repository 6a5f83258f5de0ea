"""The page of many runs: a table of them, charts, and what was found."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kernbench.html_report.columns import Columns
from kernbench.html_report.page import filled, write_page
from kernbench.plurals import counted

_SCRIPTS = ("data.js", "words.js", "charts.js", "frame.js", "study.js")


@dataclass(frozen=True)
class StudyColumn:
    """A column of the table.

    Attributes:
        name: what it is called.
        unit: of its numbers: ``s``, ``B``, ``share`` (of one), or another such as ``FLOP/s``; empty: they have none, or it is
            text.
    """

    name: str
    unit: str = ""


@dataclass(frozen=True)
class StudyChart:
    """A chart of the rows.

    Attributes:
        kind: ``lines`` (``y`` over ``x``, both chosen in the page, a line for each combination of ``by``), ``bars`` (``y`` of
            each row, with an interval), ``points`` (``y`` over ``x``).
        title: above it.
        x, y: columns; of ``lines`` those to choose from, that which is shown first in front.
        by: columns that tell lines apart, or name bars and points.
        low, high: columns of the interval of ``y``.
        good, bad: columns that are false, or true, of rows which are drawn in the colour of an alert; empty: there is none.
        log: whether axes are logarithmic.
    """

    kind: str
    title: str
    x: Sequence[str] = ()
    y: Sequence[str] = ()
    by: Sequence[str] = ()
    low: str = ""
    high: str = ""
    good: str = ""
    bad: str = ""
    log: bool = False


@dataclass(frozen=True)
class Study:
    """What many runs came to.

    Attributes:
        title, subtitle: what ran, and how.
        facts: label, value, and a word more, possibly empty.
        columns, rows: the table.
        charts: of its rows.
        notes: what must be said beside the figures.
        findings: heading and text of what was found.
    """

    title: str
    subtitle: str
    facts: Sequence[tuple[str, str, str]]
    columns: Sequence[StudyColumn]
    rows: Sequence[Sequence[Any]]
    charts: Sequence[StudyChart] = ()
    notes: Sequence[str] = ()
    findings: Sequence[tuple[str, str]] = ()


def write_study(path: str | Path, study: Study) -> None:
    """Write the page of a study to ``path``; a reader never sees half of one."""
    rows = [[_plain(value) for value in row] for row in study.rows]
    header = {
        "format": "kernbench.study",
        "version": 1,
        **asdict(study),
        "rows": rows,
        "heads": asdict(study)["columns"],
    }
    write_page(path, filled("study.html", _SCRIPTS, study.title, Columns().packed(header)))


def _plain(value: object) -> Any:
    """As JSON has it: what is no number, text or truth value becomes text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, (str, int, float)) else str(value)


def columns_of(rows: Sequence[Mapping[str, object]], units: Mapping[str, str]) -> list[StudyColumn]:
    """The columns of rows that have the same; ``units``: of some, by name. A name that ends in a unit says it itself."""
    endings = {"seconds": "s", "bytes": "B"}
    names = list(rows[0]) if rows else []
    return [StudyColumn(name, units.get(name, endings.get(name.rpartition("_")[2], ""))) for name in names]


def failures_of(rows: Iterable[Mapping[str, object]], names: Sequence[str]) -> list[tuple[str, str]]:
    """What rows with an ``error`` have failed with, the same ones together; ``names``: the columns that say which row it is."""
    alike: dict[str, list[str]] = {}
    for row in rows:
        if row["error"]:
            alike.setdefault(str(row["error"]), []).append(", ".join(f"{name}={row[name]}" for name in names))
    return [
        (
            f"failed: {points[0]}" if len(points) == 1 else f"{counted(len(points), 'point')} failed",
            "\n".join([error, *points][:_MOST_POINTS]),
        )
        for error, points in alike.items()
    ]


_MOST_POINTS = 200
"""Lines of a failure that many points have."""
