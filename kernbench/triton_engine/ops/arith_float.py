"""Floating-point arithmetic and elementary functions.

Every operation rounds to its type, as on hardware: torch computes fp16 and bf16 elementwise operations in fp32 and
rounds once. Uniform scalars are Python floats already rounded to their type.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernbench.triton_engine.batch import Batch
from kernbench.triton_engine.frontend.program import OpInfo
from kernbench.triton_engine.frontend.types import Ty
from kernbench.triton_engine.native import forms
from kernbench.triton_engine.rounding import fused, narrowed
from kernbench.triton_engine.values import Value, as_tensor

from .registry import Work, op


def round_to(value: float, dtype: torch.dtype) -> float:
    """A Python float rounded to ``dtype``."""
    if dtype is torch.float64:
        return value
    return float(narrowed(torch.tensor(value, dtype=torch.float64), dtype).to(torch.float64))


def _python_division(a: float, b: float) -> float:
    if b == 0.0:
        if a == 0.0 or math.isnan(a):
            return math.nan
        return math.copysign(math.inf, a) * math.copysign(1.0, b)
    return a / b


def _arithmetic(
    python: Callable[[float, float], float], dense: Callable[..., Tensor]
) -> Callable[[OpInfo], Callable[..., Value]]:
    """Binary arithmetic."""

    def build(info: OpInfo) -> Callable[..., Value]:
        dtype = info.ty.dtype
        reuse = info.reusable

        def run(batch: Batch, x: Any, y: Any) -> Value:
            if type(x) is Tensor:
                if type(y) is Tensor:
                    xs, ys = x.shape, y.shape
                    if 0 in reuse and (xs == ys or _covers(xs, ys)):
                        return dense(x, y, out=x)
                    if 1 in reuse and (xs == ys or _covers(ys, xs)):
                        return dense(x, y, out=y)
                    return dense(x, y)
                if 0 in reuse:
                    return dense(x, y, out=x)
                return dense(x, y)
            if type(y) is Tensor:
                x = torch.tensor(x, dtype=dtype)
                return dense(x, y, out=y) if 1 in reuse else dense(x, y)
            try:
                return round_to(python(x, y), dtype)
            except OverflowError:
                return math.inf

        return run

    return build


def _arithmetic_into(dense: Callable[..., Tensor]) -> Callable[[OpInfo], Callable[..., bool]]:
    """The same operation with its result in memory; IEEE arithmetic gives the same bits wherever it is written."""

    def build(info: OpInfo) -> Callable[..., bool]:
        dtype = info.ty.dtype

        def run(out: Tensor, x: Value, y: Value) -> bool:
            if type(x) is Tensor:
                shape = (
                    x.shape if type(y) is not Tensor or y.shape == x.shape else torch.broadcast_shapes(x.shape, y.shape)
                )
            elif type(y) is Tensor:
                x, shape = torch.tensor(x, dtype=dtype), y.shape
            else:
                return False
            if shape != out.shape:
                return False
            dense(x, y, out=out)
            return True

        return run

    return build


def _covers(big: torch.Size, small: torch.Size) -> bool:
    return all(m == 1 or m == n for n, m in zip(big, small, strict=True))


for _names, _python, _dense, _form in (
    (("arith.addf",), operator.add, torch.add, forms.floating("fadd")),
    (("arith.subf",), operator.sub, torch.sub, forms.floating("fsub")),
    (("arith.mulf",), operator.mul, torch.mul, forms.floating("fmul")),
    (("arith.divf", "tt.precise_divf"), _python_division, torch.div, forms.floating("fdiv")),
):
    op(*_names, flops=1, unit="vector", inplace=True, into=_arithmetic_into(_dense), native=_form)(
        _arithmetic(_python, _dense)
    )


def _extremum(dense: Callable[[Tensor, Tensor], Tensor]) -> Callable[[OpInfo], Callable[..., Value]]:
    def build(info: OpInfo) -> Callable[..., Value]:
        dtype = info.ty.dtype
        reuse = info.reusable

        def run(batch: Batch, x: Value, y: Value) -> Value:
            if type(x) is not Tensor and type(y) is not Tensor:
                return float(dense(as_tensor(x, torch.float64), as_tensor(y, torch.float64)))
            if reuse:
                k = reuse[0]
                mine, other = (x, y) if k == 0 else (y, x)
                if type(mine) is Tensor and (type(other) is not Tensor or _covers(mine.shape, other.shape)):
                    return dense(as_tensor(x, dtype), as_tensor(y, dtype), out=mine)  # type: ignore[call-arg]
            return dense(as_tensor(x, dtype), as_tensor(y, dtype))

        return run

    return build


#: ``maxnumf`` returns the number when one side is NaN, ``maximumf`` returns NaN.
op("arith.maxnumf", flops=1, unit="vector", inplace=True)(_extremum(torch.fmax))
op("arith.minnumf", flops=1, unit="vector", inplace=True)(_extremum(torch.fmin))
op("arith.maximumf", flops=1, unit="vector", inplace=True)(_extremum(torch.maximum))
op("arith.minimumf", flops=1, unit="vector", inplace=True)(_extremum(torch.minimum))


def _of_tensors(function: Callable[..., Tensor]) -> Callable[[OpInfo], Callable[..., Value]]:
    """A function of numbers that only torch has, of scalars too."""

    def build(info: OpInfo) -> Callable[..., Value]:
        dtype = info.ty.dtype

        def run(batch: Batch, *xs: Value) -> Value:
            out = function(*[as_tensor(x, dtype) for x in xs])
            return out if any(type(x) is Tensor for x in xs) else float(out)

        return run

    return build


op("arith.remf", flops=1, unit="vector")(_of_tensors(torch.fmod))


@op("tt.clampf", flops=2, unit="vector")
def _clampf(info: OpInfo) -> Callable[..., Value]:
    keep_nan = info.attrs.get("propagateNan") == "all"
    least, greatest = (torch.minimum, torch.maximum) if keep_nan else (torch.fmin, torch.fmax)
    return _of_tensors(lambda x, low, high: least(greatest(x, low), high))(info)


def elementwise(f: Callable[..., Tensor], takes_out: bool = False) -> Callable[[OpInfo], Callable[..., Value]]:
    """A builder from a torch function of one tensor; ``takes_out``: it can write over its operand."""

    def build(info: OpInfo) -> Callable[..., Value]:
        dtype = info.ty.dtype
        reuse = takes_out and bool(info.reusable)

        def run(batch: Batch, x: Value) -> Value:
            if type(x) is Tensor:
                return f(x, out=x) if reuse else f(x)
            return float(f(torch.tensor(x, dtype=dtype)).to(torch.float64))

        return run

    return build


op("math.fma", flops=2, unit="vector", native=forms.multiply_add)(_of_tensors(fused))

#: Elementary functions that torch has by the same name.
_SPECIAL = "exp exp2 expm1 log log2 log10 log1p sin cos tan sinh cosh tanh asin acos atan asinh acosh atanh sqrt rsqrt erf erfc"
for _name in _SPECIAL.split():
    op(f"math.{_name}", flops=1, unit="special", inplace=True)(elementwise(getattr(torch, _name), takes_out=True))

#: torch's vector sqrt is within one ulp; through fp64 it is correctly rounded.
op("tt.precise_sqrt", flops=1, unit="special")(elementwise(lambda x: torch.sqrt(x.to(torch.float64)).to(x.dtype)))

for _name, _function, _form in (
    ("math.floor", torch.floor, forms.intrinsic("floor")),
    ("math.ceil", torch.ceil, forms.intrinsic("ceil")),
    ("math.trunc", torch.trunc, forms.intrinsic("trunc")),
    ("math.roundeven", torch.round, forms.intrinsic("roundeven")),
    ("arith.negf", torch.neg, forms.floating("fneg")),
    ("math.absf", torch.abs, forms.intrinsic("fabs")),
):
    op(_name, flops=1, unit="vector", inplace=True, native=_form)(elementwise(_function, takes_out=True))


def _compared(info: OpInfo) -> Work:
    """One operation per comparison, of the operands' type."""
    ty = info.operand_types[0]
    return ty.numel, (ty.elem, "vector")


