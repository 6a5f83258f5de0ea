"""How far measurements lie from the models: the intervals of estimates (ADR 0031, 0074).

A band is the share below and above an estimate between which most measurements lie. The bands are quantiles of errors that
``kernbench.benches.cross_validation`` found on tables that the models had not been fitted to, narrowed where its automatic
fits are worse than the shipped constants.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from math import hypot

import numpy as np

from kernbench.cost.estimate import Floats, interval

Band = tuple[float, float, float]  # upper end of the axis, share below the estimate, share above

# Collectives by bytes, products and kernels that move memory by estimated seconds.
BANDS: Mapping[str, tuple[Band, ...]] = {
    "one_node": ((2.0**18, 0.18, 0.22), (2.0**25, 0.16, 0.17), (np.inf, 0.04, 0.09)),
    "nodes": ((2.0**18, 0.18, 0.26), (2.0**26, 0.12, 0.60), (np.inf, 0.13, 0.12)),
    "kernel": ((2.0**18, 0.20, 3.00), (2.0**22, 0.13, 1.60), (np.inf, 0.10, 0.22)),
    "gemm": ((10e-6, 0.19, 0.32), (200e-6, 0.17, 0.28), (np.inf, 0.12, 0.13)),
    "memory_bound": ((10e-6, 0.21, 0.33), (np.inf, 0.10, 0.18)),
}


def collective_group(nodes: int, kind: str) -> str:
    """The row of :data:`BANDS` for a collective."""
    return "kernel" if kind == "kernel" and nodes == 1 else "one_node" if nodes == 1 else "nodes"


def band_interval(group: str, axis: Floats, seconds: Floats) -> tuple[Floats, Floats]:
    """Low and high of estimates, by the bands of a group along its axis."""
    bands = BANDS[group]
    row = np.searchsorted([band[0] for band in bands], axis, side="left")
    below = np.asarray([band[1] for band in bands])[row]
    above = np.asarray([band[2] for band in bands])[row]
    return interval(seconds, below, above)


@lru_cache(maxsize=1024)
def collective_spread(nodes: int, nbytes: int) -> tuple[float, float]:
    """Shares below and above a collective's time on ``nodes`` nodes, for one that is simulated step by step."""
    _, below, above = next(band for band in BANDS[collective_group(nodes, "host")] if nbytes <= band[0])
    return below, above


# -- whole steps (ADR 0125) ------------------------------------------------------------------------------------------------

COMMON = 0.02
"""Share by which all that a device computes is off together, 80 % of steps: its clock, its power, its library's version."""

HOST = 0.4
"""Share by which a host's time is off, 80 % of programs: another CPU, another version of Python, how full its caches are. An
operator in a loop of its own and one whose code is in no cache any more lie further apart (ADR 0200)."""

_COMPUTED = frozenset({"product", "attention", "memory", "kernel"})
"""Kinds of work that share the device's clock."""


def step_interval(parts: Iterable[tuple[str, float, float, float]]) -> tuple[float, float]:
    """Seconds that a step takes at least and at most, four times of five.

    Errors within one kind of work have one direction; those of different kinds are independent, but for what all that the
    device computes has in common (:data:`COMMON`), and the host's, which is as uncertain as it is long.

    Args:
        parts: of the step's critical path: kind, seconds, and their interval.
    """
    below: list[float] = []
    above: list[float] = []
    seconds = computed = 0.0
    for kind, took, low, high in parts:
        seconds += took
        computed += took if kind in _COMPUTED else 0.0
        below.append(took * HOST if kind in ("host", "gap") else took - low)
        above.append(took * HOST if kind in ("host", "gap") else high - took)
    common = computed * COMMON
    return seconds - hypot(common, *below), seconds + hypot(common, *above)
