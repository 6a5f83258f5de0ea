"""Tensor descriptors: a base pointer with shape and strides; out-of-bounds elements read as padding and are not
written. Built on the device (``tl.make_tensor_descriptor``) or on the host (``TensorDescriptor`` arguments)."""

from __future__ import annotations

import math
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernbench.triton_engine import access
from kernbench.triton_engine.affine import aff_add, aff_scale
from kernbench.triton_engine.batch import Batch
from kernbench.triton_engine.frontend.program import OpInfo
from kernbench.triton_engine.frontend.types import Ty
from kernbench.triton_engine.rounding import to_tf32
from kernbench.triton_engine.values import (
    Affine,
    Box,
    Desc,
    Late,
    Ptr,
    Value,
    dense_int,
    from_lane_array,
    lane_array,
    wrap,
)

from .atomics import count_updates, flat_elements, raw_operand, update
from .masks import mask_and
from .registry import op
from .shape import materialise, spread


@op("tt.make_tensor_descriptor", pure=False, addressing=True, result_type=lambda types: types[-1])
def _make(info: OpInfo) -> Callable[..., Value]:
    ty = info.ty
    rank = info.groups[0] if info.groups else (len(info.operand_types) - 1) // 2
    padding = math.nan if "nan" in str(info.attrs.get("padding", "")).lower() or "padding = 2" in info.text else 0.0
    block = ty.shape

    def run(batch: Batch, base: Ptr, *rest: object) -> Value:
        shape, strides = list(rest[:rank]), list(rest[rank : 2 * rank])
        return Desc(base, shape, strides, block, ty.pointee, padding)

    return run


def _scale(x: Any, y: Any, lanes: tuple[int, ...]) -> Any:
    """Product of two per-lane integers."""
    if type(x) is not Affine:
        return aff_scale(y, x)
    if type(y) is not Affine:
        return aff_scale(x, y)
    return from_lane_array(lane_array(x, lanes) * lane_array(y, lanes))


def _as_lane_int(v: Value) -> Any:
    return from_lane_array(v.to(torch.int64).numpy()) if type(v) is Tensor else v


def locate(batch: Batch, d: Desc, index: list[Any], tile: tuple[int, ...], item: int) -> tuple[Ptr, Any]:
    """Pointer tile and bounds mask of the block at ``index``. ``tile`` is the block without its leading ones."""
    lanes: tuple[int, ...] = batch.lanes
    rank = len(tile)
    lead = len(d.block) - rank
    if not lead and all(type(v) is int for v in d.shape) and all(type(v) is int for v in d.strides):
        return _locate_fixed(batch, d, index, tile, item)
    off: Any = spread(d.base.offset, rank)
    bounds: list[Any] = [None] * rank
    outside: Any = True
    scattered: Tensor | None = None  # the part of the offsets along dimensions whose stride differs between programs
    for j, (start, size, stride) in enumerate(zip(index, d.shape, d.strides, strict=True)):
        start, size, stride = _as_lane_int(start), _as_lane_int(size), _as_lane_int(stride)
        off = aff_add(off, aff_scale(spread(_scale(start, stride, lanes), rank), item))
        lo, hi = aff_scale(start, -1), aff_add(size, aff_scale(start, -1))
        if j < lead:
            inside = _positive(lo, lanes, strict=False) & _positive(hi, lanes, strict=True)
            if not inside.all():
                flags = torch.from_numpy(np.ascontiguousarray(inside)).reshape(inside.shape + (1,) * rank)
                outside = mask_and(batch, outside, bool(inside.reshape(-1)[0]) if inside.size == 1 else flags, tile)
            continue
        k = j - lead
        if type(stride) is Affine:
            part = _along(stride, item, lanes, tile[k], k, rank)
            scattered = part if scattered is None else scattered + part
            step = 0
        else:
            step = int(stride)
        ts = tuple(step * item if i == k else 0 for i in range(rank))
        if any(ts):
            span = step * item * (tile[k] - 1)
            off = aff_add(off, Affine(0, (0,) * len(lanes), ts, min(0, span), max(0, span)))
        low, high = _bound(lo, lanes), _bound(hi, lanes)
        if _least(high) < tile[k] or _most(low) > 0:
            bounds[k] = (low, high)
    mask: Any = True if all(p is None for p in bounds) else Box(tuple(bounds))
    off = _wrapped(off)
    if scattered is not None and type(off) is not Affine:
        off = Affine(off, (0,) * len(lanes), (0,) * rank, off, off)
    return Ptr(d.base.root, off, scattered), mask_and(batch, mask, outside, tile)


