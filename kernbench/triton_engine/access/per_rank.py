"""One instruction of several ranks in one batch: the same footprint in every rank's own allocation."""

from __future__ import annotations

import torch
from torch import Tensor

from kernbench.triton_engine.frontend.types import FLOAT8

from .footprint import Piece
from .layout import layout_of, place
from .operands import Access, Bounds


def rank_pieces(
    access: Access,
    root: int,
    origin: int,
    strides: tuple[int, ...],
    bounds: Bounds,
) -> tuple[list[Piece], tuple[int, ...]] | None:
    """One piece per rank: the same footprint in another allocation."""
    batch, item = access.batch, access.item
    lanes: tuple[int, ...] = batch.lanes
    layout = layout_of(access, strides, (1, *lanes[1:]), bounds)
    if layout is None:
        return None
    foot, shape, cell = layout
    shape = (lanes[0], *shape[1:])
    if foot is None:
        return [], shape
    roots = batch.rank_roots(root, item)
    least, most = origin + foot.least, origin + foot.most
    inside = least >= roots.least and most <= roots.most and roots.aligned and not origin % item
    out = []
    rest, foot_at = cell[1:], foot.at[1:]
    begin = origin + foot.shift
    for k, (allocation, start) in enumerate(roots.bases):
        at, here = (slice(k, k + 1), *foot_at), ((k, k + 1), *rest)
        if inside:
            piece = Piece(allocation, (begin + start) // item, foot, at, here)
        else:
            piece = place(access, foot, allocation, origin + start, at, here)
        out.append(piece)
    if inside:
        batch.execution.touch_alike(access.info, roots, foot.active * item, least, most)
    return out, shape


def load_ranks(access: Access, dtype: torch.dtype, other: object) -> Tensor | None:
    """Load the same footprint of every rank's own allocation; None if ranks differ in more than that."""
    batch, item = access.batch, access.item
    if batch.rank_index is None or access.dense is not None:
        return None
    lanes: tuple[int, ...] = batch.lanes
    root = access.pointer.root
    origin, lane_strides, tile_strides, per_lane = access.affine_pointer()
    if root is None or per_lane is not None or lane_strides[0] or not batch.ranks_along_first_axis():
        return None
    bounds, varying = access.mask_bounds(access.box)
    layout = None if varying else layout_of(access, lane_strides + tile_strides, (1, *lanes[1:]), bounds)
    if layout is None:
        return None
    foot, shape, _ = layout
    if foot is None or tuple(foot.sizes) != shape:
        return None
    roots = batch.rank_roots(root, item)
    least, most = origin + foot.least, origin + foot.most
    if least < roots.least or most > roots.most or not roots.aligned or origin % item:
        return None
    batch.execution.touch_alike(access.info, roots, foot.active * item, least, most)
    raw = torch.uint8 if dtype in FLOAT8 else dtype
    begin, sizes, steps = (origin + foot.shift) // item + foot.flip, foot.sizes, foot.steps
    out = torch.cat([flat.as_strided(sizes, steps, begin + at) for flat, at in roots.memory(raw)])
    if foot.backwards:
        out = out.flip(foot.backwards)
    return out if raw is dtype else out.view(dtype)
