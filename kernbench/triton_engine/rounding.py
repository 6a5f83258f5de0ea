"""Floating arithmetic rounded once: in a direction, and fused multiply-adds.

The processor rounds in the direction that its control register says, so numpy's sums, products, quotients, roots and
conversions of fp32 and fp64 do too, subnormal and infinite results included. A result *rounded to odd* (truncated, with the
last bit set where that was inexact) may be rounded again to a format of at least two bits less, as if it had been rounded once
(Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums", 2008).
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .fixed_width import of_nan

#: By machine: the C library's codes of rounding to nearest, down, up and towards zero.
_CODES = {
    "x86_64": {"rn": 0, "rd": 0x400, "ru": 0x800, "rz": 0xC00},
    "aarch64": {"rn": 0, "ru": 0x400000, "rd": 0x800000, "rz": 0xC00000},
}


@cache
def _libm() -> ctypes.CDLL:
    library = ctypes.CDLL("libm.so.6")
    library.fesetround.argtypes = [ctypes.c_int]
    library.fma.argtypes, library.fma.restype = [ctypes.c_double] * 3, ctypes.c_double
    library.fmaf.argtypes, library.fmaf.restype = [ctypes.c_float] * 3, ctypes.c_float
    return library


@contextmanager
def rounding(mode: str) -> Iterator[None]:
    """Within it numpy rounds to nearest (``rn``), down (``rd``), up (``ru``) or towards zero (``rz``)."""
    if mode == "rn":
        yield
        return
    codes = _CODES.get(platform.machine())
    if codes is None:
        raise NotImplementedError(f"rounding in a direction ({mode}) is not known on {platform.machine()} processors")
    _libm().fesetround(codes[mode])
    try:
        yield
    finally:
        _libm().fesetround(codes["rn"])


def directed(f: Callable[..., Any], mode: str) -> Callable[..., np.ndarray]:
    """A function of numpy arrays, rounded in a direction."""

    def run(*xs: np.ndarray) -> np.ndarray:
        with rounding(mode), np.errstate(all="ignore"):
            return np.asarray(f(*xs))

    return run


def multiply_add(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """``x * y + z`` of fp32 or fp64 arrays, rounded once, in the direction that is set."""
    single = x.dtype == np.float32
    function = np.frompyfunc(_libm().fmaf if single else _libm().fma, 3, 1)
    with np.errstate(all="ignore"):
        return np.asarray(function(x, y, z), dtype=np.float32 if single else np.float64)


def to_odd(x: np.ndarray) -> np.ndarray:
    """fp64 as fp32, rounded to odd."""
    with np.errstate(all="ignore"):
        near = x.astype(np.float32)
        back = near.astype(np.float64)
        bits = near.view(np.int32)
        bits = np.where(np.abs(back) > np.abs(x), bits - 1, bits)
    return np.where((back != x) & np.isfinite(x), bits | 1, bits).view(np.float32)


def fused_to_odd(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """``x * y + z`` of fp64 arrays whose products are exact, rounded to odd."""
    with np.errstate(all="ignore"):
        product = x * y
        total = product + z
        part = total - product
        lost = (product - (total - part)) + (z - part)  # exact (Knuth, 4.2.2)
    bits = total.view(np.int64)
    change = np.where((lost > 0) == (total > 0), 1, -1)
    odd = (lost != 0) & (bits & 1 == 0) & np.isfinite(total)
    return np.where(odd, bits + change, bits).view(np.float64)


def fused(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """``x * y + z`` of tensors of one floating type, rounded once to nearest."""
    if x.dtype is torch.float64:
        return torch.from_numpy(multiply_add(x.numpy(), y.numpy(), z.numpy()))
    total = fused_to_odd(*(v.to(torch.float64).numpy() for v in (x, y, z)))
    return narrowed(torch.from_numpy(total), x.dtype)


def to_tf32(x: Tensor) -> Tensor:
    """float32 with a mantissa of 10 bits, ties to even: what a tensor map of type ``TFLOAT32`` reads."""
    bits = x.contiguous().view(torch.int32)
    nearest = (bits + (bits >> 13 & 1) + 0xFFF) & ~0x1FFF
    return torch.where(x.isfinite(), nearest.view(torch.float32), x)


def narrowed(x: Tensor, dtype: torch.dtype) -> Tensor:
    """fp64 as a narrower type, rounded once to nearest: torch goes from fp64 to 16 bits by fp32."""
    return (torch.from_numpy(to_odd(x.numpy())) if dtype.itemsize < 4 else x).to(dtype)


def from_integers(x: Tensor, dtype: torch.dtype, unsigned: bool) -> Tensor:
    """Integers as floats, rounded once to nearest; ``unsigned``: what the bits of a signed tensor mean."""
    numbers = x.numpy().view(np.dtype(f"u{x.dtype.itemsize}")) if unsigned else x.numpy()
    if dtype.itemsize >= 4:
        return torch.from_numpy(numbers.astype(np.float32 if dtype is torch.float32 else np.float64))
    wide = numbers.astype(np.float64)
    if x.dtype.itemsize == 8:  # of numbers beyond fp64's, the lowest 11 bits become one
        sticky = (numbers >> 11) | (numbers & 0x7FF != 0)
        wide = np.where(np.abs(wide) >= 2.0**53, np.ldexp(sticky.astype(np.float64), 11), wide)
    return narrowed(torch.from_numpy(wide), dtype)


def saturated(x: np.ndarray, whole: Callable[[Any], Any], bits: int, unsigned: bool = False) -> np.ndarray:
    """Floats, rounded by ``whole``, as integers: the closest there is, and of NaN what NVIDIA's conversions make. Signed arrays
    hold an unsigned result's bits."""
    low, high = (0, (1 << bits) - 1) if unsigned else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    none, missing = np.isnan(x), of_nan(bits, unsigned, x.dtype.itemsize * 8)
    x = whole(np.where(none, 0.0, x.astype(np.float64)))
    small, large = x <= float(low), x >= float(high)
    inner = np.where(small | large, 0.0, x)
    numbers = inner.astype(np.uint64 if unsigned else np.int64)
    kind = np.dtype(f"{'u' if unsigned else 'i'}{bits // 8}")
    out = np.where(small, kind.type(low), np.where(large, kind.type(high), numbers.astype(kind)))
    return np.where(none, kind.type(missing), out).view(np.dtype(f"i{bits // 8}"))
