"""Loads of affine tiles at irregular places: every lane's tile is a window on memory, and one indexed copy fetches all."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernbench.triton_engine.frontend.types import FLOAT8
from kernbench.triton_engine.memory import HostAllocation
from kernbench.triton_engine.shares import by_launch
from kernbench.triton_engine.values import Affine, filled, lane_array

from .footprint import Footprint
from .layout import layout_of
from .operands import Access, Bounds

#: Lanes at irregular addresses are copied window by window if that many, or if a window has that many elements.
_MOST_WINDOWS, _LARGE_WINDOW = 512, 32


class _Windows:
    """Where the lanes' tiles lie, relative to one another: ``step`` bytes or multiples of it apart."""

    __slots__ = ("foot", "index", "least", "moving", "per_lane", "shape", "sizes", "span", "starts", "step", "steps")

    def __init__(
        self,
        per_lane: np.ndarray,
        foot: Footprint,
        shape: tuple[int, ...],
        moving: list[int],
        starts: np.ndarray,
        item: int,
    ) -> None:
        self.per_lane = per_lane
        self.foot = foot
        self.shape = shape
        self.moving = moving
        self.starts = starts
        self.least = int(starts.min())
        apart = starts - self.least
        self.span = int(apart.max())
        self.step = int(np.gcd.reduce(apart)) or item
        self.index = torch.from_numpy(apart // self.step)
        self.sizes = [self.span // self.step + 1, *foot.sizes]
        self.steps = [self.step // item, *foot.steps]

    def only(self, which: np.ndarray, item: int) -> _Windows:
        """Some of the windows."""
        return _Windows(self.per_lane, self.foot, self.shape, self.moving, self.starts[which], item)


def load_windows(access: Access, dtype: torch.dtype, other: object) -> Tensor | None:
    """Load where the tile is affine and the lanes are not: every lane's tile is a window on memory, and the windows lie
    a whole number of steps apart, so that one indexed copy fetches them. None if that is not so."""
    batch, offset = access.batch, access.pointer.offset
    if (
        type(offset) is not Affine
        or offset.per_lane is None
        or batch.rank_index is not None
        or access.dense is not None
    ):
        return None
    lanes: tuple[int, ...] = batch.lanes
    origin, lane_strides, tile_strides, per_lane = access.affine_pointer()
    assert per_lane is not None
    bounds, varying = access.mask_bounds(access.box)
    if varying:
        return None
    # in a loop only ``origin`` changes: what follows from the rest is kept, as long as the very same array comes
    kept: dict[Any, Any] = access.info.layouts
    key = ("windows", lane_strides, tile_strides, lanes, bounds, access.tile)
    windows: _Windows | None = kept.get(key)
    if windows is None or windows.per_lane is not per_lane:
        windows = _windows_of(access, per_lane, lane_strides, tile_strides, bounds)
        if windows is None:
            return None
        kept[key] = windows
    foot, shape, moving = windows.foot, windows.shape, windows.moving
    root = access.pointer.root
    allocation: HostAllocation | None = None
    if root is not None:
        allocation, base = batch.execution.roots[root][batch.rank]
        origin += base
    values = _fetch(access, windows, allocation, origin, dtype)
    if values is None:
        return None
    rest = foot.sizes
    values = values.view([lanes[k] for k in moving] + [n for k, n in enumerate(rest) if k not in moving])
    if moving != list(range(len(moving))):
        order = [*moving, *(k for k in range(len(rest)) if k not in moving)]
        values = values.permute([order.index(k) for k in range(len(rest))]).contiguous()
    full = tuple([lanes[k] if k in moving else n for k, n in enumerate(shape)])
    if tuple(values.shape) == full:
        return values
    out = filled(full, 0 if other is None else other, dtype)
    inside = tuple([slice(None) if a is None or k in moving else a for k, a in enumerate(foot.at)])
    out[inside].copy_(values)
    return out


def _windows_of(
    access: Access,
    per_lane: np.ndarray,
    lane_strides: tuple[int, ...],
    tile_strides: tuple[int, ...],
    bounds: Bounds,
) -> _Windows | None:
    """The windows of all lanes; None if there are too many small ones."""
    lanes: tuple[int, ...] = access.batch.lanes
    moving = [k for k in range(len(lanes)) if per_lane.shape[k] > 1]
    layout = layout_of(
        access,
        tuple([0 if k in moving else s for k, s in enumerate(lane_strides)]) + tile_strides,
        tuple([1 if k in moving else n for k, n in enumerate(lanes)]),
        bounds,
    )
    if layout is None:
        return None
    foot, shape, _ = layout
    if foot is None:
        return None
    full = per_lane
    if any(lane_strides[k] for k in moving):
        full = lane_array(
            Affine(0, tuple([s if k in moving else 0 for k, s in enumerate(lane_strides)]), (), 0, 0, per_lane), lanes
        )
    if full.size > _MOST_WINDOWS and foot.active < _LARGE_WINDOW:
        return None
    return _Windows(per_lane, foot, shape, moving, full.reshape(-1), access.item)


def _fetch(
    access: Access, windows: _Windows, allocation: HostAllocation | None, origin: int, dtype: torch.dtype
) -> Tensor | None:
    """Copies of all windows ``origin`` bytes on, stacked; None if they are to be read one by one."""
    item, foot = access.item, windows.foot
    lo = origin + windows.least
    raw = torch.uint8 if dtype in FLOAT8 else dtype
    if allocation is None:
        allocation = access.find(lo + foot.least)
        if allocation is None:
            return None
        end = allocation.base + allocation.nbytes
        if lo + windows.span + foot.most > end:  # windows in several allocations
            here = windows.starts + (origin + foot.most) <= end
            if not here.any():
                return None
            first = _fetch(access, windows.only(here, item), allocation, origin - allocation.base, dtype)
            others = None if first is None else _fetch(access, windows.only(~here, item), None, origin, dtype)
            if first is None or others is None:
                return None
            out = first.new_empty((len(here), *foot.sizes))
            which = torch.from_numpy(here)
            out[which], out[~which] = first, others
            return out
        lo -= allocation.base
    begin = lo + foot.shift
    most = lo + windows.span + foot.most
    if lo + foot.least < 0 or most > allocation.nbytes or windows.step % item or begin % item:
        return None
    access.touch(
        allocation, by_launch(access.batch, foot.active * item * len(windows.starts)), lo + foot.least, most
    )  # fmt: skip
    memory = allocation.flat(raw).as_strided(windows.sizes, windows.steps, begin // item + foot.flip)
    out = memory.index_select(0, windows.index)
    if foot.backwards:
        out = out.flip([d + 1 for d in foot.backwards])
    return out if raw is dtype else out.view(dtype)
