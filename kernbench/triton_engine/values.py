"""What an SSA value is while many programs run at once.

Programs are *lanes*, arranged in a rectangular grid of lane axes (ranks, then grid axes, possibly refined by
:mod:`kernbench.triton_engine.lane_grid`). A value of tile shape ``T`` over lane shape ``L`` is one of

====================  ==================================================================================
Python ``int/float``  the same number in every lane and element (``bool`` for ``i1``)
:class:`Affine`       integers, affine in lane and tile indices
:class:`Ptr`          pointers: a root (kernel argument) and a byte offset, kept affine where possible
:class:`Box`          a mask that is a product of index ranges, one per tile dimension
``torch.Tensor``      everything else: shape broadcastable to ``L + T``; a dimension that does not vary has size 1
====================  ==================================================================================

Index arithmetic and masks therefore cost a few Python integers, not a tile; a load through an affine pointer is a
strided view; and because a dimension that does not vary has size 1, tiles shared by lanes are computed once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, final

import numpy as np
import torch

from .frontend.types import FLOAT8

Bound: TypeAlias = "int | np.ndarray"


@final
@dataclass(slots=True, eq=False)
class Affine:
    """Integers affine over lanes and tile: ``constant + sum(lane_strides * lane) + sum(tile_strides * index) + per_lane``.

    ``per_lane`` (int64, one dimension per lane axis, broadcastable to the lane shape) carries what is not affine in the
    lanes. ``least``/``most`` bound every element (conservatively); they decide masks and wrap-around without a tile.
    """

    constant: int
    lane_strides: tuple[int, ...]
    tile_strides: tuple[int, ...]
    least: int
    most: int
    per_lane: np.ndarray | None = None
    #: The same as a tensor, once requested.
    dense: torch.Tensor | None = field(default=None, init=False)

    def on_tile(self, tile_strides: tuple[int, ...]) -> Affine:
        """The same numbers on another tile."""
        return Affine(self.constant, self.lane_strides, tile_strides, self.least, self.most, self.per_lane)


@final
@dataclass(slots=True, eq=False)
class Ptr:
    """Pointers: ``address(root) + offset + scattered`` bytes. ``root`` is a kernel argument's index or None (absolute)."""

    root: int | None
    offset: int | Affine
    scattered: torch.Tensor | None = None

    def map(self, change: Callable[[Any], Any]) -> Ptr:
        """Pointers with ``change`` applied to both parts of the offset."""
        return Ptr(self.root, change(self.offset), None if self.scattered is None else change(self.scattered))


@final
@dataclass(slots=True, eq=False)
class Box:
    """A mask true where ``low <= index < high`` in every constrained tile dimension (None: unconstrained).

    Bounds are ints or int64 arrays over the lane axes. They may lie outside of the tile.
    """

    bounds: tuple[tuple[Bound, Bound] | None, ...]
    #: The same as a tensor, once requested.
    dense: torch.Tensor | None = field(default=None, init=False)

    def map(self, change: Callable[[Any], Any]) -> Box:
        """The mask with ``change`` applied to every bound."""
        return Box(tuple([None if pair is None else (change(pair[0]), change(pair[1])) for pair in self.bounds]))


@final
@dataclass(slots=True, eq=False)
class Desc:
    """A tensor descriptor: base pointer, shape and element strides (ints or rank-0 :class:`Affine`), block shape.

    ``padding`` is the value read outside of the bounds: 0.0 or NaN. ``tf32``: what is read is rounded to TF32.
    """

    base: Ptr
    shape: list[Any]
    strides: list[Any]
    block: tuple[int, ...]
    elem: str
    padding: float = 0.0
    tf32: bool = False

    def map(self, change: Callable[[Any], Any]) -> Desc:
        """The descriptor with ``change`` applied to what may differ between lanes."""
        shape, strides = [change(n) for n in self.shape], [change(s) for s in self.strides]
        return replace(self, base=change(self.base), shape=shape, strides=strides)


@final
@dataclass(slots=True, eq=False)
class Late:
    """A value that only the store after it reads: it is computed there, straight into memory where that can be."""

    compute: Callable[..., Any]
    into: Callable[..., bool]
    batch: Any
    operands: tuple[Any, ...]

    def value(self) -> Any:
        """The value itself."""
        return self.compute(self.batch, *self.operands)


Value: TypeAlias = "int | float | bool | Affine | Ptr | Box | Desc | Late | torch.Tensor | None"


