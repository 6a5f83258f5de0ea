"""Setting the models' fitted constants again, from priors that no table has seen: what cross-validation needs (ADR 0073).

A :class:`Knob` is one fitted constant: where it is, and its prior, a figure of NCCL's source or a plain guess that holds
for every generation. ``refit`` sets the knobs of a kind to the least error on some tables; what those tables do not tell
stays at the prior, or at what the generation before has. Constants that are not here are from sources.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from pydantic import BaseModel

from kernbench.cost.collective_constants import GB, LIBRARY, US
from kernbench.cost.generations import GENERATIONS, TRANSPORTS, by_age
from kernbench.cost.memory_bound import OPS
from kernbench.validation.comparisons import Comparison, MeasuredTable
from kernbench.validation.fitting import robust

_STEPS = (0.4, 0.15, 0.06, 0.025)
_SWEEPS = 4  # over all knobs with steps of one length, at most
_PULL = 0.003  # per unit of log distance from the prior: what no table tells does not move


@dataclass(frozen=True, slots=True)
class Knob:
    """One fitted constant.

    Attributes:
        table: the mapping of rows that it is in.
        row, field: of the table.
        key: within the field, where that is a mapping or a tuple.
        prior: where a fit starts.
        reach: the factor beyond which it does not move from there.
        most: a value that physics does not let it pass.
    """

    table: str
    row: str
    field: str
    prior: float
    key: Any = None
    reach: float = 8.0
    most: float = math.inf

    @property
    def name(self) -> str:
        """What reports call it."""
        return f"{self.table}.{self.row}.{self.field}" + ("" if self.key is None else f"[{self.key}]")


TABLES: Mapping[str, tuple[Mapping[str, object], str]] = {
    "generation": (GENERATIONS, "collectives"),
    "transport": (TRANSPORTS, ""),
    "library": (LIBRARY, ""),
    "gemm": (GENERATIONS, "gemm"),
    "op": (OPS, ""),
}
"""Rows, and the part of a row that the knobs of a table are in."""


def _get(knob: Knob) -> float:
    rows, part = TABLES[knob.table]
    row = rows[knob.row]
    value = getattr(getattr(row, part) if part else row, knob.field)
    return float(value if knob.key is None else value[knob.key])


def _set(knob: Knob, value: float) -> None:
    rows, part = TABLES[knob.table]
    row = rows[knob.row]
    held = getattr(row, part) if part else row
    new: Any = value
    if knob.key is not None:
        old = getattr(held, knob.field)
        new = (
            {**old, knob.key: value}
            if isinstance(old, Mapping)
            else tuple(value if index == knob.key else item for index, item in enumerate(old))
        )
    held = _with(held, knob.field, new)
    cast(MutableMapping[str, Any], rows)[knob.row] = _with(row, part, held) if part else held


def _with(row: Any, field: str, value: object) -> Any:
    return row.model_copy(update={field: value}) if isinstance(row, BaseModel) else replace(row, **{field: value})


@contextmanager
def constants(values: Mapping[Knob, float]) -> Iterator[None]:
    """The models with some constants set; afterwards all are as they were."""
    kept = [(rows, dict(rows)) for rows, _ in TABLES.values()]
    try:
        for knob, value in values.items():
            _set(knob, value)
        yield
    finally:
        for rows, before in kept:
            held = cast(MutableMapping[str, Any], rows)
            for name in [name for name in held if name not in before]:
                del held[name]  # read from its file meanwhile, and perhaps changed since
            held.update(before)


# Priors. Generations: NCCL's base and hop latencies, LL's caps and efficiencies (src/graph/tuning.cc), else round figures.
_GENERATION: Mapping[tuple[str, object], float] = {
    ("base", "ll"): 6.6 * US,
    ("base", "ll128"): 14 * US,
    ("base", "simple"): 8.4 * US,
    ("hop", "ll"): 0.6 * US,
    ("hop", "ll128"): 1.9 * US,
    ("hop", "simple"): 3.4 * US,
    ("ring_share", None): 0.85,
    ("tree_share", None): 0.92,
    ("ll128_share", None): 0.92,
    ("p2p_channel", None): 20 * GB,
    ("all_to_all_share", None): 0.85,
    ("pair_share", None): 0.92,
    ("mesh_share", None): 0.95,
    ("nvls_share", None): 0.7,
    ("nvls_base", None): 25 * US,
    ("direct_base", 0): 4 * US,
    ("direct_base", 1): 0.4 * US,
    ("direct_sync", None): 5 * US,
    ("direct_share", None): 0.3,
}
_TRANSPORT: Mapping[tuple[str, object], float] = {
    **{("step", (algorithm, "ll")): 1 * US for algorithm in ("tree", "ring")},
    **{("step", (algorithm, "ll128")): 4 * US for algorithm in ("tree", "ring")},
    **{("step", (algorithm, "simple")): 10 * US for algorithm in ("tree", "ring")},
    ("chunk", None): 0.5 * US,
    ("chunk_trips", None): 0.5,
    ("spread", None): 0.03,
    ("ll_bandwidth", None): 2.5 * GB,
    ("ll_hop_bandwidth", None): 6 * GB,
    ("tree_share", 0): 0.95,
    ("tree_share", 1): 0.9,
}
_LIBRARY = {"incast": 0.97, "across": 0.95, "peer": 1.5 * US, "launched_early": 3 * US, "host_serial": 0.4}
_GEMM: Mapping[tuple[str, object], float] = {
    ("efficiency", "fp16"): 0.8,
    ("efficiency", "tf32"): 0.8,
    ("efficiency", "fp8"): 0.7,
    ("operand_reuse", None): 1.5,
    ("pe_share", None): 2.0,
    ("resident", None): 0.5,
    ("read_share", None): 0.9,
    ("store_share", None): 0.8,
    ("start", None): 1.5 * US,
    ("block", None): 1.0 * US,
    ("split", None): 3.0 * US,
    ("wide", None): 0.8,
}
_OP: Mapping[str, float] = {"pace": 1.0, "memory": 0.9, "start": 1 * US, "hip": 0.7}
# Shares of what hardware gives; more than all of it there is not.
_SHARES = (
    "ring_share", "tree_share", "ll128_share", "all_to_all_share", "nvls_share", "direct_share", "mesh_share", "pair_share",
)  # fmt: skip
_ALL = dict.fromkeys((*_SHARES, "efficiency", "read_share"), 1.0)


def knobs(kind: str) -> list[list[Knob]]:
    """The knobs of ``collective``, ``gemm`` or ``memory_bound``, in groups that are fitted one after the other."""
    if kind == "collective":
        groups = [
            [
                Knob("generation", row, field, prior, key, most=_ALL.get(field, math.inf))
                for (field, key), prior in _GENERATION.items()
            ]
            + [Knob("generation", row, "ll_bandwidth", GENERATIONS[row].collectives.rank_ll_max[0])]
            for row in by_age()
        ]
        library = [
            Knob("library", "library", field, prior, reach=4, most=1.0 if field in ("incast", "across") else math.inf)
            for field, prior in _LIBRARY.items()
        ]
        return [
            *groups,
            *(
                [
                    Knob("transport", row, field, prior, key, most=1.0 if field == "tree_share" else math.inf)
                    for (field, key), prior in _TRANSPORT.items()
                ]
                for row in ("verbs", "libfabric")
            ),
            library,
        ]
    if kind == "gemm":
        return [
            [
                Knob("gemm", row, field, prior, key, most=_ALL.get(field, math.inf))
                for (field, key), prior in _GEMM.items()
            ]
            for row in by_age()
        ]
    return [[Knob("op", row, field, prior) for field, prior in _OP.items()] for row in OPS]


def log_error(found: Comparison) -> Any:
    """Log of estimate over measurement, of each point."""
    return np.log(found.seconds / found.measured)


def concerning(tables: Sequence[MeasuredTable], groups: Sequence[Sequence[Knob]]) -> list[Sequence[Knob]]:
    """The groups whose knobs change the estimates of some tables."""
    here = {knob: _get(knob) for group in groups for knob in group if _get(knob) > 0}
    return [group for group in groups if any(_concerned(tables, here, knob) for knob in group if knob in here)]


def refit(
    tables: Sequence[MeasuredTable], groups: Sequence[Sequence[Knob]], known: Mapping[Knob, float] | None = None
) -> dict[Knob, float]:
    """The values of the knobs that fit some tables best, one group after the other.

    Args:
        tables: to fit to.
        groups: of knobs, which start at their priors.
        known: values of other knobs.
    """
    values = {**(known or {}), **{knob: knob.prior for group in groups for knob in group}}
    for group in groups:
        moving = [knob for knob in group if _get(knob) > 0]
        if moving:
            values |= _fit(tables, moving, values)
        for knob in moving:  # a generation that is not measured is as the one that it follows
            for name, row in GENERATIONS.items():
                twin = replace(knob, row=name)
                if row.like == knob.row and twin in values:
                    values[twin] = values[knob]
    return values


def _fit(tables: Sequence[MeasuredTable], moving: Sequence[Knob], values: Mapping[Knob, float]) -> dict[Knob, float]:
    """Steps along one knob at a time; a trial looks only at the tables that the knob concerns."""
    # A long table says more than a short one, but not as much more as it is longer.
    weights = np.sqrt([float(table.size.size) for table in tables])
    weights /= weights.sum()
    now = dict(values)

    def losses(trial: Mapping[Knob, float], at: Sequence[int]) -> list[float]:
        with constants(trial):
            return [float(weights[index]) * robust(log_error(tables[index].compare())) for index in at]

    def pull(knob: Knob, value: float) -> float:
        return _PULL * abs(math.log(value / knob.prior))

    held = losses(now, range(len(tables)))
    concern = {knob: range(len(tables)) for knob in moving}
    for number, step in enumerate(_STEPS):
        if number in (0, 2):
            concern = {knob: _concerned(tables, now, knob) for knob in moving}
        for _ in range(_SWEEPS):
            before = dict(now)
            for knob in moving:
                at = concern[knob]
                for factor in (math.exp(step), math.exp(-step)):
                    value = min(now[knob] * factor, knob.prior * knob.reach, knob.most)
                    value = max(value, knob.prior / knob.reach)
                    trial = losses(now | {knob: value}, at)
                    gain = sum(held[index] for index in at) - sum(trial) + pull(knob, now[knob]) - pull(knob, value)
                    if gain > 1e-7:
                        now[knob] = value
                        for index, loss in zip(at, trial, strict=True):
                            held[index] = loss
                        break
            if now == before:
                break
    return {knob: now[knob] for knob in moving}


def _concerned(tables: Sequence[MeasuredTable], values: Mapping[Knob, float], knob: Knob) -> Any:
    """Indices of the tables whose estimates a knob changes."""
    with constants(values):
        before = [table.compare().seconds for table in tables]
    found = set()
    for factor in (0.6, 1.7):
        with constants({**values, knob: values[knob] * factor}):
            found |= {
                index
                for index, table in enumerate(tables)
                if not np.allclose(before[index], table.compare().seconds, rtol=1e-9)
            }
    return sorted(found)
