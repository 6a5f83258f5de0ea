"""Affine accesses as strided views: cut into pieces over which the address is affine and the mask is one box."""

from __future__ import annotations

from itertools import pairwise, product
from math import prod
from typing import Any

import numpy as np

from kernbench.triton_engine.memory import HostAllocation
from kernbench.triton_engine.values import Affine, Box, lane_array

from .footprint import Piece, footprint
from .layout import KEPT_FOOTPRINTS, layout_of, place
from .operands import Access, filled_bounds
from .per_rank import rank_pieces

#: Beyond this many pieces an access is gathered element by element.
_MAX_PIECES = 512


def pieces(access: Access, mask: Box | None) -> tuple[list[Piece], tuple[int, ...]] | None:
    """The pieces of an affine access and the shape of its tile value; None if it must be gathered."""
    batch, tile = access.batch, access.tile
    lanes: tuple[int, ...] = batch.lanes
    nl = len(lanes)
    origin, lane_strides, tile_strides, per_lane = access.affine_pointer()
    bounds, varying = access.mask_bounds(mask)
    allocation: HostAllocation | None = None
    root = access.pointer.root
    if root is not None:
        bases = batch.execution.roots[root]
        if batch.rank_index is None:
            allocation, start = bases[batch.rank]
            origin += start
        elif per_lane is None and not varying and not lane_strides[0] and batch.ranks_along_first_axis():
            return rank_pieces(access, root, origin, lane_strides + tile_strides, bounds)
        else:
            address = np.array([a.base + s for a, s in bases], dtype=np.int64)[batch.rank_index]
            per_lane = address if per_lane is None else per_lane + address
    elif any(lane_strides) and not access.whole_in_bounds():
        # Absolute pointers that step from one allocation to the next: every lane for itself.
        per_lane = lane_array(Affine(0, lane_strides, (), 0, 0, per_lane), lanes)
        lane_strides = (0,) * nl
    if per_lane is None and not varying:
        layout = layout_of(access, lane_strides + tile_strides, lanes, bounds)
        if layout is None:
            return None
        foot, shape, cell = layout
        return ([] if foot is None else [place(access, foot, allocation, origin, foot.at, cell)]), shape
    item = access.item
    if any(s % item for s in lane_strides + tile_strides):
        return None
    strides = tuple([s // item for s in lane_strides + tile_strides])
    # A dimension along which neither the address nor the mask changes has size 1.
    sizes = [n if s else 1 for n, s in zip(lanes + tile, strides, strict=True)]
    for j, n in enumerate(tile):
        if mask is not None and mask.bounds[j] is not None:
            sizes[nl + j] = n
    moving = varying if per_lane is None else [*varying, per_lane]
    runs = []
    total = 1
    for k in range(nl):
        if any(a.shape[k] > 1 for a in moving):
            found = _runs(moving, k, lanes[k])
            sizes[k] = lanes[k]
        else:
            found = [(0, lanes[k])]
        runs.append(found)
        total *= len(found)
    if total > _MAX_PIECES and total * 64 > prod(sizes):
        return None
    out = []
    kept: dict[Any, Any] = access.info.layouts
    if len(kept) > KEPT_FOOTPRINTS:
        kept.clear()
    whole = tuple(sizes)
    if not varying:
        bounds = filled_bounds(bounds, tile)
    for cell in product(*runs):
        first = tuple([s for s, _ in cell])
        here = bounds if not varying else (_bounds_at(bounds[0], first), _bounds_at(bounds[1], first))
        key = ("piece", strides, whole, here, cell)
        foot = kept.get(key, kept)
        if foot is kept:
            foot = kept[key] = footprint(strides, whole, here, cell, item)
        if foot is None:
            continue
        at = origin
        for k, s in enumerate(first):
            if s:
                at += s * lane_strides[k]
        if per_lane is not None:
            at += _at(per_lane, first)
        out.append(place(access, foot, allocation, at, foot.at, cell))
    return out, whole


def _runs(arrays: list[np.ndarray], axis: int, n: int) -> list[tuple[int, int]]:
    """Maximal index ranges along ``axis`` over which none of ``arrays`` changes."""
    cut = np.zeros(n - 1, dtype=bool)
    for a in arrays:
        if a.shape[axis] == 1:
            continue
        changes = np.diff(a, axis=axis) != 0
        others = tuple(k for k in range(a.ndim) if k != axis)
        cut |= changes.any(axis=others)
    edges = [0, *(np.nonzero(cut)[0] + 1).tolist(), n]
    return list(pairwise(edges))


def _at(v: np.ndarray, lane: tuple[int, ...]) -> int:
    """The number of one lane in an array that is broadcastable to the lanes."""
    return int(v[tuple([s if n > 1 else 0 for s, n in zip(lane, v.shape, strict=True)])])


def _bounds_at(bounds: tuple[Any, ...], lane: tuple[int, ...]) -> tuple[int, ...]:
    return tuple([_at(v, lane) if type(v) is np.ndarray else v for v in bounds])
