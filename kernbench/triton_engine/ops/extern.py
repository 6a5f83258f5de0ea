"""Calls of device math libraries (``libdevice``, ``ocml``) by symbol.

CUDA symbols are ``__nv_<name>f`` for fp32 and ``__nv_<name>`` for fp64; AMD ones ``__ocml_<name>_f32``/``_f64``. The
names below are without these decorations. Functions are evaluated in the operation's type.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernbench.triton_engine.batch import Batch
from kernbench.triton_engine.frontend.program import OpInfo
from kernbench.triton_engine.values import Value, dense_int, from_lane_array, wrap

from .registry import UnsupportedOpError, op
from .special_registers import KNOWN_REGISTERS, OF_THREADS, register_of, special_registers

_SQRT2 = math.sqrt(2.0)


def _wide(f: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Evaluate in fp64 and round once."""

    def run(*xs: Tensor) -> Tensor:
        return f(*(x.to(torch.float64) for x in xs)).to(xs[0].dtype)

    return run


def _round_away(x: Tensor) -> Tensor:
    """Halfway cases away from zero."""
    return (
        torch.trunc(x + torch.copysign(torch.full_like(x, 0.49999997), x))
        if x.dtype is torch.float32
        else torch.copysign(torch.floor(torch.abs(x) + 0.5), x)
    )


def _to_int(mode: Callable[[Tensor], Tensor], bits: int, unsigned: bool = False) -> Callable[[Tensor], Tensor]:
    lo, hi = (0, (1 << bits) - 1) if unsigned else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)

    def run(x: Tensor) -> Tensor:
        wide = mode(x.to(torch.float64)).nan_to_num(nan=0.0, posinf=float(hi), neginf=float(lo))
        top = float(hi) if bits < 64 else float(hi) - 1024
        return wide.clamp(float(lo), top).to(torch.int64).to(torch.int32 if bits == 32 else torch.int64)

    return run


_MODES: dict[str, Callable[[Tensor], Tensor]] = {
    "rn": torch.round,
    "rz": torch.trunc,
    "rd": torch.floor,
    "ru": torch.ceil,
}


