"""``tt.load`` and ``tt.store``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernbench.triton_engine import access
from kernbench.triton_engine.batch import Batch
from kernbench.triton_engine.frontend.program import OpInfo
from kernbench.triton_engine.frontend.types import Ty, memory_dtype
from kernbench.triton_engine.values import Affine, Box, Ptr, Value, dense_int, dense_mask, from_lane_array

from .casts import pointer_from_int
from .registry import op


def settle(value: Tensor, batch: Batch, tile: tuple[int, ...], is_int: bool) -> Value:
    """Scalar integers read from memory become lane integers, so that they can be addresses and loop bounds."""
    if is_int and not tile:
        return from_lane_array(value.numpy().astype(np.int64))
    return value


def _loaded(types: list[Ty]) -> Ty:
    pointer = types[0]
    return Ty("ptr", pointer.shape, "i8") if pointer.pointee == "ptr" else Ty(pointer.pointee, pointer.shape)


@op("tt.load", pure=False, reads=True, addressing=True, frontier=True, result_type=_loaded)
def _load(info: OpInfo) -> Callable[..., Value]:
    pointer, ty = info.operand_types[0], info.ty
    tile = ty.shape
    dtype = memory_dtype(pointer.pointee)
    is_ptr = pointer.pointee == "ptr"
    is_mask = pointer.pointee == "i1"
    is_int = not dtype.is_floating_point

    def run(batch: Batch, p: Ptr, mask: object = True, other: Any = None) -> Value:
        if type(other) is Affine:
            other = dense_int(other, batch.lanes, tile, dtype)
        if batch.execution.wave is not None:
            if len(tile) > 1:
                access.note_rows(batch, info, p, tile, dtype.itemsize)
            if not is_int:
                batch.execution.distinct += access.wave_bytes(batch, p, tile, dtype.itemsize)
                return 0.0
        value = access.load(batch, info, p, tile, dtype, mask, other)
        if value is None:
            return other if other is not None else 0 if is_int else 0.0
        if is_ptr:
            return pointer_from_int(value, tile)
        if is_mask:
            return value != 0
        return settle(value, batch, tile, is_int)

    return run


@op("tt.store", pure=False, writes=True, stores=1, addressing=True, frontier=True)
def _store(info: OpInfo) -> Callable[..., Value]:
    pointer, value_ty = info.operand_types[0], info.operand_types[1]
    tile = value_ty.shape
    dtype = memory_dtype(pointer.pointee)

    def run(batch: Batch, p: Ptr, value: Any, mask: object = True) -> Value:
        if batch.execution.dry:
            access.visit(batch, info, p, tile, dtype, mask)
            return None
        kind = type(value)
        if kind is Affine:
            value = dense_int(value, batch.lanes, tile, dtype)
        elif kind is Ptr:
            value = batch.execution.addresses(batch, value, tile)
        elif kind is Box:
            value = dense_mask(value, batch.lanes, tile)
        if type(value) is Tensor and value.dtype is torch.bool:
            value = value.to(torch.int8)
        access.store(batch, info, p, tile, dtype, value, mask)
        batch.wrote()
        return None

    return run
