"""Which launch of a batch did what: the lanes of several ranks run together, and each has its own bytes and times."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from torch import Tensor

Shares = dict[int, int]
"""An amount, by the number of the launch whose lanes it is of."""


def by_launch(batch: Any, amount: int, cell: tuple[tuple[int, int], ...] | None = None) -> Shares:
    """``amount`` of what all lanes did alike, or those of a ``cell`` (ranges along the lane axes)."""
    if batch.rank_index is None:
        return {batch.rank: amount}
    whole = cell is None or len(cell) != len(batch.lanes)
    return _divided(amount, batch.lanes_by_launch if whole else _counted(batch, cell))


def by_launch_of_elements(batch: Any, each: int, tile: tuple[int, ...], active: Tensor | None) -> Shares:
    """``each`` for every element of every lane's ``tile`` that is ``active`` (shape: broadcastable lanes + tile; None: all)."""
    if active is None:
        return {launch: lanes * prod(tile) * each for launch, lanes in batch.lanes_by_launch.items()}
    nl = len(batch.lanes)
    hidden = prod(tile) // max(prod(active.shape[nl:]), 1)  # elements that one of the mask stands for
    per_lane = active.sum(tuple(range(nl, active.ndim))) if active.ndim > nl else active
    lanes = np.broadcast_to(per_lane.numpy(), batch.lanes)
    if batch.rank_index is None:
        return {batch.rank: int(lanes.sum()) * hidden * each}
    launches = np.broadcast_to(batch.rank_index, batch.lanes)
    return {launch: int(lanes[launches == launch].sum()) * hidden * each for launch in batch.lanes_by_launch}


def by_launch_of_places(batch: Any, each: int, places: np.ndarray | None, per_lane: int) -> Shares:
    """``each`` for every one of ``places`` in the flat order of lanes, ``per_lane`` of them a lane (None: all)."""
    if batch.rank_index is None:
        return {batch.rank: each * (batch.size * per_lane if places is None else len(places))}
    if places is None:
        return {launch: lanes * per_lane * each for launch, lanes in batch.lanes_by_launch.items()}
    launches = np.broadcast_to(batch.rank_index, batch.lanes).reshape(-1)[places // max(per_lane, 1)]
    return {int(launch): int(n) * each for launch, n in zip(*np.unique(launches, return_counts=True), strict=True)}


def lanes_by_launch(batch: Any) -> Shares:
    """How many lanes of each launch there are."""
    return {batch.rank: batch.size} if batch.rank_index is None else _counted(batch, None)


def _counted(batch: Any, cell: tuple[tuple[int, int], ...] | None) -> Shares:
    index = batch.rank_index
    if cell is not None:
        index = index[tuple(slice(a, b) if n > 1 else slice(0, 1) for n, (a, b) in zip(index.shape, cell, strict=True))]
        lanes = prod(b - a for a, b in cell)
    else:
        lanes = batch.size
    found, counts = np.unique(index, return_counts=True)
    alike = lanes // max(index.size, 1)
    return {int(launch): int(n) * alike for launch, n in zip(found, counts, strict=True)}


def _divided(amount: int, lanes: Shares) -> Shares:
    total = sum(lanes.values())
    return {launch: amount * n // total for launch, n in lanes.items()} if total else {}