def _fma(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    if x.dtype is torch.float32:
        return (x.to(torch.float64) * y.to(torch.float64) + z.to(torch.float64)).to(torch.float32)
    return x * y + z


def _rounded(f: Callable[..., Tensor], mode: str, dtype: torch.dtype | None = None) -> Callable[..., Tensor]:
    """An fp32 operation with a directed rounding: exact in fp64, then step to the wanted neighbour."""

    def run(*xs: Tensor) -> Tensor:
        exact = f(*(x.to(torch.float64) for x in xs))
        near = exact.to(dtype or xs[0].dtype)
        if mode == "rn":
            return near
        back = near.to(torch.float64)
        up, down = torch.tensor(math.inf, dtype=near.dtype), torch.tensor(-math.inf, dtype=near.dtype)
        high, low = torch.nextafter(near, up), torch.nextafter(near, down)
        if mode == "ru":
            return torch.where(back < exact, high, near)
        if mode == "rd":
            return torch.where(back > exact, low, near)
        return torch.where(back.abs() > exact.abs(), torch.where(near > 0, low, high), near)

    return run


def _ldexp(x: Tensor, e: Tensor) -> Tensor:
    return (x.to(torch.float64) * torch.exp2(e.to(torch.float64))).to(x.dtype)


def _popc(x: Tensor) -> Tensor:
    bits = x.dtype.itemsize * 8
    out = torch.zeros_like(x, dtype=torch.int32)
    for i in range(bits):
        out += ((x >> i) & 1).to(torch.int32)
    return out


def _clz(x: Tensor) -> Tensor:
    bits = x.dtype.itemsize * 8
    out = torch.full_like(x, bits, dtype=torch.int32)
    for i in range(bits):
        out = torch.where(((x >> i) & 1) != 0, torch.tensor(bits - 1 - i, dtype=torch.int32), out)
    return out


def _ffs(x: Tensor) -> Tensor:
    bits = x.dtype.itemsize * 8
    out = torch.zeros_like(x, dtype=torch.int32)
    for i in reversed(range(bits)):
        out = torch.where(((x >> i) & 1) != 0, torch.tensor(i + 1, dtype=torch.int32), out)
    return out


def _brev(x: Tensor) -> Tensor:
    bits = x.dtype.itemsize * 8
    out = torch.zeros_like(x)
    for i in range(bits):
        out = out | (((x >> i) & 1) << (bits - 1 - i))
    return out


def _mulhi(x: Tensor, y: Tensor) -> Tensor:
    return ((x.to(torch.int64) * y.to(torch.int64)) >> 32).to(torch.int32)


def _byte_perm(x: Tensor, y: Tensor, s: Tensor) -> Tensor:
    both = (x.to(torch.int64) & 0xFFFFFFFF) | ((y.to(torch.int64) & 0xFFFFFFFF) << 32)
    out = torch.zeros_like(both)
    for i in range(4):
        pick = (s.to(torch.int64) >> (4 * i)) & 7
        out |= ((both >> (8 * pick)) & 0xFF) << (8 * i)
    return out.to(torch.int32)


def _saturate(x: Tensor) -> Tensor:
    return torch.nan_to_num(x, nan=0.0).clamp(0.0, 1.0)


_ONE: dict[str, Callable[..., Tensor]] = {
    "abs": torch.abs, "fabs": torch.abs, "acos": torch.acos, "acosh": torch.acosh, "asin": torch.asin,
    "asinh": torch.asinh, "atan": torch.atan, "atanh": torch.atanh, "cbrt": _wide(lambda x: torch.sign(x) * x.abs() ** (1 / 3)),
    "ceil": torch.ceil, "cos": torch.cos, "cosh": torch.cosh, "cospi": _wide(lambda x: torch.cos(x * math.pi)),
    "erf": torch.erf, "erfc": torch.erfc, "erfcx": torch.special.erfcx, "erfinv": torch.erfinv,
    "erfcinv": _wide(lambda x: torch.erfinv(1 - x)),
    "exp": torch.exp, "exp10": _wide(lambda x: torch.pow(10.0, x)), "exp2": torch.exp2, "expm1": torch.expm1,
    "floor": torch.floor, "j0": torch.special.bessel_j0, "j1": torch.special.bessel_j1,
    "y0": torch.special.bessel_y0, "y1": torch.special.bessel_y1, "cyl_bessel_i0": torch.special.i0,
    "cyl_bessel_i1": torch.special.i1, "i0": torch.special.i0, "i1": torch.special.i1,
    "lgamma": torch.lgamma, "log": torch.log, "log10": torch.log10, "log1p": torch.log1p, "log2": torch.log2,
    "logb": lambda x: torch.floor(torch.log2(torch.abs(x))), "nearbyint": torch.round, "rint": torch.round,
    "normcdf": _wide(lambda x: 0.5 * torch.erfc(-x / _SQRT2)),
    "normcdfinv": _wide(lambda x: _SQRT2 * torch.erfinv(2 * x - 1)),
    "rcbrt": _wide(lambda x: torch.sign(x) * x.abs() ** (-1 / 3)), "round": _round_away, "rsqrt": torch.rsqrt,
    "sin": torch.sin, "sinh": torch.sinh, "sinpi": _wide(lambda x: torch.sin(x * math.pi)), "sqrt": torch.sqrt,
    "tan": torch.tan, "tanh": torch.tanh,
    "tgamma": _wide(lambda x: torch.exp(torch.lgamma(x)) * _gamma_sign(x)),
    "trunc": torch.trunc, "saturate": _saturate, "fast_cos": torch.cos, "fast_exp": torch.exp,
    "fast_exp10": _wide(lambda x: torch.pow(10.0, x)),
    "fast_log": torch.log, "fast_log10": torch.log10, "fast_log2": torch.log2, "fast_sin": torch.sin, "fast_tan": torch.tan,
    "fast_tanh": torch.tanh, "rsqrt_rn": torch.rsqrt,
    "isnan": lambda x: torch.isnan(x).to(torch.int32), "isinf": lambda x: torch.isinf(x).to(torch.int32),
    "isfinite": lambda x: torch.isfinite(x).to(torch.int32), "finite": lambda x: torch.isfinite(x).to(torch.int32),
    "signbit": lambda x: torch.signbit(x).to(torch.int32),
    "ilogb": lambda x: torch.floor(torch.log2(torch.abs(x))).to(torch.int32),
    "popc": _popc, "popcll": _popc, "clz": _clz, "clzll": _clz, "ffs": _ffs, "ffsll": _ffs, "brev": _brev, "brevll": _brev,
    "float_as_int": lambda x: x.view(torch.int32), "float_as_uint": lambda x: x.view(torch.int32),
    "int_as_float": lambda x: x.view(torch.float32), "uint_as_float": lambda x: x.view(torch.float32),
    "double_as_longlong": lambda x: x.view(torch.int64), "longlong_as_double": lambda x: x.view(torch.float64),
    "llrint": _to_int(torch.round, 64), "llround": _to_int(lambda x: torch.copysign(torch.floor(x.abs() + 0.5), x), 64),
}  # fmt: skip

_TWO: dict[str, Callable[..., Tensor]] = {
    "atan2": torch.atan2, "copysign": torch.copysign, "fdim": lambda x, y: torch.clamp_min(x - y, 0.0),
    "fmax": torch.fmax, "fmin": torch.fmin, "fmod": torch.fmod, "hypot": torch.hypot, "ldexp": _ldexp, "scalbn": _ldexp,
    "nextafter": torch.nextafter, "pow": torch.pow, "powi": torch.pow, "pown": torch.pow, "fast_pow": torch.pow,
    "remainder": _wide(lambda x, y: x - y * torch.round(x / y)),
    "div": torch.div, "fast_div": torch.div, "fast_divide": torch.div, "max": torch.maximum, "min": torch.minimum,
    "mulhi": _mulhi, "mul24": lambda x, y: x * y, "rhadd": lambda x, y: ((x.to(torch.int64) + y + 1) >> 1).to(x.dtype),
    "hadd": lambda x, y: ((x.to(torch.int64) + y) >> 1).to(x.dtype),
}  # fmt: skip
for _mode in ("rn", "rz", "rd", "ru"):
    for _symbol, _exact in (("add", torch.add), ("sub", torch.sub), ("mul", torch.mul), ("div", torch.div)):
        _TWO[f"{_symbol}_{_mode}"] = _rounded(_exact, _mode)
    _ONE[f"sqrt_{_mode}"] = _rounded(torch.sqrt, _mode)
    _ONE[f"rcp_{_mode}"] = _rounded(torch.reciprocal, _mode)
    for _from in ("float", "double"):
        _ONE[f"{_from}2int_{_mode}"] = _to_int(_MODES[_mode], 32)
        _ONE[f"{_from}2uint_{_mode}"] = _to_int(_MODES[_mode], 32, True)
        _ONE[f"{_from}2ll_{_mode}"] = _to_int(_MODES[_mode], 64)
    _ONE[f"double2float_{_mode}"] = _rounded(lambda x: x, _mode, torch.float32)
    for _from in ("int", "ll"):
        _ONE[f"{_from}2float_{_mode}"] = lambda x: x.to(torch.float64).to(torch.float32)
        _ONE[f"{_from}2double_{_mode}"] = lambda x: x.to(torch.float64)

_THREE: dict[str, Callable[..., Tensor]] = {"fma": _fma, "mad": _fma, "byte_perm": _byte_perm,
    "norm3d": lambda x, y, z: torch.sqrt(x * x + y * y + z * z),
    "sad": lambda x, y, z: torch.abs(x - y) + z,
}  # fmt: skip
for _mode in ("rn", "rz", "rd", "ru"):
    _THREE[f"fma_{_mode}"] = _rounded(lambda x, y, z: x * y + z, _mode)

#: Every function by undecorated name.
FUNCTIONS = {**_ONE, **_TWO, **_THREE}


def _gamma_sign(x: Tensor) -> Tensor:
    negative = (x < 0) & (torch.remainder(torch.floor(x), 2) != 0)
    return torch.where(negative, -1.0, 1.0)


def function_of(symbol: str) -> Callable[..., Tensor] | None:
    """The implementation of a device-library symbol, or None."""
    name = symbol
    if match := re.fullmatch(r"__nv_(\w+)", symbol):
        name = match[1]
        if name in FUNCTIONS and not (name.endswith("f") and name[:-1] in FUNCTIONS):
            return FUNCTIONS[name]
        for stripped in (
            name.removesuffix("f"),
            name.removesuffix("d"),
            re.sub(r"^f(add|sub|mul|div|sqrt|rcp|ma)_", r"\1_", name),
            re.sub(r"^d(add|sub|mul|div|sqrt|rcp)_", r"\1_", name),
            re.sub(r"_(f|d)$", "", name),
            re.sub(r"^(fast_\w+)f$", r"\1", name),
        ):
            if stripped in FUNCTIONS:
                return FUNCTIONS[stripped]
        return FUNCTIONS.get(name.replace("fmaf_", "fma_").removesuffix("f"))
    if match := re.fullmatch(r"__ocml_(\w+?)_(?:f16|f32|f64)", symbol):
        name = match[1].removeprefix("native_")
        return FUNCTIONS.get(name)
    return FUNCTIONS.get(name)


def _tells_threads(info: OpInfo) -> bool:
    register = register_of(str(info.attrs.get("symbol", "")))
    return register is not None and OF_THREADS.fullmatch(register.partition(".")[0]) is not None


def _special_register(info: OpInfo, name: str) -> Callable[..., Value]:
    """What a special register holds in each lane."""

    def run(batch: Batch) -> Value:
        nowhere = np.zeros((1,) * len(batch.lanes), dtype=np.int64)
        thread = nowhere if batch.threads is None else batch.threads
        value = special_registers(batch.ids, batch.execution.grid, thread, info.threads, info.warp_size)[name]
        if type(value) is not np.ndarray:
            return wrap(int(value), info.ty.bits)
        dtype = np.int32 if info.ty.bits == 32 else np.int64
        return from_lane_array(value.astype(np.uint64).astype(dtype).astype(np.int64))

    return run


@op("tt.extern_elementwise", flops=1, unit="special", tells_threads=_tells_threads)
def _extern(info: OpInfo) -> Callable[..., Value]:
    symbol = str(info.attrs.get("symbol", ""))
    register = register_of(symbol)
    if register is not None and register in KNOWN_REGISTERS and not info.operand_types:
        return _special_register(info, register)
    found = function_of(symbol)
    if found is None:
        raise UnsupportedOpError(f"kernel {info.kernel}: device function {symbol} is not supported\n  at {info.loc}")
    function: Callable[..., Tensor] = found
    types = info.operand_types
    ty = info.ty

    def run(batch: Batch, *xs: Any) -> Value:
        tensors = []
        uniform = True
        for x, t in zip(xs, types, strict=True):
            if t.is_int:
                x = dense_int(x, batch.lanes, t.shape, t.dtype)
            if type(x) is Tensor:
                uniform = False
            else:
                x = torch.full((1,) * (len(batch.lanes) + len(t.shape)), x, dtype=t.dtype)
            tensors.append(x)
        out = function(*tensors)
        if out.dtype is not ty.dtype:
            out = (out != 0) if ty.elem == "i1" else out.to(ty.dtype)
        if uniform and not ty.is_int:
            return float(out.reshape(-1)[0].to(torch.float64))
        return out

    return run