def _locate_fixed(batch: Batch, d: Desc, index: list[Any], tile: tuple[int, ...], item: int) -> tuple[Ptr, Any]:
    """:func:`locate` for a shape and strides that are the same everywhere: the case of almost every kernel."""
    lanes: tuple[int, ...] = batch.lanes
    base: Any = d.base.offset
    none = (0,) * len(lanes)
    c, ls, arr, low, high = _lane_parts(base, none)
    ts = []
    bounds: list[Any] = [None] * len(tile)
    for j, (start, size, stride, n) in enumerate(zip(index, d.shape, d.strides, tile, strict=True)):
        start = _as_lane_int(start)
        step: int = stride * item
        ts.append(step if n > 1 else 0)
        c1, ls1, arr1, lo1, hi1 = _lane_parts(start, none)
        if lo1 < 0 or hi1 + n > size:
            at = lane_array(start, lanes) if type(start) is Affine else start
            if _least(at) < 0 or _most(at) + n > size:
                bounds[j] = (-at, size - at)
        c += c1 * step
        if ls1 is not none:
            ls = tuple([p + q * step for p, q in zip(ls, ls1, strict=True)])
        if arr1 is not None:
            more = batch.execution.scaled(arr1, step)
            arr = more if arr is None else arr + more
        near, far = (lo1, hi1 + n - 1) if step > 0 else (hi1 + n - 1, lo1)
        low, high = low + near * step, high + far * step
    mask = True if all(p is None for p in bounds) else Box(tuple(bounds))
    return Ptr(d.base.root, _wrapped(Affine(c, ls, tuple(ts), low, high, arr)), None), mask


def _wrapped(off: int | Affine) -> int | Affine:
    """Addresses are 64 bits: descriptors of ragged batches (``triton.tools.ragged_tma``) count on products that wrap."""
    c = off.constant if type(off) is Affine else off
    excess = c - wrap(c, 64)
    if not excess:
        return off
    if type(off) is not Affine:
        return off - excess
    return Affine(
        off.constant - excess, off.lane_strides, off.tile_strides, off.least - excess, off.most - excess, off.per_lane
    )


def _lane_parts(v: Any, none: tuple[int, ...]) -> tuple[int, tuple[int, ...], np.ndarray | None, int, int]:
    """Constant, lane strides, irregular part, least and greatest of a per-lane integer."""
    if type(v) is Affine:
        return v.constant, v.lane_strides, v.per_lane, v.least, v.most
    return v, none, None, v, v


def _positive(v: Any, lanes: tuple[int, ...], strict: bool) -> np.ndarray:
    """For a leading dimension of block size one: ``0 < v`` or, not strict, ``v <= 0`` (``v`` is minus the index)."""
    arr = lane_array(v, lanes)
    return arr > 0 if strict else arr <= 0


def _along(stride: Affine, item: int, lanes: tuple[int, ...], extent: int, dim: int, rank: int) -> Tensor:
    """Byte offsets along tile dimension ``dim`` where every program has a stride of its own."""
    shape = [1] * rank
    shape[dim] = extent
    per_lane = torch.from_numpy(np.ascontiguousarray(lane_array(stride, lanes))) * item
    return per_lane.reshape(tuple(per_lane.shape) + (1,) * rank) * torch.arange(extent).reshape(shape)


def _bound(v: Value, lanes: tuple[int, ...]) -> Any:
    return lane_array(v, lanes) if type(v) is Affine else v


def _least(v: Any) -> int:
    return int(v.min()) if isinstance(v, np.ndarray) else v


def _most(v: Any) -> int:
    return int(v.max()) if isinstance(v, np.ndarray) else v


def _fill(d: Desc, is_int: bool) -> Any:
    return 0 if is_int else d.padding


@op("tt.descriptor_load", pure=False, exchanges=True, reads=True, addressing=True, frontier=True)
def _load(info: OpInfo) -> Callable[..., Value]:
    ty = info.ty
    tile, dtype = ty.shape, ty.dtype
    is_int = ty.is_int

    def run(batch: Batch, d: Desc, *index: object) -> Value:
        inner, reshaped = _inner(tile, d)
        p, mask = locate(batch, d, list(index), inner, dtype.itemsize)
        fill = _fill(d, is_int)
        if batch.execution.wave is not None:
            batch.execution.contiguous[info.index] = 1
            if not is_int:
                batch.execution.distinct += access.wave_bytes(batch, p, inner, dtype.itemsize)
                return fill
        value = access.load(batch, info, p, inner, dtype, mask, fill)
        if value is None:
            return fill
        if d.tf32:
            value = to_tf32(value)
        return (
            value.reshape(value.shape[: len(batch.lanes)] + _keep_ones(value.shape[len(batch.lanes) :], inner, tile))
            if reshaped
            else value
        )

    return run


def _inner(tile: tuple[int, ...], d: Desc) -> tuple[tuple[int, ...], bool]:
    """The tile to access: the descriptor's block when it has the same number of elements in another shape."""
    block = tuple(d.block)
    if len(block) >= len(tile) and block[len(block) - len(tile) :] == tile:
        return tile, False
    return block, True


def _keep_ones(have: tuple[int, ...], inner: tuple[int, ...], tile: tuple[int, ...]) -> tuple[int, ...]:
    return tile if tuple(have) == inner else tuple(1 for _ in tile)


