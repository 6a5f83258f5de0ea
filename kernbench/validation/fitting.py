"""A small deterministic minimiser: steps along each axis, large ones first, from several starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from kernbench.cost.estimate import Floats

CLIP = 0.7  # log error beyond which a point is an outlier, all the same how far
PULL = 0.4  # weight of the log distance from the start, shared among the points: few of them move little
STEPS = (0.7, 0.35, 0.18, 0.09, 0.045, 0.02, 0.01)


def robust(error: Floats) -> float:
    """Mean of the absolute log errors, clipped, plus their median."""
    absolute = np.abs(error)
    return float(np.mean(np.minimum(absolute, CLIP))) + float(np.median(absolute))


def search(
    loss: Callable[[Sequence[float]], float],
    origin: Sequence[float],
    bounds: Sequence[tuple[float, float]],
) -> list[float]:
    """The least loss found near ``origin``, and after a large step along each axis in turn: losses have ridges.

    Args:
        loss: of a position, one number per axis; the axes are logarithms of figures.
        bounds: least and most on each axis.
    """
    best, least = list(origin), loss(origin)
    for first in range(-1, len(origin)):
        position = list(best)
        if first >= 0:
            low, high = bounds[first]
            position[first] = min(max(position[first] + 1.5 * (1 if first % 2 else -1), low), high)
        here = loss(position)
        for step in STEPS:
            improved = True
            while improved:
                improved = False
                for axis, (low, high) in enumerate(bounds):
                    for sign in (1, -1):
                        trial = list(position)
                        trial[axis] = min(max(trial[axis] + sign * step, low), high)
                        if trial[axis] == position[axis]:
                            continue
                        value = loss(trial)
                        if value < here - 1e-9:
                            position, here, improved = trial, value, True
                            break
        if here < least:
            best, least = position, here
    return best
