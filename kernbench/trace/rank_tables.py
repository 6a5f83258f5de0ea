"""Which lines a table of ranks has: one of each rank, and of many ranks one of each kind, or of those that stand out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from kernbench.simulation.ranks.rank_spans import spans

MOST = 16
"""Ranks that a table shows one by one."""

_MOST_KINDS = 8
"""Different lines that a table of more ranks shows; where there are more, those of the extremes and of the median."""

_MOST_RUNS = 2
"""Runs of numbers that the name of a line lists."""


@dataclass(frozen=True)
class RankRow:
    """One rank of a table before it is decided what is shown.

    Attributes:
        rank: its number.
        cells: the line's texts; ranks with equal ones share a line.
        size: what extremes and the median are taken of; of equal first figures the next decides.
    """

    rank: int
    cells: tuple[str, ...]
    size: tuple[float, ...]


@dataclass(frozen=True)
class TableLine:
    """One line: whose it is, its texts, and what is to be said of it (``"slowest"``; empty: nothing)."""

    name: str
    cells: tuple[str, ...]
    mark: str = ""


def table_lines(rows: Sequence[RankRow], largest: str, smallest: str) -> Iterator[TableLine]:
    """The lines of a table with these rows.

    Up to :data:`MOST` rows are shown as they are. Of more, equal ones share a line, and the rank with the largest size, the
    (lower) median and the one with the smallest are marked; where the kinds are many, the lines of those three are shown alone.
    """
    if len(rows) <= MOST:
        for row in rows:
            yield TableLine(str(row.rank), row.cells)
        return
    kinds: dict[tuple[str, ...], list[int]] = {}
    for row in rows:
        kinds.setdefault(row.cells, []).append(row.rank)
    by_size = sorted(rows, key=lambda row: (row.size, -row.rank), reverse=True)
    marks: dict[tuple[str, ...], list[str]] = {}
    for row, mark in ((by_size[0], largest), (by_size[len(rows) // 2], "median"), (by_size[-1], smallest)):
        marks.setdefault(row.cells, []).append(mark)
    all_shown = len(kinds) <= _MOST_KINDS
    told = marks if by_size[0].size != by_size[-1].size and len(marks) > 1 else {}
    for cells in kinds if all_shown else marks:
        yield TableLine(runs_of(kinds[cells], _MOST_RUNS), cells, ", ".join(told.get(cells, ())))
    if not all_shown:
        others = len(rows) - sum(len(kinds[cells]) for cells in marks)
        yield TableLine("...", (f"{others} ranks between these, of {len(kinds) - len(marks)} kinds",))


def runs_of(ranks: Collection[int], most: int | None = None) -> str:
    """``"0-6, 8"``; with more runs than ``most``, the first number and how many more there are: ``"0 and 7 more"``."""
    runs = spans(ranks)
    if most is not None and len(runs) > most:
        numbers = {*ranks}
        return f"{min(numbers)} and {len(numbers) - 1} more"
    return ", ".join(runs)
