"""Intervals of time that may overlap, as arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

Intervals = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Where they begin, and where they end."""


def merged(begins: NDArray[np.float64], ends: NDArray[np.float64]) -> Intervals:
    """Where intervals that do not touch begin and end, which cover the same time as those given. In order."""
    if not len(begins):
        return begins, ends
    order = np.lexsort((ends, begins))
    begins, reach = begins[order], np.maximum.accumulate(ends[order])
    first = np.concatenate([[True], begins[1:] > reach[:-1]])
    return begins[first], reach[np.concatenate([first[1:], [True]])]


def uncovered(layers: Iterable[Intervals]) -> Iterator[float]:
    """Seconds of each layer of intervals in which none of the layers before it has an interval."""
    begins, ends = np.empty(0), np.empty(0)
    before = 0.0
    for more_begins, more_ends in layers:
        begins, ends = merged(np.concatenate([begins, more_begins]), np.concatenate([ends, more_ends]))
        now = sum((ends - begins).tolist())
        yield now - before
        before = now
