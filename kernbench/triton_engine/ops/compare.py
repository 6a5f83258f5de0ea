"""``arith.cmpi``: decided by bounds where they suffice, else a box where the difference is affine, else a tensor."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernbench.triton_engine.affine import aff_sub
from kernbench.triton_engine.batch import Batch
from kernbench.triton_engine.frontend.program import OpInfo
from kernbench.triton_engine.frontend.types import Ty
from kernbench.triton_engine.native import forms
from kernbench.triton_engine.values import (
    Affine,
    Box,
    Ptr,
    Value,
    as_tensor,
    dense_int,
    dense_mask,
    exact_bounds,
    lane_array,
)

from .registry import op

#: Predicate of signed numbers: the comparison of Python numbers, and of tensors.
_SIGNED_COMPARE: dict[str, tuple[Any, Any]] = {
    predicate: (getattr(operator, name), getattr(torch, name))
    for predicate, name in {"eq": "eq", "ne": "ne", "slt": "lt", "sle": "le", "sgt": "gt", "sge": "ge"}.items()
}

_NO_BOUND = 1 << 62


@op(
    "arith.cmpi",
    compares=True,
    symbolic=True,
    addressing=True,
    tells_addresses=True,
    native=forms.compare,
    result_type=lambda types: Ty("i1", types[0].shape),
)
def _cmpi(info: OpInfo) -> Callable[..., Value]:
    predicate = info.words[0]
    ty = info.operand_types[0]
    tile = ty.shape
    if ty.is_ptr:
        return _compare_pointers(predicate, tile)
    bits, dtype = ty.bits, ty.dtype
    unsigned = predicate.startswith("u")
    signed = "s" + predicate[1:] if unsigned else predicate
    python, dense = _SIGNED_COMPARE[signed]
    if ty.elem == "i1":
        return _compare_masks(signed, unsigned, tile)
    mask = (1 << bits) - 1
    flip = -(1 << (bits - 1))

    def run(batch: Batch, x: Any, y: Any) -> Value:
        tx, ty_ = type(x), type(y)
        if tx is not Tensor and ty_ is not Tensor:
            if tx is not Affine and ty_ is not Affine:
                return python(x & mask, y & mask) if unsigned else python(x, y)
            plain = not unsigned or ((x.least if tx is Affine else x) >= 0 and (y.least if ty_ is Affine else y) >= 0)
            if plain:
                d = aff_sub(x, y)
                if type(d) is not Affine:
                    return python(d, 0)
                known = _decided(signed, d.least, d.most)
                if known is not None:
                    return known
                d.least, d.most = exact_bounds(d, batch.lanes, tile)
                known = _decided(signed, d.least, d.most)
                if known is not None:
                    return known
                box = _box(signed, d, batch.lanes)
                if box is not None:
                    return box
                if not any(d.tile_strides):
                    lane = python(lane_array(d, batch.lanes), 0)
                    return torch.from_numpy(np.asarray(lane)).reshape(lane.shape + (1,) * len(tile))
        x, y = dense_int(x, batch.lanes, tile, dtype), dense_int(y, batch.lanes, tile, dtype)
        if unsigned:
            x, y = x ^ flip, y ^ flip
        return dense(x, y) if type(x) is Tensor else dense(as_tensor(x, dtype), y)

    return run


def _decided(predicate: str, least: int, most: int) -> bool | None:
    """The truth of ``d predicate 0`` for every d in [least, most], or None."""
    python, _ = _SIGNED_COMPARE[predicate]
    truth: bool = python(least, 0)
    if truth is not python(most, 0) or (predicate in ("eq", "ne") and least < 0 < most):
        return None
    return truth


def _box(predicate: str, d: Affine, lanes: tuple[int, ...]) -> Box | None:
    """``d predicate 0`` as a range of the one tile index that ``d`` varies with."""
    varying = [j for j, s in enumerate(d.tile_strides) if s]
    if len(varying) != 1 or predicate in ("eq", "ne"):
        return None
    j = varying[0]
    s = d.tile_strides[j]
    base: Any = d.constant
    if d.per_lane is not None or any(d.lane_strides):
        base = lane_array(Affine(d.constant, d.lane_strides, (), 0, 0, d.per_lane), lanes)
    strict = predicate in ("slt", "sgt")
    below = predicate in ("slt", "sle")
    if not below:  # -d < 0
        s, base = -s, -base
    if not strict:  # d <= 0  <=>  d - 1 < 0
        base = base - 1
    # s*i + base < 0
    if s > 0:
        limit: Any = -(base // s)  # i < ceil(-base / s)
        bound = (-_NO_BOUND, limit)
    else:
        bound = (base // (-s) + 1, _NO_BOUND)
    if isinstance(base, np.ndarray) and base.size == 1:
        bound = (int(np.asarray(bound[0]).reshape(-1)[0]), int(np.asarray(bound[1]).reshape(-1)[0]))
    bounds: list[Any] = [None] * len(d.tile_strides)
    bounds[j] = bound
    return Box(tuple(bounds))


def _compare_masks(predicate: str, unsigned: bool, tile: tuple[int, ...]) -> Callable[..., Value]:
    python, dense = _SIGNED_COMPARE[predicate]

    def run(batch: Batch, x: Value, y: Value) -> Value:
        x, y = dense_mask(x, batch.lanes, tile), dense_mask(y, batch.lanes, tile)
        if type(x) is not Tensor and type(y) is not Tensor:
            return python(int(x), int(y)) if unsigned else python(-int(x), -int(y))
        x = x if type(x) is Tensor else torch.tensor(x)
        y = y if type(y) is Tensor else torch.tensor(y)
        x, y = x.to(torch.int8), y.to(torch.int8)
        return dense(x, y) if unsigned or predicate in ("eq", "ne") else dense(-x, -y)

    return run


def _compare_pointers(predicate: str, tile: tuple[int, ...]) -> Callable[..., Value]:
    _, dense = _SIGNED_COMPARE["s" + predicate[1:] if predicate.startswith("u") else predicate]

    def run(batch: Batch, x: Ptr, y: Ptr) -> Value:
        p, q = batch.execution.addresses(batch, x, tile), batch.execution.addresses(batch, y, tile)
        return dense(p, q)

    return run
