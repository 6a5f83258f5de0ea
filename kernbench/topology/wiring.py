"""How points are joined: the joints of a ring, a torus, a mesh or a full graph, and the way between two points.

Points are numbered row by row: point ``y * w + x`` stands in column ``x`` of row ``y``. Ways are in dimension order
(first along the row, then along the column) and take the shorter side of a ring; of two equal sides the one of growing
numbers. Both rules make a way a function of its two ends alone, and dimension order is free of cyclic waits on a mesh
(Dally and Seitz, "Deadlock-free message routing in multiprocessor interconnection networks", 1987).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Wiring:
    """``joints``: ordered pairs of neighbours, each direction once; ``path(a, b)``: the points from ``a`` to ``b``,
    both included."""

    joints: tuple[tuple[int, int], ...]
    path: Callable[[int, int], tuple[int, ...]]


def grid(w: int, h: int, *, wrap: bool) -> Wiring:
    """A ``w`` x ``h`` mesh, or a torus when ``wrap``. A ring is a torus of one row.

    A ring of two has one pair of neighbours, not two: both of its directions meet the same peer over the same links.
    """
    points = [(x, y) for y in range(h) for x in range(w)]
    pairs: dict[tuple[int, int], None] = {}
    for x, y in points:
        for dx, dy in ((1, 0), (0, 1)):
            right, below = x + dx, y + dy
            if wrap:
                right, below = right % w, below % h
            if right < w and below < h and (right, below) != (x, y):
                here, there = y * w + x, below * w + right
                pairs[here, there] = pairs[there, here] = None

    def path(a: int, b: int) -> tuple[int, ...]:
        row, column = divmod(a, w)
        to_row, to_column = divmod(b, w)
        along = [row * w + x for x in _steps(column, to_column, w, wrap)]
        return (a, *along, *(y * w + to_column for y in _steps(row, to_row, h, wrap)))

    return Wiring(tuple(pairs), path)


def full(count: int) -> Wiring:
    """Each joined to every other."""
    pairs = tuple((a, b) for a in range(count) for b in range(count) if a != b)
    return Wiring(pairs, lambda a, b: (a, b) if a != b else (a,))


def _steps(start: int, stop: int, size: int, wrap: bool) -> list[int]:
    """Coordinates passed on the way from ``start`` to ``stop`` in one dimension, ``start`` left out."""
    forward = (stop - start) % size
    if wrap:
        distance, sign = (forward, 1) if forward <= size - forward else (size - forward, -1)
    else:
        distance, sign = abs(stop - start), 1 if stop > start else -1
    return [(start + sign * step) % size for step in range(1, distance + 1)]
