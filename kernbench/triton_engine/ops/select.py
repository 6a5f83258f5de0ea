"""``arith.select``: of numbers, masks, pointers and tensor descriptors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernbench.triton_engine.batch import Batch
from kernbench.triton_engine.frontend.program import OpInfo
from kernbench.triton_engine.frontend.types import FLOAT8
from kernbench.triton_engine.native import forms
from kernbench.triton_engine.values import (
    Affine,
    Desc,
    Ptr,
    Value,
    as_tensor,
    dense_int,
    dense_mask,
    from_lane_array,
    lane_array,
)

from .registry import UnsupportedOpError, op


@op(
    "arith.select",
    alias=True,
    symbolic=True,
    addressing=True,
    tells_addresses=True,
    native=forms.choose,
    picks=lambda operands: None if type(operands[0]) is not bool else 1 if operands[0] else 2,
    result_type=lambda types: types[-1],
)
def _select(info: OpInfo) -> Callable[..., Value]:
    ty = info.ty
    tile = ty.shape
    if ty.is_ptr:
        return _select_pointers(tile)
    if ty.elem == "desc":
        return _select_descriptors(info)
    dtype = ty.dtype
    is_mask = ty.elem == "i1"
    is_int = ty.is_int

    def run(batch: Batch, c: Any, x: Any, y: Any) -> Value:
        if type(c) is bool or type(c) is int:
            return x if c else y
        lanes = batch.lanes
        if is_mask:
            x, y = dense_mask(x, lanes, tile), dense_mask(y, lanes, tile)
        elif is_int:
            numbers = type(x) is not Tensor and type(y) is not Tensor
            if (
                not tile and numbers and type(c) is Tensor and c.dim() == len(lanes)
            ):  # not of a tile, in a combine function
                return from_lane_array(np.where(c.numpy(), lane_array(x, lanes), lane_array(y, lanes)))
            x, y = dense_int(x, lanes, tile, dtype), dense_int(y, lanes, tile, dtype)
        c = dense_mask(c, lanes, tile)
        if type(c) is bool:
            return x if c else y
        if c.dim() < len(lanes) + len(tile):
            c = c.reshape(c.shape + (1,) * (len(lanes) + len(tile) - c.dim()))
        if type(x) is not Tensor and type(y) is not Tensor:
            x = torch.full((1,) * c.dim(), x, dtype=torch.float32 if dtype in FLOAT8 else dtype).to(dtype)
        if type(x) is not Tensor:
            return torch.where(c, as_tensor(x, dtype), y)
        return torch.where(c, x, y if type(y) is Tensor else as_tensor(y, dtype))

    return run


def _select_pointers(tile: tuple[int, ...]) -> Callable[..., Value]:
    def run(batch: Batch, c: Any, x: Ptr, y: Ptr) -> Value:
        if type(c) is bool or type(c) is int:
            return x if c else y
        c = dense_mask(c, batch.lanes, tile)
        if type(c) is bool:
            return x if c else y
        if c.dim() < len(batch.lanes) + len(tile):
            c = c.reshape(c.shape + (1,) * (len(batch.lanes) + len(tile) - c.dim()))
        one = x.root == y.root  # offsets into one argument, else addresses
        numbers = batch.execution.offsets if one else batch.execution.addresses
        chosen = torch.where(c, numbers(batch, x, tile), numbers(batch, y, tile))
        root = x.root if one else None
        if not tile:
            return Ptr(root, from_lane_array(chosen.numpy()))
        return Ptr(root, Affine(0, (0,) * len(batch.lanes), (0,) * len(tile), 0, 0), chosen)

    return run


def _select_descriptors(info: OpInfo) -> Callable[..., Value]:
    pointers = _select_pointers(())

    def number(batch: Batch, c: Tensor, x: Any, y: Any) -> Any:
        return from_lane_array(np.where(c.numpy(), lane_array(x, batch.lanes), lane_array(y, batch.lanes)))

    def run(batch: Batch, c: object, x: Desc, y: Desc) -> Value:
        if type(c) is not Tensor:
            return x if c else y
        if x.padding != y.padding and not (math.isnan(x.padding) and math.isnan(y.padding)):
            raise UnsupportedOpError(
                f"kernel {info.kernel}: one of two tensor descriptors, chosen program by program, pads with zeros and the "
                f"other with NaN: give both the same padding_option\n  at {info.loc}"
            )
        if x.tf32 != y.tf32:
            raise UnsupportedOpError(
                f"kernel {info.kernel}: one of two tensor descriptors, chosen program by program, rounds to TF32 and the other "
                f"does not: give both the same round_f32_to_tf32\n  at {info.loc}"
            )
        return replace(
            x,
            base=pointers(batch, c, x.base, y.base),  # type: ignore[arg-type]
            shape=[number(batch, c, a, b) for a, b in zip(x.shape, y.shape, strict=True)],
            strides=[number(batch, c, a, b) for a, b in zip(x.strides, y.strides, strict=True)],
        )

    return run
