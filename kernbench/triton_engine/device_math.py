"""The functions of device math libraries (``libdevice``, ``ocml``), on tensors.

A row's name is the function's without what its symbol says of types. Functions are evaluated in their operands' type; the last
bits of a result are torch's, or those of fp64's rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .fixed_width import np_mulhi, np_unsigned
from .rounding import directed, fused, multiply_add, rounding, saturated

Function = Callable[..., Tensor]

_SQRT2 = math.sqrt(2.0)


def _wide(f: Function) -> Function:
    """Evaluate in fp64 and round once."""

    def run(*xs: Tensor) -> Tensor:
        return f(*(x.to(torch.float64) for x in xs)).to(xs[0].dtype)

    return run


def _numpy(f: Callable[..., Any]) -> Function:
    """A function of numpy arrays."""

    def run(*xs: Tensor) -> Tensor:
        with np.errstate(all="ignore"):
            return torch.from_numpy(np.asarray(f(*(x.numpy() for x in xs))))

    return run


def _unsigned(f: Callable[..., Any]) -> Function:
    """A function of two integers, on the unsigned numbers of the same bits."""
    return _numpy(np_unsigned(f))


# -- floats -------------------------------------------------------------------------------------------------------------


def _round_away(x: Tensor) -> Tensor:
    """Halfway cases away from zero."""
    whole = torch.trunc(x)
    return torch.where((x - whole).abs() >= 0.5, whole + torch.copysign(torch.ones_like(x), x), whole)


def _sinpi(x: Tensor) -> Tensor:
    """Exact where the sine is a whole number: the argument is taken to half a turn before it meets pi."""
    turn = x - 2 * torch.round(x / 2)
    near = torch.where(turn.abs() > 0.5, torch.copysign(torch.ones_like(x), turn) - turn, turn)
    return torch.sin(near * math.pi)


def _cospi(x: Tensor) -> Tensor:
    return _sinpi(0.5 - (x - 2 * torch.round(x / 2)).abs())


def _cbrt(x: Tensor) -> Tensor:
    return torch.copysign(x.abs() ** (1 / 3), x)


def _gamma(x: Tensor) -> Tensor:
    def one(v: float) -> float:
        try:
            return math.gamma(v)
        except ValueError:  # a pole, or minus infinity
            return math.copysign(math.inf, v) if v == 0 else math.nan
        except OverflowError:
            return math.inf if v > 0 or math.floor(v) % 2 == 0 else -math.inf

    return torch.from_numpy(np.asarray(np.frompyfunc(one, 1, 1)(x.numpy()), dtype=np.float64))


def _exponent(x: np.ndarray) -> np.ndarray:
    return np.frexp(x)[1] - 1


def _logb(x: np.ndarray) -> np.ndarray:
    whole = _exponent(x).astype(x.dtype)
    return np.where(x == 0, -np.inf, np.where(np.isfinite(x), whole, np.abs(x))).astype(x.dtype)


def _ilogb(x: np.ndarray) -> np.ndarray:
    least, greatest = np.iinfo(np.int32).min, np.iinfo(np.int32).max
    special = np.where(np.isinf(x), greatest, least)
    return np.where(np.isfinite(x) & (x != 0), _exponent(x), special).astype(np.int32)


def _remainder(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The remainder of the quotient rounded to the nearest whole number, which is exact."""
    divisor = np.abs(y)
    rest = np.fmod(np.abs(x), divisor)
    quotient_is_odd = np.fmod(np.abs(x), 2 * divisor) >= divisor
    above = (rest > divisor - rest) | ((rest == divisor - rest) & quotient_is_odd)
    rest = np.where(above, rest - divisor, rest)
    out = np.where(np.signbit(x), -rest, rest)
    return np.where(np.isinf(y) & np.isfinite(x), x, out).astype(x.dtype)


