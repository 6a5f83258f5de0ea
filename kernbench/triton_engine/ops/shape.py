"""Program ids, ranges, and everything that rearranges tiles."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor

from kernbench.triton_engine.affine import aff_add, aff_scale
from kernbench.triton_engine.lift.program import OpInfo
from kernbench.triton_engine.lift.types import Ty
from kernbench.triton_engine.values import Aff, Box, Ptr, Value, dense_int, dense_mask

from .registry import op

_AXES = {"x": 0, "y": 1, "z": 2}


@op("tt.get_program_id")
def _program_id(info: OpInfo) -> Callable[..., Value]:
    axis = _AXES[info.words[0]]
    return lambda b: b.program_id(axis)


@op("tt.get_num_programs")
def _num_programs(info: OpInfo) -> Callable[..., Value]:
    axis = _AXES[info.words[0]]
    return lambda b: b.x.grid[axis]


@op("tt.make_range")
def _make_range(info: OpInfo) -> Callable[..., Value]:
    start, end = info.attrs["start"], info.attrs["end"]
    if end - start == 1:
        return lambda b: start
    return lambda b: Aff(start, (0,) * len(b.lanes), (1,), start, end - 1)


def spread(v: Any, rank: int, n_lanes: int) -> Any:
    """A scalar (per-lane) value as a tile of ``rank`` dimensions that does not vary inside the tile."""
    kind = type(v)
    if kind is Tensor:
        return v.reshape(v.shape + (1,) * rank)
    if kind is Aff:
        return Aff(v.c, v.ls, (0,) * rank, v.lo, v.hi, v.arr)
    if kind is Ptr:
        return Ptr(v.root, spread(v.off, rank, n_lanes), None if v.den is None else spread(v.den, rank, n_lanes))
    return v


@op("tt.splat", alias=True)
def _splat(info: OpInfo) -> Callable[..., Value]:
    rank = len(info.ty.shape)
    return lambda b, x: spread(x, rank, len(b.lanes))


def take_first(v: Any, tile: tuple[int, ...], n_lanes: int) -> Any:
    """The only element of a one-element tile, as a scalar."""
    kind = type(v)
    if kind is Tensor:
        return v.reshape(v.shape[:n_lanes])
    if kind is Aff:
        return Aff(v.c, v.ls, (), v.lo, v.hi, v.arr)
    if kind is Ptr:
        return Ptr(
            v.root, take_first(v.off, tile, n_lanes), None if v.den is None else take_first(v.den, tile, n_lanes)
        )
    return v


@op("tt.unsplat", alias=True)
def _unsplat(info: OpInfo) -> Callable[..., Value]:
    tile = info.operand_types[0].shape

    def run(b: Any, x: Any) -> Value:
        if type(x) is Box:
            x = dense_mask(x, b.lanes, tile)
        return take_first(x, tile, len(b.lanes))

    return run


def expand_dims(v: Any, axis: int, n_lanes: int) -> Any:
    kind = type(v)
    if kind is Tensor:
        return v.unsqueeze(n_lanes + axis)
    if kind is Aff:
        return Aff(v.c, v.ls, (*v.ts[:axis], 0, *v.ts[axis:]), v.lo, v.hi, v.arr)
    if kind is Box:
        return Box((*v.bounds[:axis], None, *v.bounds[axis:]))
    if kind is Ptr:
        den = None if v.den is None else v.den.unsqueeze(n_lanes + axis)
        return Ptr(v.root, expand_dims(v.off, axis, n_lanes), den)
    return v


@op("tt.expand_dims", alias=True)
def _expand_dims(info: OpInfo) -> Callable[..., Value]:
    axis = info.attrs["axis"]
    return lambda b, x: expand_dims(x, axis, len(b.lanes))


@op("tt.broadcast", alias=True)
def _broadcast(info: OpInfo) -> Callable[..., Value]:
    """Values keep size 1 where they do not vary; a mask range over a size-1 dimension decides the whole dimension."""
    source, target = info.operand_types[0].shape, info.ty.shape
    grown = [j for j, (s, t) in enumerate(zip(source, target, strict=True)) if s != t]

    def run(b: Any, x: Any) -> Value:
        if type(x) is Box and any(x.bounds[j] is not None for j in grown):
            return dense_mask(x, b.lanes, source)
        return x

    return run


def materialise(v: Any, b: Any, ty: Ty) -> Tensor:
    """A value as a tensor with every *tile* dimension at full size (lane dimensions may stay 1)."""
    lanes, tile = b.lanes, ty.shape
    n = len(lanes)
    if ty.elem == "i1":
        v = dense_mask(v, lanes, tile)
    elif ty.is_int:
        v = dense_int(v, lanes, tile, ty.dtype)
    elif ty.is_ptr:
        v = b.x.addresses(b, v, tile)
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


@op("tt.reshape", alias=True)
def _reshape(info: OpInfo) -> Callable[..., Value]:
    source, target = info.operand_types[0], info.ty
    old, new = source.shape, target.shape
    squeezed = [n for n in old if n != 1] == [n for n in new if n != 1]

    def run(b: Any, x: Any) -> Value:
        kind = type(x)
        n = len(b.lanes)
        if kind is Aff:
            ts = _reshape_strides(x.ts, old, new)
            if ts is not None:
                return Aff(x.c, x.ls, ts, x.lo, x.hi, x.arr)
        elif kind is Ptr and x.den is None:
            if type(x.off) is not Aff:
                return x
            ts = _reshape_strides(x.off.ts, old, new)
            if ts is not None:
                off = x.off
                return Ptr(x.root, Aff(off.c, off.ls, ts, off.lo, off.hi, off.arr))
        elif kind is Tensor and squeezed:
            sizes = [s for s, t in zip(x.shape[n:], old, strict=True) if t != 1]
            it = iter(sizes)
            return x.reshape(x.shape[:n] + tuple(1 if t == 1 else next(it) for t in new))
        elif kind is not Tensor and kind is not Box and kind is not Ptr:
            return x
        full = materialise(x, b, source)
        out = full.reshape(full.shape[:n] + new)
        if kind is Ptr:
            return Ptr(None, 0, out)
        return out

    return run


@op("tt.trans", alias=True)
def _trans(info: OpInfo) -> Callable[..., Value]:
    order = info.attrs["order"]

    def run(b: Any, x: Any) -> Value:
        return transpose(x, order, len(b.lanes))

    return run


def transpose(x: Any, order: list[int], n: int) -> Any:
    kind = type(x)
    if kind is Tensor:
        return x.permute(*range(n), *(n + o for o in order))
    if kind is Aff:
        return Aff(x.c, x.ls, tuple(x.ts[o] for o in order), x.lo, x.hi, x.arr)
    if kind is Box:
        return Box(tuple(x.bounds[o] for o in order))
    if kind is Ptr:
        return Ptr(x.root, transpose(x.off, order, n), None if x.den is None else transpose(x.den, order, n))
    return x


@op("tt.join", alias=True)
def _join(info: OpInfo) -> Callable[..., Value]:
    source = info.operand_types[0]

    def run(b: Any, x: Any, y: Any) -> Value:
        x, y = torch.broadcast_tensors(materialise(x, b, source), materialise(y, b, source))
        return torch.stack((x, y), dim=-1)

    return run


@op("tt.split", alias=True)
def _split(info: OpInfo) -> Callable[..., Any]:
    source = info.operand_types[0]

    def run(b: Any, x: Any) -> tuple[Value, Value]:
        full = materialise(x, b, source)
        return full[..., 0], full[..., 1]

    return run


@op("tt.cat")
def _cat(info: OpInfo) -> Callable[..., Value]:
    source = info.operand_types[0]

    def run(b: Any, x: Any, y: Any) -> Value:
        n = len(b.lanes)
        x, y = materialise(x, b, source), materialise(y, b, source)
        lanes = torch.broadcast_shapes(x.shape[:n], y.shape[:n])
        return torch.cat((x.expand(lanes + x.shape[n:]), y.expand(lanes + y.shape[n:])), dim=n)

    return run


@op("tt.gather")
def _gather(info: OpInfo) -> Callable[..., Value]:
    source, index_ty = info.operand_types[0], info.operand_types[1]
    axis = info.attrs["axis"]

    def run(b: Any, x: Any, index: Any) -> Value:
        n = len(b.lanes)
        x = materialise(x, b, source)
        index = materialise(index, b, index_ty).to(torch.int64)
        lanes = torch.broadcast_shapes(x.shape[:n], index.shape[:n])
        x = x.expand(lanes + x.shape[n:])
        index = index.expand(lanes + index.shape[n:])
        return torch.gather(x, n + axis, index.clamp(0, source.shape[axis] - 1))

    return run


@op("tt.addptr")
def _addptr(info: OpInfo) -> Callable[..., Value]:
    pointer, _index_ty = info.operand_types
    item = 8 if pointer.pointee == "ptr" else Ty(pointer.pointee).itemsize
    tile = info.ty.shape

    def run(b: Any, p: Ptr, index: Any) -> Value:
        if type(index) is Tensor:
            if not tile:
                from kernbench.triton_engine.values import from_lane_array

                index = from_lane_array(index.to(torch.int64).numpy())
            else:
                step = index.to(torch.int64) * item if item != 1 else index.to(torch.int64)
                return Ptr(p.root, p.off, step if p.den is None else p.den + step)
        return Ptr(p.root, aff_add(p.off, aff_scale(index, item)), p.den)

    return run


@op("tt.histogram")
def _histogram(info: OpInfo) -> Callable[..., Value]:
    source = info.operand_types[0]
    bins = info.ty.shape[0]
    dtype = info.ty.dtype

    def run(b: Any, x: Any, mask: Any = True) -> Value:
        n = len(b.lanes)
        values = materialise(x, b, source).to(torch.int64)
        keep = (values >= 0) & (values < bins)
        if mask is not True:
            keep = keep & materialise(mask, b, Ty("i1", source.shape))
        values, keep = torch.broadcast_tensors(values, keep)
        lanes = values.shape[:n]
        flat = values.reshape(prod(lanes), -1)
        out = torch.zeros(flat.shape[0], bins, dtype=torch.int64)
        out.scatter_add_(1, flat.clamp(0, bins - 1), keep.reshape(flat.shape).to(torch.int64))
        return out.to(dtype).reshape((*lanes, bins))

    return run
