"""``tt.load`` and ``tt.store``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernbench.triton_engine import access
from kernbench.triton_engine.lift.program import OpInfo
from kernbench.triton_engine.reuse import visit, wave_bytes
from kernbench.triton_engine.values import Aff, Box, Ptr, Value, dense_int, dense_mask, from_lane_array

from .casts import pointer_from_int
from .registry import op


def operand_dtype(pointee: str) -> torch.dtype:
    from kernbench.triton_engine.lift.types import TORCH_DTYPE

    if pointee == "ptr":
        return torch.int64
    return torch.int8 if pointee == "i1" else TORCH_DTYPE[pointee]


def settle(value: Tensor, b: Any, tile: tuple[int, ...], is_int: bool) -> Value:
    """Scalar integers read from memory become lane integers, so that they can be addresses and loop bounds."""
    if is_int and not tile:
        return from_lane_array(value.numpy().astype(np.int64))
    return value


@op("tt.load", pure=False, reads=True)
def _load(info: OpInfo) -> Callable[..., Value]:
    pointer, ty = info.operand_types[0], info.ty
    tile = ty.shape
    dtype = operand_dtype(pointer.pointee)
    is_ptr = pointer.pointee == "ptr"
    is_mask = pointer.pointee == "i1"
    is_int = not dtype.is_floating_point

    def run(b: Any, p: Ptr, mask: Any = True, other: Any = None) -> Value:
        if type(other) is Aff:
            other = dense_int(other, b.lanes, tile, dtype)
        if b.x.wave is not None and not is_int:
            b.x.distinct += wave_bytes(b, p, tile, dtype.itemsize)
            return 0.0
        value = access.load(b, info, p, tile, dtype, mask, other)
        if value is None:
            return other if other is not None else 0 if is_int else 0.0
        if is_ptr:
            return pointer_from_int(value, len(b.lanes), tile)
        if is_mask:
            return value != 0
        return settle(value, b, tile, is_int)

    return run


@op("tt.store", pure=False, writes=True)
def _store(info: OpInfo) -> Callable[..., Value]:
    pointer, value_ty = info.operand_types[0], info.operand_types[1]
    tile = value_ty.shape
    dtype = operand_dtype(pointer.pointee)

    def run(b: Any, p: Ptr, value: Any, mask: Any = True) -> Value:
        if b.x.dry:
            visit(b, info, p, tile, dtype, mask)
            return None
        kind = type(value)
        if kind is Aff:
            value = dense_int(value, b.lanes, tile, dtype)
        elif kind is Ptr:
            value = b.x.addresses(b, value, tile)
        elif kind is Box:
            value = dense_mask(value, b.lanes, tile)
        if type(value) is Tensor and value.dtype is torch.bool:
            value = value.to(torch.int8)
        access.store(b, info, p, tile, dtype, value, mask)
        b.wrote()
        return None

    return run
