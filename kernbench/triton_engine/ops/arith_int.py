"""Integer arithmetic, exact: two's complement wrap, truncating division, unsigned where the operation says so.

Three implementations per operation: on Python integers (uniform values), on affine values (symbolic, or per lane with
numpy when a scalar is not affine), and on tensors. The lane and tensor forms share one numpy function where torch
lacks the operation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernbench.triton_engine.affine import aff_add, aff_div, aff_minmax, aff_mul, aff_rem, aff_shl, aff_sub, fits
from kernbench.triton_engine.batch import Batch
from kernbench.triton_engine.fixed_width import (
    SIGNED,
    by_zero,
    np_division,
    np_mulhi,
    np_shift,
    np_trunc_div,
    np_unsigned,
    through_numpy,
    trunc_div,
    trunc_rem,
    unsigned_form,
)
from kernbench.triton_engine.frontend.program import OpInfo
from kernbench.triton_engine.native import forms
from kernbench.triton_engine.values import (
    Affine,
    Value,
    as_tensor,
    dense_int,
    from_lane_array,
    lane_array,
    wrap,
)

from .masks import mask_and, mask_or, mask_shifted_out, mask_xor, picked
from .registry import UnsupportedOpError, op


@dataclass(frozen=True)
class _Binary:
    """What an operation does with two Python integers, affine values, numpy arrays, tensors (None: through numpy) and masks
    (numbers 0 and -1 of one bit). ``unsigned``: ``python`` takes the unsigned numbers of the same bits."""

    python: Callable[[int, int], int]
    affine: Callable[[Any, Any], Any] | None
    numpy: Callable[[Any, Any], Any]
    torch: Callable[[Any, Any], Tensor] | None
    boolean: Callable[[Any, Any, Any, tuple[int, ...]], Value] | None
    unsigned: bool = False
    #: Fields of the row in the table of operations.
    symbolic: bool = True
    addressing: bool = False
    native: forms.Form | None = None
    picks: Callable[[list[Any]], int | None] | None = None
    divides: str = ""  # "quotient" or "remainder": ``python`` and ``numpy`` take divisors that are not 0


def _first(batch: Batch, x: Value, y: Value, tile: tuple[int, ...]) -> Value:
    return x  # the sign fills


def _nothing(batch: Batch, x: Value, y: Value, tile: tuple[int, ...]) -> Value:
    return False


# Booleans: a divisor is 1, to the compiler (a quotient is the dividend); -1 // -1 wraps to -1.
_BINARY: dict[str, _Binary] = {
    "arith.addi": _Binary(
        lambda a, b: a + b, aff_add, np.add, torch.add, mask_xor, addressing=True, native=forms.integer("add")
    ),
    "arith.subi": _Binary(
        lambda a, b: a - b, aff_sub, np.subtract, torch.sub, mask_xor, addressing=True, native=forms.integer("sub")
    ),
    "arith.muli": _Binary(
        lambda a, b: a * b, aff_mul, np.multiply, torch.mul, mask_and, addressing=True, native=forms.integer("mul")
    ),
    "arith.divsi": _Binary(trunc_div, aff_div, np_trunc_div, None, _first, divides="quotient"),
    "arith.remsi": _Binary(trunc_rem, aff_rem, np.fmod, None, _nothing, divides="remainder"),
    "arith.divui": _Binary(
        lambda a, b: a // b,
        aff_div,
        np_unsigned(np.floor_divide),
        None,
        _first,
        unsigned=True,
        divides="quotient",
    ),
    "arith.remui": _Binary(
        lambda a, b: a % b,
        aff_rem,
        np_unsigned(np.remainder),
        None,
        _nothing,
        unsigned=True,
        divides="remainder",
    ),
    "arith.floordivsi": _Binary(
        lambda a, b: a // b, aff_div, np.floor_divide, None, None, symbolic=False, divides="quotient"
    ),
    "arith.ceildivsi": _Binary(
        lambda a, b: -(-a // b),
        None,
        lambda a, b: -np.floor_divide(-a, b),
        None,
        None,
        symbolic=False,
        divides="quotient",
    ),
    "arith.andi": _Binary(
        lambda a, b: a & b,
        None,
        np.bitwise_and,
        torch.bitwise_and,
        mask_and,
        addressing=True,
        native=forms.integer("and", masks=True),
        picks=picked(True),
    ),
    "arith.ori": _Binary(
        lambda a, b: a | b,
        None,
        np.bitwise_or,
        torch.bitwise_or,
        mask_or,
        addressing=True,
        native=forms.integer("or", masks=True),
        picks=picked(False),
    ),
    "arith.xori": _Binary(
        lambda a, b: a ^ b, None, np.bitwise_xor, torch.bitwise_xor, mask_xor, native=forms.integer("xor", masks=True)
    ),
    "arith.shli": _Binary(
        lambda a, b: a << b if 0 <= b < 64 else 0,
        aff_shl,
        np_shift(np.left_shift),
        None,
        mask_shifted_out,
        symbolic=False,
        native=forms.shift("shl"),
    ),
    "arith.shrsi": _Binary(
        lambda a, b: a >> min(max(b, 0), 63),
        None,
        np_shift(np.right_shift, saturate=True),
        None,
        _first,
        symbolic=False,
        native=forms.shift("ashr"),
    ),
    "arith.shrui": _Binary(
        lambda a, b: a >> b if b < 64 else 0,
        None,
        np_unsigned(np_shift(np.right_shift)),
        None,
        mask_shifted_out,
        unsigned=True,
        symbolic=False,
        native=forms.shift("lshr"),
    ),
    "arith.minsi": _Binary(min, aff_minmax(True), np.minimum, torch.minimum, mask_or, native=forms.extremum("slt")),
    "arith.maxsi": _Binary(max, aff_minmax(False), np.maximum, torch.maximum, mask_and, native=forms.extremum("sgt")),
    "arith.minui": _Binary(
        min, None, np_unsigned(np.minimum), None, mask_and, unsigned=True, native=forms.extremum("ult")
    ),
    "arith.maxui": _Binary(
        max, None, np_unsigned(np.maximum), None, mask_or, unsigned=True, native=forms.extremum("ugt")
    ),
}


def _upper_half(info: OpInfo) -> Callable[..., Value]:
    bits = info.ty.bits
    row = _Binary(lambda a, b: (a * b) >> bits, None, np_unsigned(np_mulhi), None, None, unsigned=True)
    return _binary(row, info)


def _by_zero(row: _Binary, info: OpInfo) -> Callable[[Any], Any]:
    """What a division by 0 gives. On AMD's GPUs a remainder is the dividend (torch's own tests of ROCm say so); a quotient,
    whose instructions differ by width, is 0 here."""
    if info.backend == "hip":
        return (lambda a: a) if row.divides == "remainder" else (lambda a: a * 0)
    return by_zero(info.ty.bits)


def _division(f: Callable[[int, int], int], of_zero: Callable[[int], int]) -> Callable[[int, int], int]:
    return lambda a, b: f(a, b) if b else of_zero(a)


def _binary(row: _Binary, info: OpInfo) -> Callable[..., Value]:
    ty = info.ty
    bits, dtype, tile = ty.bits, ty.dtype, ty.shape
    if ty.elem == "i1":
        if row.boolean is None:
            raise UnsupportedOpError(f"{info.name} of booleans")
        boolean = row.boolean
        return lambda batch, x, y: boolean(batch, x, y, tile)
    affine, numpy, dense, python = row.affine, row.numpy, row.torch, row.python
    if row.divides:
        of_zero = _by_zero(row, info)
        numpy, python = np_division(numpy, of_zero), _division(python, of_zero)
    python = unsigned_form(bits, python) if row.unsigned else python
    np_type = SIGNED[bits]
    through_torch = dense or through_numpy(numpy, dtype)
    half = 1 << (bits - 1)

    def run(batch: Batch, x: Any, y: Any) -> Value:
        tx, ty_ = type(x), type(y)
        if tx is not Tensor and ty_ is not Tensor:
            if tx is not Affine and ty_ is not Affine:
                number = python(int(x), int(y))
                return number if -half <= number < half else wrap(number, bits)
            v = None if affine is None else affine(x, y)
            if v is not None:
                if type(v) is not Affine:
                    return wrap(v, bits)
                if (fitting := fits(v, bits, batch, tile)) is not None:
                    return fitting
            if not _varies_in_tile(x) and not _varies_in_tile(y):
                lanes = batch.lanes
                with np.errstate(over="ignore"):
                    out = numpy(lane_array(x, lanes).astype(np_type), lane_array(y, lanes).astype(np_type))
                return from_lane_array(out.astype(np.int64), len(tile))
        lanes = batch.lanes
        x, y = dense_int(x, lanes, tile, dtype), dense_int(y, lanes, tile, dtype)
        if dense is torch.minimum or dense is torch.maximum:
            x, y = as_tensor(x, dtype), as_tensor(y, dtype)
        return through_torch(x, y)

    return run


def _varies_in_tile(v: Value) -> bool:
    return type(v) is Affine and any(v.tile_strides)


for _name, _row in _BINARY.items():
    op(_name, symbolic=_row.symbolic, addressing=_row.addressing, native=_row.native, picks=_row.picks)(
        partial(_binary, _row)
    )
op("tt.mulhiui", native=forms.upper_half)(_upper_half)


@op("math.absi", native=forms.absolute)
def _absi(info: OpInfo) -> Callable[..., Value]:
    ty = info.ty

    def run(batch: Batch, x: Value) -> Value:
        if type(x) is int:
            return wrap(abs(x), ty.bits)
        if type(x) is Affine and x.least >= 0:
            return x
        return torch.abs(dense_int(x, batch.lanes, ty.shape, ty.dtype))  # type: ignore[arg-type]

    return run
