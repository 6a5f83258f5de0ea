"""How far measurements lie from the models: the intervals of estimates (ADR 0031)."""

from __future__ import annotations

import numpy as np

from kernbench.cost.collective_constants import KIB, MIB
from kernbench.cost.collective_world import World
from kernbench.cost.estimate import Floats, interval

# Upper end of a size band, and shares below and above an estimate between which 80 % of measurements lie.
_ONE_NODE = ((256 * KIB, 0.30, 0.60), (32 * MIB, 0.15, 0.18), (np.inf, 0.05, 0.10))
_NODES = ((256 * KIB, 0.35, 0.60), (64 * MIB, 0.30, 0.40), (np.inf, 0.12, 0.15))
_KERNEL_SKEW = 45e-6  # ranks arrive at different times, and the first one's kernel waits


def collective_interval(
    world: World, collective: str, size: Floats, seconds: Floats, kind: str
) -> tuple[Floats, Floats]:
    bands = _ONE_NODE if world.nodes == 1 else _NODES
    row = np.searchsorted([band[0] for band in bands], size, side="left")
    below = np.asarray([band[1] for band in bands])[row]
    above = np.asarray([band[2] for band in bands])[row]
    low, high = interval(seconds, below, above)
    if kind == "kernel":
        high = np.where(size < 4 * MIB, np.maximum(high, seconds + _KERNEL_SKEW), high)
    return low, high
