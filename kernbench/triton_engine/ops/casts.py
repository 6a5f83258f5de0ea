"""Conversions between types.

fp16 and bf16 round to nearest even; ``fp_to_fp`` may ask for truncation (``rtz``). fp8 conversions saturate nothing:
``float8_e4m3fn`` has no infinity, and hardware's conversion used by Triton saturates to the largest finite value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernbench.triton_engine.affine import fits
from kernbench.triton_engine.batch import Batch
from kernbench.triton_engine.fixed_width import of_nan
from kernbench.triton_engine.frontend.program import OpInfo
from kernbench.triton_engine.frontend.types import FLOAT8
from kernbench.triton_engine.native import forms
from kernbench.triton_engine.rounding import from_integers, narrowed
from kernbench.triton_engine.values import Affine, Ptr, Value, dense_int, dense_mask, from_lane_array, wrap

from .arith_float import round_to
from .registry import op


def convert_float(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Round to nearest even, saturating to the largest finite value for fp8 (NaN stays NaN)."""
    if dtype in FLOAT8:
        if x.dtype in FLOAT8 or x.dtype is torch.float64:
            x = x.to(torch.float32)
        top = torch.finfo(dtype).max
        return torch.clamp(x, -top, top).to(dtype)
    return narrowed(x, dtype) if x.dtype is torch.float64 else x.to(dtype)