@op("tt.descriptor_store", pure=False, exchanges=True, writes=True, stores=-1, addressing=True, frontier=True)
def _store(info: OpInfo) -> Callable[..., Value]:
    value_ty = info.operand_types[-1]
    tile, dtype = value_ty.shape, value_ty.dtype

    def run(batch: Batch, d: Desc, *rest: object) -> Value:
        *index, value = rest
        inner, reshaped = _inner(tile, d)
        p, mask = locate(batch, d, list(index), inner, dtype.itemsize)
        if batch.execution.dry:
            access.visit(batch, info, p, inner, dtype, mask)
            return None
        if type(value) is Affine:
            value = dense_int(value, batch.lanes, tile, dtype)
        if reshaped and type(value) is Late:
            value = value.value()
        if reshaped and type(value) is Tensor:
            full = materialise(value, batch, value_ty)
            value = full.reshape(full.shape[: len(batch.lanes)] + inner)
        access.store(batch, info, p, inner, dtype, value, mask)
        batch.wrote()
        return None

    return run


@op("tt.descriptor_reduce", pure=False, exchanges=True, reads=True, writes=True, addressing=True)
def _reduce(info: OpInfo) -> Callable[..., Value]:
    value_ty = info.operand_types[-1]
    tile, dtype = value_ty.shape, value_ty.dtype
    kind = info.words[0].lower()
    if kind == "add" and value_ty.is_float:
        kind = "fadd"
    raw = torch.int16 if dtype is torch.bfloat16 else dtype

    def run(batch: Batch, d: Desc, *rest: Any) -> Value:
        *index, value = rest
        inner, _ = _inner(tile, d)
        p, mask = locate(batch, d, list(index), inner, dtype.itemsize)
        if batch.execution.dry:
            access.visit(batch, info, p, inner, dtype, mask)
            return None
        values = raw_operand(batch, value, value_ty, raw)
        for allocation, at, keep in flat_elements(batch, info, p, inner, dtype, mask):
            flat = allocation.flat(raw).numpy()
            update(kind, flat, at, values if keep is None else values[keep], False, dtype is torch.bfloat16)
            count_updates(batch, keep, prod(inner))
        batch.wrote()
        return None

    return run


def _rows(
    batch: Batch, d: Desc, rows: object, row_ty: Ty, column: Any, tile: tuple[int, ...], item: int
) -> tuple[Ptr, Any]:
    """Pointer and mask of a gather or scatter of whole rows."""
    nl = len(batch.lanes)
    index = materialise(rows, batch, row_ty).to(torch.int64)
    column = _as_lane_int(column)
    stride0, stride1, size0, size1 = (
        dense_int(_as_lane_int(s), batch.lanes, (), torch.int64) for s in (*d.strides, *d.shape)
    )
    wide = lambda s: s.reshape((*s.shape, 1)) if type(s) is Tensor else s  # noqa: E731
    inside = ((index >= 0) & (index < wide(size0))).unsqueeze(-1)
    cols: Any = dense_int(
        aff_add(spread(column, 1), Affine(0, (0,) * nl, (1,), 0, tile[1] - 1)), batch.lanes, (tile[1],), torch.int64
    )
    fits = (cols >= 0) & (cols < wide(size1))
    mask = inside & fits.unsqueeze(nl)
    den = (index * wide(stride0)).unsqueeze(-1) * item + (cols * wide(stride1)).unsqueeze(nl) * item
    return Ptr(d.base.root, spread(d.base.offset, 2), den), True if bool(mask.all()) else mask


@op("tt.descriptor_gather", pure=False, exchanges=True, reads=True, addressing=True)
def _gather(info: OpInfo) -> Callable[..., Value]:
    ty = info.ty
    row_ty = info.operand_types[1]

    def run(batch: Batch, d: Desc, rows: object, column: object) -> Value:
        p, mask = _rows(batch, d, rows, row_ty, column, ty.shape, ty.itemsize)
        value = access.load(batch, info, p, ty.shape, ty.dtype, mask, _fill(d, ty.is_int))
        if value is None:
            return _fill(d, ty.is_int)
        return to_tf32(value) if d.tf32 else value

    return run


@op("tt.descriptor_scatter", pure=False, exchanges=True, writes=True, addressing=True)
def _scatter(info: OpInfo) -> Callable[..., Value]:
    row_ty = info.operand_types[1]
    value_ty = info.operand_types[-1]

    def run(batch: Batch, d: Desc, rows: object, column: object, value: object) -> Value:
        p, mask = _rows(batch, d, rows, row_ty, column, value_ty.shape, value_ty.itemsize)
        if batch.execution.dry:
            access.visit(batch, info, p, value_ty.shape, value_ty.dtype, mask)
            return None
        access.store(batch, info, p, value_ty.shape, value_ty.dtype, materialise(value, batch, value_ty), mask)
        batch.wrote()
        return None

    return run