def _fdim(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(x > y, x - y, torch.where(x.isnan() | y.isnan(), math.nan, 0.0)).to(x.dtype)


def _ldexp(x: np.ndarray, e: np.ndarray) -> np.ndarray:
    return np.ldexp(x, e)


def _norm(*xs: Tensor) -> Tensor:
    total = xs[0]
    for x in xs[1:]:
        total = torch.hypot(total, x)
    return total


def _high_of_reciprocal(x: Tensor) -> Tensor:
    """The reciprocal with the upper 32 of its bits."""
    return (x.reciprocal().view(torch.int64) & -(1 << 32)).view(torch.float64)


def _saturate(x: Tensor) -> Tensor:
    return torch.nan_to_num(x, nan=0.0).clamp(0.0, 1.0)


# -- integers -----------------------------------------------------------------------------------------------------------


def _popc(x: Tensor) -> Tensor:
    out = torch.zeros_like(x, dtype=torch.int32)
    for i in range(x.dtype.itemsize * 8):
        out += ((x >> i) & 1).to(torch.int32)
    return out


def _clz(x: Tensor) -> Tensor:
    bits = x.dtype.itemsize * 8
    out = torch.full_like(x, bits, dtype=torch.int32)
    for i in range(bits):
        out = torch.where(((x >> i) & 1) != 0, torch.tensor(bits - 1 - i, dtype=torch.int32), out)
    return out


def _ffs(x: Tensor) -> Tensor:
    out = torch.zeros_like(x, dtype=torch.int32)
    for i in reversed(range(x.dtype.itemsize * 8)):
        out = torch.where(((x >> i) & 1) != 0, torch.tensor(i + 1, dtype=torch.int32), out)
    return out


def _brev(x: Tensor) -> Tensor:
    bits = x.dtype.itemsize * 8
    out = torch.zeros_like(x)
    for i in range(bits):
        out = out | (((x >> i) & 1) << (bits - 1 - i))
    return out


def _byte_perm(x: Tensor, y: Tensor, s: Tensor) -> Tensor:
    both = (x.to(torch.int64) & 0xFFFFFFFF) | ((y.to(torch.int64) & 0xFFFFFFFF) << 32)
    out = torch.zeros_like(both)
    for i in range(4):
        pick = (s.to(torch.int64) >> (4 * i)) & 7
        out |= ((both >> (8 * pick)) & 0xFF) << (8 * i)
    return out.to(torch.int32)


def _mulhi(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The upper half of the product of signed numbers."""
    high = np_unsigned(np_mulhi)(x, y)
    return high - np.where(x < 0, y, 0) - np.where(y < 0, x, 0)


def _low_24(x: Tensor, signed: bool) -> Tensor:
    low = x.to(torch.int64) & 0xFFFFFF
    return torch.where(low >= 1 << 23, low - (1 << 24), low) if signed else low


def _average(x: Any, y: Any, up: int) -> Any:
    """Half of the sum, rounded down or up, without the sum's carry."""
    return (x & y) + ((x ^ y) >> 1) + ((x ^ y) & up)


def _distance(signed: bool) -> Function:
    """``|x - y| + z``."""

    def run(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        wide = [v.to(torch.int64) if signed else v.to(torch.int64) & 0xFFFFFFFF for v in (x, y)]
        return ((wide[0] - wide[1]).abs() + z).to(torch.int32)

    return run


# -- conversions --------------------------------------------------------------------------------------------------------

_WHOLE: dict[str, Callable[[Any], Any]] = {"rn": np.rint, "rz": np.trunc, "rd": np.floor, "ru": np.ceil}


def _to_int(whole: Callable[[Any], Any], bits: int, unsigned: bool = False) -> Function:
    return _numpy(lambda x: saturated(x, whole, bits, unsigned))


def _from_int(mode: str, dtype: Any, unsigned: bool) -> Function:
    def run(x: np.ndarray) -> np.ndarray:
        numbers = x.view(np.dtype(f"u{x.dtype.itemsize}")) if unsigned else x
        with rounding(mode):
            return numbers.astype(dtype)

    return _numpy(run)


def _rounded(f: Callable[..., Any], mode: str) -> Function:
    return _numpy(directed(f, mode))


def _reciprocal_root(x: np.ndarray) -> np.ndarray:
    return (1.0 / np.sqrt(x.astype(np.float64))).astype(x.dtype)


FUNCTIONS: dict[str, Function] = {
    "abs": torch.abs, "fabs": torch.abs, "iabs": torch.abs, "llabs": torch.abs,
    "acos": torch.acos, "acosh": torch.acosh, "asin": torch.asin, "asinh": torch.asinh,
    "atan": torch.atan, "atanh": torch.atanh, "cbrt": _wide(_cbrt),
    "ceil": torch.ceil, "cos": torch.cos, "cosh": torch.cosh, "cospi": _wide(_cospi),
    "erf": torch.erf, "erfc": torch.erfc, "erfcx": torch.special.erfcx, "erfinv": torch.erfinv,
    "erfcinv": _wide(lambda x: torch.special.ndtri(x / 2) / -_SQRT2),
    "exp": torch.exp, "exp10": _wide(lambda x: torch.pow(10.0, x)), "exp2": torch.exp2, "expm1": torch.expm1,
    "floor": torch.floor, "j0": torch.special.bessel_j0, "j1": torch.special.bessel_j1,
    "y0": torch.special.bessel_y0, "y1": torch.special.bessel_y1, "cyl_bessel_i0": torch.special.i0,
    "cyl_bessel_i1": torch.special.i1, "i0": torch.special.i0, "i1": torch.special.i1,
    "lgamma": torch.lgamma, "log": torch.log, "log10": torch.log10, "log1p": torch.log1p, "log2": torch.log2,
    "logb": _numpy(_logb), "nearbyint": torch.round, "rint": torch.round,
    "normcdf": _wide(lambda x: 0.5 * torch.erfc(-x / _SQRT2)), "normcdfinv": _wide(torch.special.ndtri),
    "rcbrt": _wide(lambda x: _cbrt(x).reciprocal()), "round": _round_away, "rsqrt": torch.rsqrt,
    "sin": torch.sin, "sinh": torch.sinh, "sinpi": _wide(_sinpi), "sqrt": torch.sqrt,
    "tan": torch.tan, "tanh": torch.tanh, "tgamma": _wide(_gamma), "trunc": torch.trunc, "saturate": _saturate,
    "fast_cos": torch.cos, "fast_exp": torch.exp, "fast_exp10": _wide(lambda x: torch.pow(10.0, x)),
    "fast_log": torch.log, "fast_log10": torch.log10, "fast_log2": torch.log2, "fast_sin": torch.sin, "fast_tan": torch.tan,
    "fast_tanh": torch.tanh, "rsqrt_rn": _numpy(_reciprocal_root), "rcp64h": _high_of_reciprocal,
    "isnan": lambda x: torch.isnan(x).to(torch.int32), "isinf": lambda x: torch.isinf(x).to(torch.int32),
    "isfinite": lambda x: torch.isfinite(x).to(torch.int32), "finite": lambda x: torch.isfinite(x).to(torch.int32),
    "signbit": lambda x: torch.signbit(x).to(torch.int32), "ilogb": _numpy(_ilogb),
    "popc": _popc, "popcll": _popc, "clz": _clz, "clzll": _clz, "ffs": _ffs, "ffsll": _ffs, "brev": _brev, "brevll": _brev,
    "float_as_int": lambda x: x.view(torch.int32), "float_as_uint": lambda x: x.view(torch.int32),
    "int_as_float": lambda x: x.view(torch.float32), "uint_as_float": lambda x: x.view(torch.float32),
    "double_as_longlong": lambda x: x.view(torch.int64), "longlong_as_double": lambda x: x.view(torch.float64),
    "double2hiint": lambda x: (x.view(torch.int64) >> 32).to(torch.int32),
    "double2loint": lambda x: x.view(torch.int64).to(torch.int32),
    "hiloint2double": lambda high, low: ((high.to(torch.int64) << 32) | (low.to(torch.int64) & 0xFFFFFFFF)).view(torch.float64),
    "llrint": _to_int(np.rint, 64), "llround": lambda x: _to_int(np.trunc, 64)(_round_away(x)),
    "atan2": torch.atan2, "copysign": torch.copysign, "fdim": _fdim,
    "fmax": torch.fmax, "fmin": torch.fmin, "fmod": torch.fmod, "hypot": torch.hypot,
    "ldexp": _numpy(_ldexp), "scalbn": _numpy(_ldexp), "nextafter": torch.nextafter,
    "pow": torch.pow, "powi": torch.pow, "pown": torch.pow, "fast_pow": torch.pow, "remainder": _numpy(_remainder),
    "div": torch.div, "fast_div": torch.div, "fast_divide": torch.div, "max": torch.maximum, "min": torch.minimum,
    "rhypot": _wide(lambda *xs: _norm(*xs).reciprocal()),
    "mulhi": _numpy(_mulhi), "mul64hi": _numpy(_mulhi), "umulhi": _unsigned(np_mulhi), "umul64hi": _unsigned(np_mulhi),
    "mul24": lambda x, y: (_low_24(x, True) * _low_24(y, True)).to(torch.int32),
    "umul24": lambda x, y: (_low_24(x, False) * _low_24(y, False)).to(torch.int32),
    "hadd": _numpy(lambda x, y: _average(x, y, 0)), "rhadd": _numpy(lambda x, y: _average(x, y, 1)),
    "uhadd": _unsigned(lambda x, y: _average(x, y, 0)), "urhadd": _unsigned(lambda x, y: _average(x, y, 1)),
    "fma": fused, "mad": fused, "byte_perm": _byte_perm, "sad": _distance(True), "usad": _distance(False),
    "norm3d": _wide(_norm), "norm4d": _wide(_norm),
    "rnorm3d": _wide(lambda *xs: _norm(*xs).reciprocal()), "rnorm4d": _wide(lambda *xs: _norm(*xs).reciprocal()),
}  # fmt: skip

for _mode, _to_whole in _WHOLE.items():
    for _symbol, _f in (("add", np.add), ("sub", np.subtract), ("mul", np.multiply), ("div", np.divide)):
        FUNCTIONS[f"{_symbol}_{_mode}"] = _rounded(_f, _mode)
    FUNCTIONS[f"sqrt_{_mode}"] = _rounded(np.sqrt, _mode)
    FUNCTIONS[f"rcp_{_mode}"] = _rounded(np.reciprocal, _mode)
    FUNCTIONS[f"fma_{_mode}"] = _rounded(multiply_add, _mode)
    FUNCTIONS[f"double2float_{_mode}"] = _rounded(lambda x: x.astype(np.float32), _mode)
    for _float, _dtype in (("float", np.float32), ("double", np.float64)):
        for _int, _bits in (("int", 32), ("ll", 64)):
            for _sign in ("", "u"):
                _name = _sign + _int
                FUNCTIONS[f"{_float}2{_name}_{_mode}"] = _to_int(_to_whole, _bits, _sign == "u")
                FUNCTIONS[f"{_name}2{_float}_{_mode}"] = _from_int(_mode, _dtype, _sign == "u")
