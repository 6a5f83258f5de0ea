"""Integer arithmetic, exact: two's complement wrap, truncating division, unsigned where the operation says so.

Three implementations per operation: on Python integers (uniform values), on affine values (symbolic, or per lane with
numpy when a scalar is not affine), and on tensors. The lane and tensor forms share one numpy function where torch
lacks the operation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernbench.triton_engine.affine import aff_add, aff_div, aff_minmax, aff_mul, aff_rem, aff_shl, aff_sub, fits
from kernbench.triton_engine.lift.program import OpInfo
from kernbench.triton_engine.values import (
    Aff,
    Value,
    as_tensor,
    dense_int,
    from_lane_array,
    lane_array,
    wrap,
)

from .fixed_width import (
    NP_SIGNED,
    nonzero,
    np_mulhi,
    np_shift,
    np_trunc_div,
    np_unsigned,
    through_numpy,
    trunc_div,
    trunc_rem,
    unsigned_form,
)
from .masks import boolean_form
from .registry import op

#: name: (python, affine, numpy, torch function or None to go through numpy)
_BINARY: dict[str, tuple[Any, Any, Any, Any]] = {
    "addi": (lambda a, b: a + b, aff_add, np.add, torch.add),
    "subi": (lambda a, b: a - b, aff_sub, np.subtract, torch.sub),
    "muli": (lambda a, b: a * b, aff_mul, np.multiply, torch.mul),
    "divsi": (trunc_div, aff_div, np_trunc_div, None),
    "remsi": (trunc_rem, aff_rem, lambda a, b: np.where(b == 0, a.dtype.type(0), np.fmod(a, nonzero(b))), None),
    "divui": (lambda a, b: a // b if b else 0, aff_div, np_unsigned(lambda a, b: a // nonzero(b)), None),
    "remui": (lambda a, b: a % b if b else 0, aff_rem, np_unsigned(lambda a, b: a % nonzero(b)), None),
    "floordivsi": (lambda a, b: a // b if b else 0, aff_div, lambda a, b: np.floor_divide(a, nonzero(b)), None),
    "ceildivsi": (lambda a, b: -(-a // b) if b else 0, None, lambda a, b: -np.floor_divide(-a, nonzero(b)), None),
    "andi": (lambda a, b: a & b, None, np.bitwise_and, torch.bitwise_and),
    "ori": (lambda a, b: a | b, None, np.bitwise_or, torch.bitwise_or),
    "xori": (lambda a, b: a ^ b, None, np.bitwise_xor, torch.bitwise_xor),
    "shli": (lambda a, b: a << b if 0 <= b < 64 else 0, aff_shl, np_shift(np.left_shift), None),
    "shrsi": (lambda a, b: a >> min(max(b, 0), 63), None, np_shift(np.right_shift, saturate=True), None),
    "shrui": (lambda a, b: a >> b if b < 64 else 0, None, np_unsigned(np_shift(np.right_shift)), None),
    "minsi": (min, aff_minmax(True), np.minimum, torch.minimum),
    "maxsi": (max, aff_minmax(False), np.maximum, torch.maximum),
    "minui": (min, None, np_unsigned(np.minimum), None),
    "maxui": (max, None, np_unsigned(np.maximum), None),
    "mulhiui": (None, None, np_unsigned(np_mulhi), None),
}
_UNSIGNED = {"divui", "remui", "shrui", "minui", "maxui", "mulhiui"}


def _binary(info: OpInfo) -> Callable[..., Value]:
    name = info.name.rpartition(".")[2]
    ty = info.ty
    if ty.elem == "i1":
        return boolean_form(name, ty.shape)
    python, affine, numpy, dense = _BINARY[name]
    bits, dtype, tile = ty.bits, ty.dtype, ty.shape
    if name == "mulhiui":
        python = lambda a, b: (a * b) >> bits  # noqa: E731
    if name in _UNSIGNED:
        python = unsigned_form(bits, python)
    np_type = NP_SIGNED[bits]
    through_torch = dense or through_numpy(numpy, dtype)
    half = 1 << (bits - 1)

    def run(b: Any, x: Any, y: Any) -> Value:
        tx, ty_ = type(x), type(y)
        if tx is not Tensor and ty_ is not Tensor:
            if tx is not Aff and ty_ is not Aff:
                v = python(int(x), int(y))
                return v if -half <= v < half else wrap(v, bits)
            if affine is not None:
                v = affine(x, y)
                if v is not None:
                    if type(v) is not Aff:
                        return wrap(v, bits)
                    v = fits(v, bits, b, tile)
                    if v is not None:
                        return v
            if not _varies_in_tile(x) and not _varies_in_tile(y):
                lanes = b.lanes
                with np.errstate(over="ignore"):
                    out = numpy(lane_array(x, lanes).astype(np_type), lane_array(y, lanes).astype(np_type))
                return from_lane_array(out.astype(np.int64), len(tile))
        lanes = b.lanes
        x, y = dense_int(x, lanes, tile, dtype), dense_int(y, lanes, tile, dtype)
        if dense is torch.minimum or dense is torch.maximum:
            x, y = as_tensor(x, dtype), as_tensor(y, dtype)
        return through_torch(x, y)

    return run


def _varies_in_tile(v: Any) -> bool:
    return type(v) is Aff and any(v.ts)


op(*(f"arith.{n}" for n in _BINARY if n != "mulhiui"), "tt.mulhiui")(_binary)


@op("math.absi")
def _absi(info: OpInfo) -> Callable[..., Value]:
    ty = info.ty

    def run(b: Any, x: Any) -> Value:
        if type(x) is int:
            return wrap(abs(x), ty.bits)
        if type(x) is Aff and x.lo >= 0:
            return x
        return torch.abs(dense_int(x, b.lanes, ty.shape, ty.dtype))  # type: ignore[arg-type]

    return run