_PREDICATES = ("eq", "ne", "lt", "le", "gt", "ge")
_COMPARE: dict[str, Any] = {name: getattr(torch, name) for name in _PREDICATES}
_PY_COMPARE: dict[str, Any] = {name: getattr(operator, name) for name in _PREDICATES}
_SWAPPED = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
_NEGATED = {"eq": "ne", "ne": "eq", "lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}


@op(
    "arith.cmpf",
    flops=1,
    native=forms.compare_floats,
    work=_compared,
    result_type=lambda types: Ty("i1", types[0].shape),
)
def _cmpf(info: OpInfo) -> Callable[..., Value]:
    """``o..``: ordered, false if an operand is NaN; ``u..``: true then. ``une`` and ordered others are IEEE's own."""
    predicate = info.words[0]
    dtype = info.operand_types[0].dtype
    if predicate in ("true", "false"):
        value = predicate == "true"
        return lambda batch, x, y: value
    kind, rest = predicate[0], predicate[1:]
    if predicate in ("ord", "uno"):
        want = predicate == "uno"

        def nan_test(batch: Batch, x: Value, y: Value) -> Value:
            tensors = type(x) is Tensor or type(y) is Tensor
            out = torch.isnan(as_tensor(x, dtype)) | torch.isnan(as_tensor(y, dtype))
            out = out if want else ~out
            return out if tensors else bool(out)

        return nan_test
    # unordered x < y is not (x >= y); ordered != is (x < y) | (x > y), and unordered == is not that
    negate = kind == "u" and rest != "ne"
    name = _NEGATED[rest] if negate else rest
    one = predicate in ("one", "ueq")

    def run(batch: Batch, x: object, y: Any) -> Value:
        tx, ty = type(x) is Tensor, type(y) is Tensor
        if not tx and not ty:
            out = (x < y or x > y) if one else _PY_COMPARE[name](x, y)
            return not out if negate else out
        if not tx:
            result = _COMPARE[_SWAPPED[name]](y, torch.tensor(x, dtype=dtype))
        else:
            result = _COMPARE[name](x, y if ty else torch.tensor(y, dtype=dtype))
        if one:
            result = result & ~torch.isnan(as_tensor(x, dtype)) & ~torch.isnan(as_tensor(y, dtype))
        return ~result if negate else result

    return run


op("math.copysign", flops=1, unit="vector")(_of_tensors(torch.copysign))
op("math.powf", flops=1, unit="special")(_of_tensors(torch.pow))
