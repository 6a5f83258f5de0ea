"""Cutting, joining and re-arranging values along lane axes: what a split or a merge of a batch does to them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .frontend.types import FLOAT8, Ty
from .values import Affine, Box, Desc, Ptr, dense_int, dense_mask, from_lane_array, lane_array


@dataclass(slots=True, eq=False)
class Lanes:
    """Which programs of which ranks run side by side.

    ``lanes``: sizes of the lane axes; dimensions of values follow them. ``ids``: linear program id of each lane (size 1 along
    axes that it does not vary with). ``rank_index``: position of its launch in the execution, the same way, if there are
    several; else it is ``rank`` for all. ``threads``: which thread of its program, the same way; None: lanes are programs.
    """

    lanes: tuple[int, ...]
    ids: np.ndarray
    rank_index: np.ndarray | None
    rank: int
    threads: np.ndarray | None


def cut(v: object, axis: int, start: int, stop: int) -> Any:
    """The value for lanes ``start:stop`` of ``axis``. Tensors are views."""
    match v:
        case Tensor():
            return v if v.shape[axis] == 1 else v.narrow(axis, start, stop - start)
        case Affine():
            if not varies(v, axis):
                return v
            constant = v.constant + v.lane_strides[axis] * start
            per_lane = None if v.per_lane is None else cut(v.per_lane, axis, start, stop)
            return Affine(constant, v.lane_strides, v.tile_strides, v.least, v.most, per_lane)
        case np.ndarray():
            return v if v.shape[axis] == 1 else v[(slice(None),) * axis + (slice(start, stop),)]
        case Ptr() | Box() | Desc():
            return v.map(lambda part: cut(part, axis, start, stop))
    return v


def pick(v: object, axis: int, index: np.ndarray, lanes: tuple[int, ...]) -> Any:
    """The value for lanes ``index`` of ``axis`` (any order)."""
    match v:
        case Tensor():
            return v if v.shape[axis] == 1 else v.index_select(axis, torch.from_numpy(index))
        case Affine():
            if not varies(v, axis):
                return v
            per_lane = None if v.per_lane is None else pick(v.per_lane, axis, index, lanes)
            stride = v.lane_strides[axis]
            if stride:
                shape = [1] * len(lanes)
                shape[axis] = len(index)
                along = (index * stride).reshape(shape)
                per_lane = along if per_lane is None else per_lane + along
            strides = (*v.lane_strides[:axis], 0, *v.lane_strides[axis + 1 :])
            return Affine(v.constant, strides, v.tile_strides, v.least, v.most, per_lane)
        case np.ndarray():
            return v if v.shape[axis] == 1 else v.take(index, axis)
        case Ptr() | Box() | Desc():
            return v.map(lambda part: pick(part, axis, index, lanes))
    return v


def flatten(v: object, lanes: tuple[int, ...], which: tuple[np.ndarray, ...]) -> Any:
    """The value over one lane axis listing the lanes at coordinates ``which`` (one index array per axis)."""
    n, count = len(lanes), len(which[0])
    match v:
        case Tensor():
            shape = v.shape
            if all(s == 1 for s in shape[:n]):
                return v.reshape((1, *shape[n:]))
            zero = torch.zeros(count, dtype=torch.int64)
            return v[tuple([torch.from_numpy(w) if s > 1 else zero for w, s in zip(which, shape[:n], strict=True)])]
        case Affine():
            per_lane = None
            if any(v.lane_strides) or v.per_lane is not None:
                part = lane_array(Affine(0, v.lane_strides, (), 0, 0, v.per_lane), lanes)
                per_lane = np.ascontiguousarray(flatten(part, lanes, which))
            return Affine(v.constant, (0,), v.tile_strides, v.least, v.most, per_lane)
        case np.ndarray():
            at = tuple([w if s > 1 else 0 for w, s in zip(which, v.shape, strict=True)])
            return np.broadcast_to(v[at], (count,))
        case Ptr() | Box() | Desc():
            return v.map(lambda part: flatten(part, lanes, which))
    return v


def unflatten(v: object, lanes: tuple[int, ...]) -> Any:
    """A value over one lane axis that lists all lanes, row-major, over the lane axes ``lanes``."""
    n = len(lanes)
    match v:
        case Tensor():
            return v.reshape((*((1,) * n if v.shape[0] == 1 else lanes), *v.shape[1:]))
        case Affine():
            per_lane = None
            if v.lane_strides[0] or v.per_lane is not None:
                part = lane_array(Affine(0, v.lane_strides, (), 0, 0, v.per_lane), (prod(lanes),))
                per_lane = unflatten(part, lanes)
            return Affine(v.constant, (0,) * n, v.tile_strides, v.least, v.most, per_lane)
        case np.ndarray():
            return v.reshape((1,) * n if v.shape[0] == 1 else lanes)
        case Ptr() | Box() | Desc():
            return v.map(lambda part: unflatten(part, lanes))
    return v


def same(a: Any, b: Any) -> bool:
    """Whether two values are known to be equal, without looking at elements."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    match a:
        case Affine():
            equal = (a.constant, a.lane_strides, a.tile_strides) == (b.constant, b.lane_strides, b.tile_strides)
            return equal and a.per_lane is None and b.per_lane is None
        case Ptr():
            return a.root == b.root and a.scattered is b.scattered and same(a.offset, b.offset)
        case int() | float():
            return a == b and repr(a) == repr(b)
    return False


