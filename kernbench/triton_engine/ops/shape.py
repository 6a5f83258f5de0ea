"""Program ids, ranges, and everything that rearranges tiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from kernbench.triton_engine.affine import aff_add, aff_scale
from kernbench.triton_engine.batch import Batch
from kernbench.triton_engine.frontend.program import OpInfo
from kernbench.triton_engine.frontend.types import Ty
from kernbench.triton_engine.values import Affine, Box, Ptr, Value, dense_int, dense_mask, from_lane_array

from .registry import op

_AXES = {"x": 0, "y": 1, "z": 2}


@op("tt.get_program_id", passed=True)
def _program_id(info: OpInfo) -> Callable[..., Value]:
    axis = _AXES[info.words[0]]
    return lambda batch: batch.program_id(axis)


@op("tt.get_num_programs", passed=True)
def _num_programs(info: OpInfo) -> Callable[..., Value]:
    axis = _AXES[info.words[0]]
    return lambda batch: batch.execution.grid[axis]


@op("tt.make_range", symbolic=True, passed=True)
def _make_range(info: OpInfo) -> Callable[..., Value]:
    start, end = info.attrs["start"], info.attrs["end"]
    if end - start == 1:
        return lambda batch: start
    return lambda batch: Affine(start, (0,) * len(batch.lanes), (1,), start, end - 1)


def spread(v: Value, rank: int) -> Any:
    """A scalar (per-lane) value as a tile of ``rank`` dimensions that does not vary inside the tile."""
    match v:
        case Tensor():
            return v.reshape(v.shape + (1,) * rank)
        case Affine():
            return v.on_tile((0,) * rank)
        case Ptr():
            return v.map(lambda part: spread(part, rank))
    return v


@op(
    "tt.splat",
    alias=True,
    repeats=True,
    symbolic=True,
    addressing=True,
    frontier=True,
    reshapes=lambda info, tile: (1,) * len(info.ty.shape),
)
def _splat(info: OpInfo) -> Callable[..., Value]:
    rank = len(info.ty.shape)
    return lambda batch, x: spread(x, rank)


def take_first(v: Value, n_lanes: int) -> Any:
    """The only element of a one-element tile, as a scalar."""
    match v:
        case Tensor():
            return v.reshape(v.shape[:n_lanes])
        case Affine():
            return v.on_tile(())
        case Ptr():
            return v.map(lambda part: take_first(part, n_lanes))
    return v


def _element(types: list[Ty]) -> Ty:
    return replace(types[0], shape=())


@op("tt.unsplat", alias=True, symbolic=True, result_type=_element)
def _unsplat(info: OpInfo) -> Callable[..., Value]:
    tile, ty = info.operand_types[0].shape, info.ty

    def run(batch: Batch, x: Value) -> Value:
        if type(x) is Box:
            x = dense_mask(x, batch.lanes, tile)
        first = take_first(x, len(batch.lanes))
        if type(first) is Tensor and ty.is_int and ty.elem != "i1":
            return from_lane_array(first.to(torch.int64).numpy())
        return first

    return run


def expand_dims(v: Value, axis: int, n_lanes: int) -> Any:
    """The tile with a new dimension of size 1."""
    match v:
        case Tensor():
            return v.unsqueeze(n_lanes + axis)
        case Affine():
            return v.on_tile((*v.tile_strides[:axis], 0, *v.tile_strides[axis:]))
        case Box():
            return Box((*v.bounds[:axis], None, *v.bounds[axis:]))
        case Ptr():
            return v.map(lambda part: expand_dims(part, axis, n_lanes))
    return v


@op(
    "tt.expand_dims",
    alias=True,
    symbolic=True,
    addressing=True,
    reshapes=lambda info, tile: (*tile[: info.attrs["axis"]], 1, *tile[info.attrs["axis"] :]),
)
def _expand_dims(info: OpInfo) -> Callable[..., Value]:
    axis = info.attrs["axis"]
    return lambda batch, x: expand_dims(x, axis, len(batch.lanes))


@op("tt.broadcast", alias=True, symbolic=True, addressing=True, reshapes=lambda info, tile: tile)
def _broadcast(info: OpInfo) -> Callable[..., Value]:
    """Values keep size 1 where they do not vary; a mask range over a size-1 dimension decides the whole dimension."""
    source, target = info.operand_types[0].shape, info.ty.shape
    grown = [j for j, (s, t) in enumerate(zip(source, target, strict=True)) if s != t]

    def run(batch: Batch, x: Value) -> Value:
        if type(x) is Box and any(x.bounds[j] is not None for j in grown):
            return dense_mask(x, batch.lanes, source)
        return x

    return run


def materialise(v: Any, batch: Batch, ty: Ty) -> Tensor:
    """A value as a tensor with every *tile* dimension at full size (lane dimensions may stay 1)."""
    lanes, tile = batch.lanes, ty.shape
    n = len(lanes)
    if ty.elem == "i1":
        v = dense_mask(v, lanes, tile)
    elif ty.is_int:
        v = dense_int(v, lanes, tile, ty.dtype)
    elif ty.is_ptr:
        v = batch.execution.addresses(batch, v, tile)
    if type(v) is not Tensor:
        # a Python number: one element, expanded
        filled = torch.tensor(v, dtype=torch.float32 if ty.is_float else ty.dtype).to(ty.dtype)
        return filled.expand((1,) * n + tile)
    if v.shape[n:] != tile:
        v = v.expand(v.shape[:n] + tile)
    return v


def _reshape_strides(ts: tuple[int, ...], old: tuple[int, ...], new: tuple[int, ...]) -> tuple[int, ...] | None:
    """Strides of an affine tile after a row-major reshape, or None if it is not affine any more."""
    out: list[int] = []
    i = len(old) - 1
    pending = [(n, s) for n, s in zip(old, ts, strict=True) if n != 1]
    i = len(pending) - 1
    if i >= 0:
        size, stride = pending[i]
    else:
        size, stride = 1, 0
    for n in reversed(new):
        if n == 1:
            out.append(0)
            continue
        while size == 1 and i > 0:
            i -= 1
            size, stride = pending[i]
        if size % n == 0:
            out.append(stride)
            size //= n
            stride *= n
            continue
        # merge with the next dimension out
        need = n
        first = stride
        while need > size:
            if need % size or i == 0:
                return None
            need //= size
            nxt_size, nxt_stride = pending[i - 1]
            if nxt_stride != stride * size:
                return None
            i -= 1
            size, stride = nxt_size, nxt_stride
        if size % need:
            return None
        out.append(first)
        size //= need
        stride *= need
    return tuple(reversed(out))


@op("tt.reshape", exchanges=True, alias=True, recasts=True, symbolic=True, tells_addresses=True)
def _reshape(info: OpInfo) -> Callable[..., Value]:
    source, target = info.operand_types[0], info.ty
    old, new = source.shape, target.shape
    squeezed = [n for n in old if n != 1] == [n for n in new if n != 1]

    def affine(v: Any) -> Affine | None:
        strides = _reshape_strides(v.tile_strides, old, new)
        return None if strides is None else v.on_tile(strides)

    def run(batch: Batch, x: Value) -> Value:
        n = len(batch.lanes)
        match x:
            case Affine():
                if (reshaped := affine(x)) is not None:
                    return reshaped
            case Ptr(scattered=None):
                if type(x.offset) is not Affine:
                    return x
                if (offset := affine(x.offset)) is not None:
                    return Ptr(x.root, offset)
            case Tensor() if squeezed:
                sizes = iter([size for size, full in zip(x.shape[n:], old, strict=True) if full != 1])
                return x.reshape(x.shape[:n] + tuple([1 if full == 1 else next(sizes) for full in new]))
            case bool() | int() | float():
                return x
        full = materialise(x, batch, source)
        out = full.reshape(full.shape[:n] + new)
        return Ptr(None, 0, out) if type(x) is Ptr else out

    return run


@op("tt.trans", exchanges=True, alias=True, recasts=True, turns=True, symbolic=True)
def _trans(info: OpInfo) -> Callable[..., Value]:
    order = info.attrs["order"]

    return lambda batch, x: transpose(x, order, len(batch.lanes))


def transpose(v: Value, order: list[int], n_lanes: int) -> Any:
    """The tile with its dimensions in another order."""
    match v:
        case Tensor():
            return v.permute(*range(n_lanes), *(n_lanes + axis for axis in order))
        case Affine():
            return v.on_tile(tuple([v.tile_strides[axis] for axis in order]))
        case Box():
            return Box(tuple([v.bounds[axis] for axis in order]))
        case Ptr():
            return v.map(lambda part: transpose(part, order, n_lanes))
    return v


@op("tt.join", exchanges=True, alias=True)
def _join(info: OpInfo) -> Callable[..., Value]:
    source = info.operand_types[0]

    def run(batch: Batch, x: Any, y: Any) -> Value:
        x, y = torch.broadcast_tensors(materialise(x, batch, source), materialise(y, batch, source))
        return torch.stack((x, y), dim=-1)

    return run


@op("tt.split", exchanges=True, alias=True)
def _split(info: OpInfo) -> Callable[..., object]:
    source = info.operand_types[0]

    def run(batch: Batch, x: Value) -> tuple[Value, Value]:
        full = materialise(x, batch, source)
        return full[..., 0], full[..., 1]

    return run


@op("tt.cat", exchanges=True)
def _cat(info: OpInfo) -> Callable[..., Value]:
    source = info.operand_types[0]

    def run(batch: Batch, x: Value, y: Value) -> Value:
        n = len(batch.lanes)
        x, y = materialise(x, batch, source), materialise(y, batch, source)
        lanes = torch.broadcast_shapes(x.shape[:n], y.shape[:n])
        return torch.cat((x.expand(lanes + x.shape[n:]), y.expand(lanes + y.shape[n:])), dim=n)

    return run


@op("tt.gather", exchanges=True)
def _gather(info: OpInfo) -> Callable[..., Value]:
    source, index_ty = info.operand_types[0], info.operand_types[1]
    axis = info.attrs["axis"]

    def run(batch: Batch, x: Value, index: object) -> Value:
        n = len(batch.lanes)
        x = materialise(x, batch, source)
        index = materialise(index, batch, index_ty).to(torch.int64)
        lanes = torch.broadcast_shapes(x.shape[:n], index.shape[:n])
        x = x.expand(lanes + x.shape[n:])
        index = index.expand(lanes + index.shape[n:])
        return torch.gather(x, n + axis, index.clamp(0, source.shape[axis] - 1))

    return run


@op("tt.addptr", symbolic=True, addressing=True, frontier=True, passed=True)
def _addptr(info: OpInfo) -> Callable[..., Value]:
    pointer, _index_ty = info.operand_types
    item = 8 if pointer.pointee == "ptr" else Ty(pointer.pointee).itemsize
    tile = info.ty.shape

    def run(batch: Batch, p: Ptr, index: Any) -> Value:
        if type(index) is Tensor:
            if not tile:
                index = from_lane_array(index.to(torch.int64).numpy())
            else:
                step = index.to(torch.int64) * item if item != 1 else index.to(torch.int64)
                return Ptr(p.root, p.offset, step if p.scattered is None else p.scattered + step)
        return Ptr(p.root, aff_add(p.offset, aff_scale(index, item)), p.scattered)

    return run


@op("tt.histogram", exchanges=True)
def _histogram(info: OpInfo) -> Callable[..., Value]:
    source = info.operand_types[0]
    bins = info.ty.shape[0]
    dtype = info.ty.dtype

    def run(batch: Batch, x: Value, mask: object = True) -> Value:
        n = len(batch.lanes)
        values = materialise(x, batch, source).to(torch.int64)
        keep = (values >= 0) & (values < bins)
        if mask is not True:
            keep = keep & materialise(mask, batch, Ty("i1", source.shape))
        values, keep = torch.broadcast_tensors(values, keep)
        lanes = values.shape[:n]
        flat = values.reshape(prod(lanes), -1)
        out = torch.zeros(flat.shape[0], bins, dtype=torch.int64)
        out.scatter_add_(1, flat.clamp(0, bins - 1), keep.reshape(flat.shape).to(torch.int64))
        return out.to(dtype).reshape((*lanes, bins))

    return run
