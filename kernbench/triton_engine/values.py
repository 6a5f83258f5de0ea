"""What an SSA value is while many programs run at once.

Programs are *lanes*, arranged in a rectangular grid of lane axes (ranks, then grid axes, possibly refined by
:mod:`kernbench.triton_engine.plan`). A value of tile shape ``T`` over lane shape ``L`` is one of

====================  ==================================================================================
Python ``int/float``  the same number in every lane and element (``bool`` for ``i1``)
:class:`Aff`          integers, affine in lane and tile indices: ``c + sum(ls*lane) + sum(ts*tile) + arr``
:class:`Ptr`          pointers: a root (kernel argument) and a byte offset, kept affine where possible
:class:`Box`          a mask that is a product of index ranges, one per tile dimension
``torch.Tensor``      everything else: shape broadcastable to ``L + T``; a dimension that does not vary has size 1
====================  ==================================================================================

Index arithmetic and masks therefore cost a few Python integers, not a tile; a load through an affine pointer is a
strided view; and because a dimension that does not vary has size 1, tiles shared by lanes are computed once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, final

import numpy as np
import torch

from .lift.types import FLOAT8

I64_MIN, I64_MAX = -(1 << 63), (1 << 63) - 1


@final
class Aff:
    """Integers affine over lanes and tile: ``c + sum(ls[k]*lane[k]) + sum(ts[j]*tile[j]) + arr[lanes]``.

    ``arr`` (int64, one dimension per lane axis, broadcastable to the lane shape) carries what is not affine in the
    lanes. ``lo``/``hi`` bound every element (conservatively); they decide masks and wrap-around without a tile.
    """

    __slots__ = ("arr", "c", "dense", "hi", "lo", "ls", "ts")

    def __init__(
        self, c: int, ls: tuple[int, ...], ts: tuple[int, ...], lo: int, hi: int, arr: np.ndarray | None = None
    ) -> None:
        self.c = c
        self.ls = ls
        self.ts = ts
        self.lo = lo
        self.hi = hi
        self.arr = arr
        self.dense: torch.Tensor | None = None

    def __repr__(self) -> str:
        extra = "" if self.arr is None else f" + arr{self.arr.shape}"
        return f"Aff({self.c} + {self.ls}*lane + {self.ts}*tile{extra} in [{self.lo}, {self.hi}])"


@final
class Ptr:
    """Pointers: ``address(root) + off + den`` bytes. ``root`` is a kernel argument index or None (absolute)."""

    __slots__ = ("den", "off", "root")

    def __init__(self, root: int | None, off: int | Aff, den: torch.Tensor | None = None) -> None:
        self.root = root
        self.off = off
        self.den = den

    def __repr__(self) -> str:
        return f"Ptr({self.root}, {self.off}{', +dense' if self.den is not None else ''})"


Bound: TypeAlias = "int | np.ndarray"


@final
class Box:
    """A mask true where ``lo <= index < hi`` in every constrained tile dimension (None: unconstrained).

    Bounds are ints or int64 arrays over the lane axes. They may lie outside of the tile.
    """

    __slots__ = ("bounds", "dense")

    def __init__(self, bounds: tuple[tuple[Bound, Bound] | None, ...]) -> None:
        self.bounds = bounds
        self.dense: torch.Tensor | None = None

    def __repr__(self) -> str:
        return f"Box({self.bounds})"


@final
class Desc:
    """A tensor descriptor: base pointer, shape and element strides (ints or rank-0 :class:`Aff`), block shape.

    ``padding`` is the value read outside of the bounds: 0.0 or NaN.
    """

    __slots__ = ("base", "block", "elem", "padding", "shape", "strides")

    def __init__(
        self,
        base: Ptr,
        shape: list[Value],
        strides: list[Value],
        block: tuple[int, ...],
        elem: str,
        padding: float = 0.0,
    ) -> None:
        self.base = base
        self.shape = shape
        self.strides = strides
        self.block = block
        self.elem = elem
        self.padding = padding


@final
class Late:
    """A value that nobody but the store after it looks at: it is computed there, straight into memory where that can be."""

    __slots__ = ("args", "b", "fn", "into")

    def __init__(self, fn: Callable[..., Any], into: Callable[..., bool], b: Any, args: tuple[Any, ...]) -> None:
        self.fn = fn
        self.into = into
        self.b = b
        self.args = args

    def value(self) -> Any:
        """The value itself."""
        return self.fn(self.b, *self.args)


Value: TypeAlias = "int | float | bool | Aff | Ptr | Box | Desc | Late | torch.Tensor | None"


def wrap(value: int, bits: int) -> int:
    """Two's complement of ``value`` in ``bits`` bits, signed."""
    half = 1 << (bits - 1)
    return ((value + half) & ((1 << bits) - 1)) - half


def index_array(n: int, axis: int, ndim: int) -> np.ndarray:
    """``arange(n)`` along ``axis`` of an ``ndim``-dimensional array."""
    shape = [1] * ndim
    shape[axis] = n
    return np.arange(n, dtype=np.int64).reshape(shape)


