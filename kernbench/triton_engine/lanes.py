"""Cutting, joining and re-arranging values along lane axes: what a split or a merge of a batch does to them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .lift.types import FLOAT8, Ty
from .values import Aff, Box, Desc, Ptr, dense_int, dense_mask, exact_bounds, from_lane_array, lane_array


def cut(v: Any, axis: int, start: int, stop: int) -> Any:
    """The value for lanes ``start:stop`` of ``axis``. Tensors are views."""
    if isinstance(v, Tensor):
        return v if v.shape[axis] == 1 else v.narrow(axis, start, stop - start)
    if isinstance(v, Aff):
        arr = v.arr
        if not v.ls[axis] and (arr is None or arr.shape[axis] == 1):
            return v
        if arr is not None and arr.shape[axis] > 1:
            arr = arr[(slice(None),) * axis + (slice(start, stop),)]
        return Aff(v.c + v.ls[axis] * start, v.ls, v.ts, v.lo, v.hi, arr)
    if isinstance(v, Ptr):
        return Ptr(v.root, cut(v.off, axis, start, stop), None if v.den is None else cut(v.den, axis, start, stop))
    if isinstance(v, Box):
        return Box(tuple(None if p is None else tuple(_cut_bound(e, axis, start, stop) for e in p) for p in v.bounds))
    if isinstance(v, Desc):
        return Desc(
            cut(v.base, axis, start, stop),
            [cut(e, axis, start, stop) for e in v.shape],
            [cut(e, axis, start, stop) for e in v.strides],
            v.block,
            v.elem,
            v.padding,
        )
    return v


def _cut_bound(e: Any, axis: int, start: int, stop: int) -> Any:
    if isinstance(e, np.ndarray) and e.shape[axis] > 1:
        return e[(slice(None),) * axis + (slice(start, stop),)]
    return e


def pick(v: Any, axis: int, index: np.ndarray, lanes: tuple[int, ...]) -> Any:
    """The value for lanes ``index`` of ``axis`` (any order)."""
    if isinstance(v, Tensor):
        return v if v.shape[axis] == 1 else v.index_select(axis, torch.from_numpy(index))
    if isinstance(v, Aff):
        if not v.ls[axis] and (v.arr is None or v.arr.shape[axis] == 1):
            return v
        arr = v.arr
        if arr is not None and arr.shape[axis] > 1:
            arr = arr.take(index, axis)
        if v.ls[axis]:
            shape = [1] * len(lanes)
            shape[axis] = len(index)
            part = (index * v.ls[axis]).reshape(shape)
            arr = part if arr is None else arr + part
        ls = (*v.ls[:axis], 0, *v.ls[axis + 1 :])
        return Aff(v.c, ls, v.ts, v.lo, v.hi, arr)
    if isinstance(v, Ptr):
        den = None if v.den is None else pick(v.den, axis, index, lanes)
        return Ptr(v.root, pick(v.off, axis, index, lanes), den)
    if isinstance(v, Box):
        bounds: list[Any] = []
        for p in v.bounds:
            if p is None:
                bounds.append(None)
            else:
                bounds.append(
                    tuple(e.take(index, axis) if isinstance(e, np.ndarray) and e.shape[axis] > 1 else e for e in p)
                )
        return Box(tuple(bounds))
    if isinstance(v, Desc):
        f = lambda e: pick(e, axis, index, lanes)  # noqa: E731
        return Desc(f(v.base), [f(e) for e in v.shape], [f(e) for e in v.strides], v.block, v.elem, v.padding)
    return v


def flatten(v: Any, lanes: tuple[int, ...], which: tuple[np.ndarray, ...]) -> Any:
    """The value over one lane axis listing the lanes at coordinates ``which`` (one index array per axis)."""
    n = len(lanes)
    count = len(which[0])
    if isinstance(v, Tensor):
        shape = v.shape
        if all(s == 1 for s in shape[:n]):
            return v.reshape((1, *tuple(shape[n:])))
        index = tuple(
            torch.from_numpy(w) if s > 1 else torch.zeros(count, dtype=torch.int64)
            for w, s in zip(which, shape[:n], strict=True)
        )
        return v[index]
    if isinstance(v, Aff):
        if not any(v.ls) and v.arr is None:
            return Aff(v.c, (0,), v.ts, v.lo, v.hi)
        part = lane_array(Aff(0, v.ls, (), 0, 0, v.arr), lanes)
        arr = part[tuple(w if s > 1 else 0 for w, s in zip(which, part.shape, strict=True))]
        return Aff(v.c, (0,), v.ts, v.lo, v.hi, np.ascontiguousarray(np.broadcast_to(arr, (count,))))
    if isinstance(v, Ptr):
        den = None if v.den is None else flatten(v.den, lanes, which)
        return Ptr(v.root, flatten(v.off, lanes, which), den)
    if isinstance(v, Box):
        bounds: list[Any] = []
        for p in v.bounds:
            if p is None:
                bounds.append(None)
                continue
            pair = []
            for e in p:
                if isinstance(e, np.ndarray):
                    e = e[tuple(w if s > 1 else 0 for w, s in zip(which, e.shape, strict=True))]
                    e = np.broadcast_to(e, (count,))
                pair.append(e)
            bounds.append(tuple(pair))
        return Box(tuple(bounds))
    if isinstance(v, Desc):
        f = lambda e: flatten(e, lanes, which)  # noqa: E731
        return Desc(f(v.base), [f(e) for e in v.shape], [f(e) for e in v.strides], v.block, v.elem, v.padding)
    return v


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if type(a) is Aff:
        return a.c == b.c and a.ls == b.ls and a.ts == b.ts and a.arr is None and b.arr is None
    if type(a) is Ptr:
        return a.root == b.root and a.den is b.den and _same(a.off, b.off)
    if type(a) in (int, float, bool):
        return a == b and repr(a) == repr(b)
    return False


def _varies(v: Any, axis: int) -> bool:
    if type(v) is Tensor:
        return v.shape[axis] > 1
    if type(v) is Aff:
        return bool(v.ls[axis]) or (v.arr is not None and v.arr.shape[axis] > 1)
    if type(v) is Ptr:
        return _varies(v.off, axis) or (v.den is not None and v.den.shape[axis] > 1)
    return type(v) in (Box, Desc)


def join(values: list[Any], axis: int, lanes: list[tuple[int, ...]], ty: Ty, x: Any) -> Any:
    """One value for the lanes of several batches, laid side by side along ``axis``."""
    first = values[0]
    if not _varies(first, axis) and all(_same(first, v) for v in values[1:]):
        return first
    if first is None or any(v is None for v in values):
        return None
    if ty.elem == "desc":
        return _join_descriptors(values, axis, lanes, x)
    if ty.is_ptr:
        return _join_pointers(values, axis, lanes, ty, x)
    n = len(lanes[0])
    if ty.is_int and ty.elem != "i1":
        if not any(type(v) is Tensor for v in values):
            strides = {v.ts if type(v) is Aff else (0,) * len(ty.shape) for v in values}
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


def _join_affine(values: list[Any], axis: int, lanes: list[tuple[int, ...]], ts: tuple[int, ...]) -> int | Aff:
    arrays = [lane_array(v, ln) for v, ln in zip(values, lanes, strict=True)]
    n = arrays[0].ndim
    sizes = [max(a.shape[d] for a in arrays) for d in range(n)]
    out = []
    for a, ln in zip(arrays, lanes, strict=True):
        sizes[axis] = ln[axis]
        out.append(np.broadcast_to(a, sizes))
    arr = np.concatenate(out, axis=axis)
    joined = from_lane_array(arr)
    if not any(ts):
        if type(joined) is Aff:
            return Aff(joined.c, joined.ls, ts, joined.lo, joined.hi, joined.arr)
        return joined
    lo = min(v.lo for v in values)
    hi = max(v.hi for v in values)
    if type(joined) is Aff:
        return Aff(joined.c, joined.ls, ts, lo, hi, joined.arr)
    return Aff(joined, (0,) * n, ts, lo, hi)


def _join_pointers(values: list[Any], axis: int, lanes: list[tuple[int, ...]], ty: Ty, x: Any) -> Ptr:
    """Pointers of one root (see ``batch._common_root``)."""
    root = values[0].root
    off = join([v.off for v in values], axis, lanes, Ty("i64", ty.shape), x)
    dens = [v.den for v in values]
    if all(d is None for d in dens):
        return Ptr(root, 0, off) if type(off) is Tensor else Ptr(root, off)
    zero = torch.zeros((1,) * (len(lanes[0]) + len(ty.shape)), dtype=torch.int64)
    den = _join_tensors([zero if d is None else d for d in dens], axis, lanes, zero.dim(), torch.int64)
    return Ptr(root, 0, off + den) if type(off) is Tensor else Ptr(root, off, den)


def _join_descriptors(values: list[Any], axis: int, lanes: list[tuple[int, ...]], x: Any) -> Desc:
    first = values[0]
    scalar = Ty("i64")
    parts = lambda name, i: [getattr(v, name)[i] for v in values]  # noqa: E731
    return Desc(
        _join_pointers([v.base for v in values], axis, lanes, Ty("ptr"), x),
        [join(parts("shape", i), axis, lanes, scalar, x) for i in range(len(first.shape))],
        [join(parts("strides", i), axis, lanes, scalar, x) for i in range(len(first.strides))],
        first.block,
        first.elem,
        first.padding,
    )


__all__ = ["cut", "exact_bounds", "flatten", "join", "pick"]