def truncate_float(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Round toward zero: step back where rounding to nearest went away from zero."""
    near = convert_float(x, dtype)
    back = near.to(x.dtype)
    bits = near.view({1: torch.int8, 2: torch.int16, 4: torch.int32}[dtype.itemsize])
    away = (back.abs() > x.abs()) & torch.isfinite(x)
    return torch.where(away, bits - 1, bits).view(dtype)


def _is_one_step(info: OpInfo) -> bool:
    """Whether torch's own conversion rounds once, to nearest even, as hardware does."""
    return info.ty.dtype not in FLOAT8 and not (
        info.operand_types[0].dtype is torch.float64 and info.ty.dtype.itemsize < 4
    )


def _convert_into(info: OpInfo) -> Callable[..., bool]:
    """Rounding to nearest even while storing; other conversions are made before."""
    plain = info.attrs.get("rounding") != "rtz" and _is_one_step(info)

    def run(out: Tensor, x: Value) -> bool:
        if not plain or type(x) is not Tensor or x.shape != out.shape:
            return False
        out.copy_(x)
        return True

    return run


@op(
    "arith.extf",
    "arith.truncf",
    "tt.fp_to_fp",
    inplace=True,
    into=_convert_into,
    recasts=True,
    native=forms.between_floats,
)
def _float_to_float(info: OpInfo) -> Callable[..., Value]:
    dtype = info.ty.dtype
    toward_zero = info.attrs.get("rounding") == "rtz"
    plain = not toward_zero and _is_one_step(info)
    to_8_bits = dtype in FLOAT8
    same = dtype == info.operand_types[0].dtype

    def run(batch: Batch, x: Any) -> Value:
        if type(x) is Tensor:
            if plain:
                return x.to(dtype, copy=same)
            return truncate_float(x, dtype) if toward_zero else convert_float(x, dtype)
        if not toward_zero and not to_8_bits:
            return round_to(x, dtype)
        value = torch.tensor([x], dtype=torch.float32)
        out = truncate_float(value, dtype) if toward_zero else convert_float(value, dtype)
        return float(out.to(torch.float32))

    return run


@op("arith.sitofp", "arith.uitofp", recasts=True, native=forms.to_float)
def _int_to_float(info: OpInfo) -> Callable[..., Value]:
    dtype, source = info.ty.dtype, info.operand_types[0]
    tile = source.shape
    unsigned = info.name.endswith("uitofp")
    is_mask = source.elem == "i1"
    plain = not unsigned and (dtype.itemsize >= 4 or source.bits <= 16)  # torch's own conversion rounds once

    def run(batch: Batch, x: Value) -> Value:
        if is_mask:
            x = dense_mask(x, batch.lanes, tile)
            if type(x) is not Tensor:
                return float(bool(x)) if unsigned else -float(bool(x))
            out = x.to(dtype)
            return out if unsigned else -out
        x = dense_int(x, batch.lanes, tile, source.dtype)
        if type(x) is Tensor:
            return x.to(dtype) if plain else from_integers(x, dtype, unsigned)
        number = int(x)
        if abs(number) < 1 << 53 and not (unsigned and number < 0):
            return round_to(float(number), dtype)
        return float(from_integers(torch.tensor(number, dtype=source.dtype), dtype, unsigned).to(torch.float64))

    return run


def _converted_as(info: OpInfo, unsigned: bool) -> tuple[int, bool]:
    """Bits of the integer that the target's instruction makes, and whether it has no sign.

    As compiled code shows: ``cvt.rzi.{u,s}16`` for 8 bits on NVIDIA; ``v_cvt_i32`` (of fp16, ``v_cvt_i16``) on AMD.
    """
    bits = info.ty.bits
    if bits >= 32:
        return bits, unsigned
    if info.backend == "hip" and info.operand_types[0].elem != "f16":
        return 32, unsigned and bits == 16
    return 16, unsigned and not (info.backend == "hip" and bits == 8)


def _of_nan(info: OpInfo) -> int:
    """What NaN becomes, in the integer that the target's instruction makes: 0 on AMD."""
    bits, unsigned = _converted_as(info, info.name.endswith("fptoui"))
    return 0 if info.backend == "hip" else of_nan(bits, unsigned, 64 if info.operand_types[0].elem == "f64" else 32)


@op("arith.fptosi", "arith.fptoui", native=forms.to_integer(_converted_as, _of_nan))
def _float_to_int(info: OpInfo) -> Callable[..., Value]:
    """Toward zero. Out-of-range values saturate and NaN gives 0 or the highest bit, as the hardware conversion does.

    Hardware converts to more bits than a small integer has; those that do not fit are cut off.
    """
    ty = info.ty
    unsigned = info.name.endswith("fptoui")
    if ty.elem == "i1":
        return lambda batch, x: (x != 0) if type(x) is Tensor else x != 0.0
    bits, positive = _converted_as(info, unsigned)
    lo, hi = (0, (1 << bits) - 1) if positive else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    of_none = float(_of_nan(info))

    def run(batch: Batch, x: Any) -> Value:
        scalar = type(x) is not Tensor
        wide = torch.tensor(x, dtype=torch.float64) if scalar else x.to(torch.float64)
        wide = torch.nan_to_num(torch.trunc(wide), nan=of_none, posinf=float(hi), neginf=float(lo)).clamp(float(lo))
        if ty.bits < 64:
            out = wide.clamp(max=hi).to(torch.int64).to(ty.dtype)
        elif unsigned:
            big = wide >= 2.0**63
            shifted = torch.where(big, wide - 2.0**64, wide).clamp(-(2.0**63), 2.0**63 - 1024)
            out = torch.where(wide >= 2.0**64, -1, shifted.to(torch.int64))
        else:
            out = wide.clamp(-(2.0**63), 2.0**63 - 1024).to(torch.int64)
            out = torch.where(wide >= 2.0**63, torch.tensor(hi), out)
        return int(out) if scalar else out

    return run


@op("arith.extsi", symbolic=True, addressing=True, native=forms.between_integers)
@op("arith.extui", "arith.trunci", "arith.index_cast", symbolic=True, native=forms.between_integers)
def _int_to_int(info: OpInfo) -> Callable[..., Value]:
    source, ty = info.operand_types[0], info.ty
    tile, bits, dtype = ty.shape, ty.bits, ty.dtype
    unsigned = info.name.endswith("extui")
    mask = (1 << source.bits) - 1
    if source.elem == "i1":
        return _mask_to_int(info, 1 if unsigned else -1)
    if ty.elem == "i1":

        def low_bit(batch: Batch, x: Value) -> Value:
            x = dense_int(x, batch.lanes, tile, source.dtype)
            return (x & 1) != 0

        return low_bit

    def run(batch: Batch, x: Value) -> Value:
        if type(x) is int:
            return wrap(x & mask if unsigned else x, bits)
        if type(x) is Affine:
            if (not unsigned or x.least >= 0) and (v := fits(x, bits, batch, tile)) is not None:
                return v
            if not any(x.tile_strides):
                lanes = dense_int(x, batch.lanes, tile, source.dtype)
                out = _tensor(lanes)
                return from_lane_array(out.to(torch.int64).reshape(out.shape[: len(batch.lanes)]).numpy(), len(tile))
            x = dense_int(x, batch.lanes, tile, source.dtype)
        return _tensor(x)

    def _tensor(x: Any) -> Tensor:
        if unsigned and source.bits < 64:
            return (x.to(torch.int64) & mask).to(dtype)
        return x.to(dtype)

    return run


def _mask_to_int(info: OpInfo, one: int) -> Callable[..., Value]:
    tile, dtype = info.ty.shape, info.ty.dtype

    def run(batch: Batch, x: Value) -> Value:
        x = dense_mask(x, batch.lanes, tile)
        if type(x) is not Tensor:
            return one if x else 0
        out = x.to(dtype)
        return out if one == 1 else -out

    return run


@op("arith.bitcast", alias=True, recasts=True, native=forms.same_bits)
@op("tt.bitcast", alias=True, recasts=True, symbolic=True, native=forms.same_bits)
def _bitcast(info: OpInfo) -> Callable[..., Value]:
    source, ty = info.operand_types[0], info.ty
    if ty.is_ptr or source.elem == ty.elem:
        return lambda batch, x: x
    if source.elem == "i1" and ty.elem == "i8":
        return _mask_to_int(info, 1)
    if source.elem == "i8" and ty.elem == "i1":
        return lambda batch, x: dense_int(x, batch.lanes, source.shape, source.dtype) != 0

    def run(batch: Batch, x: Value) -> Value:
        if source.is_int:
            x = dense_int(x, batch.lanes, source.shape, source.dtype)
        if type(x) is Tensor:
            return x.view(ty.dtype)
        value = torch.tensor([x], dtype=source.dtype if source.is_int or source.dtype.itemsize > 1 else torch.float32)
        out = value.to(source.dtype).view(ty.dtype)
        return int(out) if ty.is_int else float(out.to(torch.float64))

    return run


@op("tt.ptr_to_int", tells_addresses=True)
def _ptr_to_int(info: OpInfo) -> Callable[..., Value]:
    tile = info.ty.shape

    def run(batch: Batch, p: Ptr) -> Value:
        address = batch.execution.addresses(batch, p, tile)
        if not tile:
            return from_lane_array(address.numpy())
        return address

    return run


@op("tt.int_to_ptr")
def _int_to_ptr(info: OpInfo) -> Callable[..., Value]:
    tile = info.ty.shape

    return lambda batch, x: pointer_from_int(x, tile)


def pointer_from_int(x: Any, tile: tuple[int, ...]) -> Ptr:
    """A pointer from an absolute address held as an integer value."""
    if type(x) is Tensor:
        if not tile:
            return Ptr(None, from_lane_array(x.to(torch.int64).numpy()))
        return Ptr(None, 0, x.to(torch.int64))
    return Ptr(None, x)
