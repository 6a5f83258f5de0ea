"""How wrong the models are where they were not fitted: leave out a source, fit the rest, look at what was left out.

ADR 0073. A fold leaves out every table of one source (one cluster, one publication), of one device or system, or of one
collective, sets the fitted constants again from their priors on the other tables of the same kind, and estimates the tables
left out. Intervals are judged the same way: the bands of a fold come from the errors of the other folds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from kernbench.cost.estimate import Floats
from kernbench.cost.uncertainty import BANDS, Band, collective_group
from kernbench.validation.comparisons import Comparison, MeasuredTable
from kernbench.validation.manifests import SHIPPED_MANIFEST, Table
from kernbench.validation.refit import Knob, concerning, constants, knobs, refit
from kernbench.validation.scores import load_manifest

Key = Callable[[Table], str]
KEYS: Mapping[str, Key] = {
    "source": lambda table: table.source,
    "device": lambda table: str(table.device or table.system),
    "collective": lambda table: str(table.collective),
}
_POINTS = 64  # of a table that a fit looks at
TAIL = 0.08  # share of errors beyond either end of a band


@dataclass(frozen=True, slots=True)
class Fold:
    """What was left out, and the models' estimates of it when fitted without it."""

    kind: str
    left_out: str
    comparisons: list[Comparison]


def leave_one_out(
    kind: str, by: str = "source", *, manifest: Path = SHIPPED_MANIFEST, processes: int = 1, only: Iterable[str] = ()
) -> list[Fold]:
    """The folds of one kind of tables.

    Args:
        kind: ``collective``, ``gemm`` or ``memory_bound``.
        by: a key of :data:`KEYS`.
        manifest: of the tables.
        processes: to share the folds among.
        only: names to leave out one by one; all of them without.
    """
    key = KEYS[by]
    tables = [table for table in load_manifest(manifest) if table.table.kind == kind]
    names = sorted({key(table.table) for table in tables})
    whole = refit(_for_fit(tables), knobs(kind))
    jobs = [(kind, by, name, manifest, whole) for name in names if not only or name in only]
    if processes == 1:
        return [_fold(*job) for job in jobs]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        return list(pool.map(_fold, *zip(*jobs, strict=True)))


def _for_fit(tables: Sequence[MeasuredTable]) -> list[MeasuredTable]:
    """The tables that constants may be set by, without the rows that add only time."""
    return [table.thinned(_POINTS) for table in tables if not table.table.held_out]


def _fold(kind: str, by: str, name: str, manifest: Path, whole: Mapping[Knob, float]) -> Fold:
    """Sets again the groups of constants that the tables left out would have had a say in, and estimates those."""
    key = KEYS[by]
    tables = [table for table in load_manifest(manifest) if table.table.kind == kind]
    out = [table for table in tables if key(table.table) == name]
    rest = [table for table in tables if key(table.table) != name]
    values = refit(_for_fit(rest), concerning(out, knobs(kind)), known=whole)
    with constants(values):
        found = [table.compare() for table in out]
    return Fold(kind, name, found)


def group_of(table: Table) -> str:
    """The row of the bands for a table."""
    return collective_group(table.nodes, table.time) if table.kind == "collective" else table.kind


def axis_of(item: Comparison) -> Floats:
    """Where on their bands the points of a table are: bytes of a collective, estimated seconds of a kernel."""
    return item.size if item.table.kind == "collective" else item.seconds


def bands(comparisons: Sequence[Comparison], tail: float = TAIL) -> dict[str, tuple[Band, ...]]:
    """Bands with the same ends as :data:`BANDS` that leave out a share ``tail`` of the errors on either side; those of a
    band without points stay."""
    found = {}
    for group, rows in BANDS.items():
        items = [item for item in comparisons if group_of(item.table) == group]
        new, least = [], -np.inf
        for upto, below, above in rows:
            parts = [
                (item.measured / item.seconds)[(axis_of(item) > least) & (axis_of(item) <= upto)] for item in items
            ]
            ratio = np.concatenate([np.ones(0), *parts])
            if ratio.size >= 10:
                low, high = np.quantile(ratio, (tail, 1 - tail))
                below, above = max(0.02, 1 - low), max(0.02, high - 1)
            new.append((upto, round(float(below), 3), round(float(above), 3)))
            least = upto
        found[group] = tuple(new)
    return found


def with_bands(item: Comparison, rows: Mapping[str, Sequence[Band]]) -> Comparison:
    """A comparison with the interval of other bands."""
    table = rows[group_of(item.table)]
    row = np.searchsorted([band[0] for band in table], axis_of(item), side="left")
    below, above = (np.asarray([band[at] for band in table])[row] for at in (1, 2))
    return replace(item, low=item.seconds * (1 - below), high=item.seconds * (1 + above))


def judged(folds: Sequence[Fold]) -> list[Fold]:
    """The folds with intervals whose bands come from the other folds of the same kind."""
    result: list[Fold] = []
    for fold in folds:
        others: list[Any] = [item for other in folds if other is not fold for item in other.comparisons]
        rows = bands(others)
        result.append(replace(fold, comparisons=[with_bands(item, rows) for item in fold.comparisons]))
    return result