def varies(v: object, axis: int) -> bool:
    """Whether the value may differ along a lane axis."""
    match v:
        case Tensor() | np.ndarray():
            return bool(v.shape[axis] > 1)
        case Affine():
            return bool(v.lane_strides[axis]) or varies(v.per_lane, axis)
        case Ptr():
            return varies(v.offset, axis) or varies(v.scattered, axis)
    return isinstance(v, Box | Desc)


def join(values: list[Any], axis: int, lanes: list[tuple[int, ...]], ty: Ty) -> Any:
    """One value for the lanes of several batches, laid side by side along ``axis``."""
    first = values[0]
    if not varies(first, axis) and all(same(first, v) for v in values[1:]):
        return first
    if first is None or any(v is None for v in values):
        return None
    if ty.elem == "desc":
        return _join_descriptors(values, axis, lanes)
    if ty.is_ptr:
        return _join_pointers(values, axis, lanes, ty)
    n = len(lanes[0])
    if ty.is_int and ty.elem != "i1":
        if not any(type(v) is Tensor for v in values):
            strides = {v.tile_strides if type(v) is Affine else (0,) * len(ty.shape) for v in values}
            if len(strides) == 1:
                return _join_affine(values, axis, lanes, strides.pop())
        values = [dense_int(v, ln, ty.shape, ty.dtype) for v, ln in zip(values, lanes, strict=True)]
    elif ty.elem == "i1":
        values = [dense_mask(v, ln, ty.shape) for v, ln in zip(values, lanes, strict=True)]
    return _join_tensors(values, axis, lanes, n + len(ty.shape), ty.dtype)


def _join_tensors(values: list[Any], axis: int, lanes: list[tuple[int, ...]], ndim: int, dtype: torch.dtype) -> Tensor:
    parts = []
    for v in values:
        if type(v) is not Tensor:
            v = torch.full((1,) * ndim, v, dtype=torch.float32 if dtype.is_floating_point else dtype).to(dtype)
        parts.append(v)
    sizes = [max(p.shape[d] for p in parts) for d in range(ndim)]
    out = []
    for p, ln in zip(parts, lanes, strict=True):
        sizes[axis] = ln[axis]
        out.append(p.expand(sizes))
    if dtype in FLOAT8:
        return torch.cat([p.contiguous().view(torch.uint8) for p in out], dim=axis).view(dtype)
    return torch.cat(out, dim=axis)


def _join_affine(
    values: list[Any], axis: int, lanes: list[tuple[int, ...]], tile_strides: tuple[int, ...]
) -> int | Affine:
    arrays = [lane_array(v, ln) for v, ln in zip(values, lanes, strict=True)]
    sizes = [max(a.shape[d] for a in arrays) for d in range(arrays[0].ndim)]
    parts = []
    for a, ln in zip(arrays, lanes, strict=True):
        sizes[axis] = ln[axis]
        parts.append(np.broadcast_to(a, sizes))
    joined = from_lane_array(np.concatenate(parts, axis=axis))
    if any(tile_strides):
        least, most = min(v.least for v in values), max(v.most for v in values)
        if type(joined) is not Affine:
            return Affine(joined, (0,) * len(sizes), tile_strides, least, most)
        joined.least, joined.most = least, most
    return joined.on_tile(tile_strides) if type(joined) is Affine else joined


def _join_pointers(values: list[Any], axis: int, lanes: list[tuple[int, ...]], ty: Ty) -> Ptr:
    """Pointers of one root (see ``batch._common_root``)."""
    root = values[0].root
    off = join([v.offset for v in values], axis, lanes, Ty("i64", ty.shape))
    dens = [v.scattered for v in values]
    if all(d is None for d in dens):
        return Ptr(root, 0, off) if type(off) is Tensor else Ptr(root, off)
    zero = torch.zeros((1,) * (len(lanes[0]) + len(ty.shape)), dtype=torch.int64)
    den = _join_tensors([zero if d is None else d for d in dens], axis, lanes, zero.dim(), torch.int64)
    return Ptr(root, 0, off + den) if type(off) is Tensor else Ptr(root, off, den)


def _join_descriptors(values: list[Any], axis: int, lanes: list[tuple[int, ...]]) -> Desc:
    first = values[0]
    scalar = Ty("i64")
    parts = lambda name, i: [getattr(v, name)[i] for v in values]  # noqa: E731
    return Desc(
        _join_pointers([v.base for v in values], axis, lanes, Ty("ptr")),
        [join(parts("shape", i), axis, lanes, scalar) for i in range(len(first.shape))],
        [join(parts("strides", i), axis, lanes, scalar) for i in range(len(first.strides))],
        first.block,
        first.elem,
        first.padding,
        first.tf32,
    )