def exact_bounds(v: Aff, lanes: tuple[int, ...], tile: tuple[int, ...]) -> tuple[int, int]:
    """Least and greatest element of an affine value."""
    lo = hi = v.c
    for s, n in zip(v.ls + v.ts, lanes + tile, strict=True):
        if s > 0:
            hi += s * (n - 1)
        elif s:
            lo += s * (n - 1)
    if v.arr is not None:
        lo += int(v.arr.min())
        hi += int(v.arr.max())
    return lo, hi


def lane_array(v: int | Aff, lanes: tuple[int, ...]) -> np.ndarray:
    """The lane part of an integer as an int64 array with one dimension per lane axis (size 1 where constant)."""
    n = len(lanes)
    if not isinstance(v, Aff):
        return np.full((1,) * n, v, dtype=np.int64)
    out = np.full((1,) * n, v.c, dtype=np.int64) if v.arr is None else v.arr + v.c
    for k, s in enumerate(v.ls):
        if s:
            out = out + s * index_array(lanes[k], k, n)
    return out


def from_lane_array(arr: np.ndarray, rank: int = 0) -> int | Aff:
    """An integer from per-lane numbers: uniform, affine along one or more axes, or carried as an array."""
    n = arr.ndim
    if arr.size == 1:
        return int(arr.reshape(-1)[0])
    first = int(arr[(0,) * n])
    ls = []
    fit: np.ndarray | int = first
    for k in range(n):
        size = arr.shape[k]
        if size == 1:
            ls.append(0)
            continue
        at = [0] * n
        at[k] = 1
        step = int(arr[tuple(at)]) - first
        ls.append(step)
        if step:
            fit = fit + step * index_array(size, k, n)
    lo, hi = int(arr.min()), int(arr.max())
    ts = (0,) * rank
    if np.array_equal(np.broadcast_to(fit, arr.shape), arr):
        if not any(ls):
            return first
        return Aff(first, tuple(ls), ts, lo, hi)
    return Aff(0, (0,) * n, ts, lo, hi, arr)


def dense_int(v: Value, lanes: tuple[int, ...], tile: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor | int:
    """An integer value as a tensor of ``len(lanes) + len(tile)`` dimensions (ints stay ints)."""
    if type(v) is not Aff:
        return v  # type: ignore[return-value]
    if v.dense is not None and v.dense.dtype == dtype:
        return v.dense
    nl, nt = len(lanes), len(tile)
    total = torch.full((1,) * (nl + nt), v.c, dtype=torch.int64)
    for k, s in enumerate(v.ls + v.ts):
        if s:
            n = lanes[k] if k < nl else tile[k - nl]
            shape = [1] * (nl + nt)
            shape[k] = n
            total = total + torch.arange(0, s * n, s, dtype=torch.int64).reshape(shape)
    if v.arr is not None:
        total = total + torch.from_numpy(np.array(v.arr)).reshape(tuple(v.arr.shape) + (1,) * nt)
    out = total.to(dtype)
    v.dense = out
    return out


def bound_tensor(bound: Bound, nt: int) -> torch.Tensor | int:
    if isinstance(bound, np.ndarray):
        return torch.from_numpy(np.array(bound)).reshape(tuple(bound.shape) + (1,) * nt)
    return bound


def dense_mask(v: Value, lanes: tuple[int, ...], tile: tuple[int, ...]) -> torch.Tensor | bool:
    """A mask as a boolean tensor (or a bool)."""
    if type(v) is not Box:
        return v  # type: ignore[return-value]
    if v.dense is not None:
        return v.dense
    nl, nt = len(lanes), len(tile)
    out: torch.Tensor | None = None
    for j, bound in enumerate(v.bounds):
        if bound is None:
            continue
        shape = [1] * (nl + nt)
        shape[nl + j] = tile[j]
        index = torch.arange(tile[j]).reshape(shape)
        lo, hi = bound
        part = (index >= bound_tensor(lo, nt)) & (index < bound_tensor(hi, nt))
        out = part if out is None else out & part
    if out is None:
        return True
    v.dense = out
    return out


def as_tensor(value: Any, dtype: torch.dtype) -> torch.Tensor:
    """A number as a tensor without dimensions; tensors pass through."""
    return value if type(value) is torch.Tensor else torch.tensor(value, dtype=dtype)


def filled(shape: tuple[int, ...], value: Any, dtype: torch.dtype) -> torch.Tensor:
    """A new tensor of ``shape`` holding ``value`` (a number, or a tensor to broadcast)."""
    if type(value) is torch.Tensor:
        return value.expand(torch.broadcast_shapes(value.shape, shape)).clone(memory_format=torch.contiguous_format)
    if value == 0 and value is not None:
        return torch.zeros(shape, dtype=dtype)
    if dtype in FLOAT8:
        return torch.full(shape, value, dtype=torch.float32).to(dtype)
    return torch.full(shape, value, dtype=dtype)
