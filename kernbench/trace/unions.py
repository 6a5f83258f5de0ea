"""Intervals of time that may overlap, as arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def merged(begins: NDArray[np.float64], ends: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Where intervals that do not touch begin and end, which cover the same time as those given. In order."""
    if not len(begins):
        return begins, ends
    order = np.lexsort((ends, begins))
    begins, reach = begins[order], np.maximum.accumulate(ends[order])
    first = np.concatenate([[True], begins[1:] > reach[:-1]])
    return begins[first], reach[np.concatenate([first[1:], [True]])]


def union(begins: NDArray[np.float64], ends: NDArray[np.float64]) -> list[tuple[float, float]]:
    """The same as pairs."""
    first, last = merged(begins, ends)
    return list(zip(first.tolist(), last.tolist(), strict=True))