def way_of_reading(value: object) -> tuple[str, bool]:
    """How a ``TensorDescriptor`` reads: its padding, and whether it rounds to TF32. One compiled kernel serves all ways."""
    return str(getattr(value, "padding", "zero")), bool(getattr(value, "round_f32_to_tf32", False))


def host_descriptor(value: Any, argument: int, elem: str) -> Desc:
    """The descriptor that ``triton.tools.tensor_descriptor.TensorDescriptor`` is, given as a kernel argument."""
    padded, tf32 = way_of_reading(value)
    padding = math.nan if padded == "nan" else 0.0
    return Desc(Ptr(argument, 0), list(value.shape), list(value.strides), tuple(value.block_shape), elem, padding, tf32)


def wrap(value: int, bits: int) -> int:
    """Two's complement of ``value`` in ``bits`` bits, signed."""
    half = 1 << (bits - 1)
    return ((value + half) & ((1 << bits) - 1)) - half


def index_array(n: int, axis: int, ndim: int) -> np.ndarray:
    """``arange(n)`` along ``axis`` of an ``ndim``-dimensional array."""
    shape = [1] * ndim
    shape[axis] = n
    return np.arange(n, dtype=np.int64).reshape(shape)


def exact_bounds(v: Affine, lanes: tuple[int, ...], tile: tuple[int, ...]) -> tuple[int, int]:
    """Least and greatest element of an affine value."""
    lo = hi = v.constant
    for s, n in zip(v.lane_strides + v.tile_strides, lanes + tile, strict=True):
        if s > 0:
            hi += s * (n - 1)
        elif s:
            lo += s * (n - 1)
    if v.per_lane is not None:
        lo += int(v.per_lane.min())
        hi += int(v.per_lane.max())
    return lo, hi


def lane_array(v: int | Affine, lanes: tuple[int, ...]) -> np.ndarray:
    """The lane part of an integer as an int64 array with one dimension per lane axis (size 1 where constant)."""
    n = len(lanes)
    if not isinstance(v, Affine):
        return np.full((1,) * n, v, dtype=np.int64)
    out = np.full((1,) * n, v.constant, dtype=np.int64) if v.per_lane is None else v.per_lane + v.constant
    for k, s in enumerate(v.lane_strides):
        if s:
            out = out + s * index_array(lanes[k], k, n)
    return out


_STEEPEST = 2**62 // 2**31
"""Of what is taken to be affine in lanes, from one lane to the next."""


def from_lane_array(arr: np.ndarray, rank: int = 0) -> int | Affine:
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
        if abs(step) > _STEEPEST:  # times an index it would not be an int64
            return Affine(0, (0,) * n, (0,) * rank, int(arr.min()), int(arr.max()), arr)
        ls.append(step)
        if step:
            fit = fit + step * index_array(size, k, n)
    lo, hi = int(arr.min()), int(arr.max())
    ts = (0,) * rank
    if np.array_equal(np.broadcast_to(fit, arr.shape), arr):
        if not any(ls):
            return first
        return Affine(first, tuple(ls), ts, lo, hi)
    return Affine(0, (0,) * n, ts, lo, hi, arr)


def dense_int(v: Value, lanes: tuple[int, ...], tile: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor | int:
    """An integer value as a tensor of ``len(lanes) + len(tile)`` dimensions (ints stay ints)."""
    if type(v) is not Affine:
        return v  # type: ignore[return-value]
    if v.dense is not None and v.dense.dtype == dtype:
        return v.dense
    nl, nt = len(lanes), len(tile)
    total = torch.full((1,) * (nl + nt), v.constant, dtype=torch.int64)
    for k, s in enumerate(v.lane_strides + v.tile_strides):
        if s:
            n = lanes[k] if k < nl else tile[k - nl]
            shape = [1] * (nl + nt)
            shape[k] = n
            total = total + torch.arange(0, s * n, s, dtype=torch.int64).reshape(shape)
    if v.per_lane is not None:
        total = total + torch.from_numpy(np.array(v.per_lane)).reshape(tuple(v.per_lane.shape) + (1,) * nt)
    out = total.to(dtype)
    v.dense = out
    return out


def bound_tensor(bound: Bound, nt: int) -> torch.Tensor | int:
    """A bound as a tensor to compare ``nt`` tile axes with."""
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


def as_tensor(value: object, dtype: torch.dtype) -> torch.Tensor:
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
