"""How far measurements lie from the models: the intervals of estimates (ADR 0031, 0074).

A band is the share below and above an estimate between which most measurements lie. The bands are quantiles of errors that
``python -m benches.cross_validation`` found on tables that the models had not been fitted to; it prints this table.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kernbench.cost.estimate import Floats, interval

Band = tuple[float, float, float]  # upper end of the axis, share below the estimate, share above

# Collectives by bytes, products and kernels that move memory by estimated seconds.
BANDS: Mapping[str, tuple[Band, ...]] = {
    "one_node": ((2.0**18, 0.30, 0.60), (2.0**25, 0.15, 0.18), (np.inf, 0.05, 0.10)),
    "nodes": ((2.0**18, 0.35, 0.60), (2.0**26, 0.30, 0.40), (np.inf, 0.12, 0.15)),
    "kernel": ((2.0**18, 0.30, 3.00), (2.0**22, 0.15, 1.00), (np.inf, 0.05, 0.15)),
    "gemm": ((10e-6, 0.22, 0.25), (200e-6, 0.16, 0.19), (np.inf, 0.10, 0.12)),
    "memory_bound": ((10e-6, 0.25, 0.35), (np.inf, 0.12, 0.15)),
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
