"""Integer functions that Python, numpy or torch lack, on numbers of fixed width.

Python forms take signed integers and need not wrap; numpy forms take arrays of the operation's width and do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

#: By bits.
UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
SIGNED = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}


def of_nan(bits: int, unsigned: bool, source_bits: int) -> int:
    """The integer that NVIDIA's conversions make of NaN: 0, or where a side has 64 bits the highest bit alone (PTX ISA,
    "cvt"; llvm 159530)."""
    if bits != 64 and source_bits != 64:
        return 0
    return 1 << (bits - 1) if unsigned else -(1 << (bits - 1))


def by_zero(bits: int) -> Callable[[Any], Any]:
    """What a quotient or a remainder by 0 is on NVIDIA's GPUs, of the dividend (an int or a signed array): all ones.

    The instructions of ``ptxas`` end so, for every width. Compilers divide numbers of 64 bits whose upper halves are 0 as
    numbers of 32 bits (``div.u32`` in the PTX of such a kernel), so that of them 32 ones are left (pytorch 135330, 165650).
    """
    if bits < 64:
        return lambda a: a * 0 - 1
    low = (1 << 32) - 1
    return lambda a: low * (a >> 32 == 0) - (a >> 32 != 0)


def trunc_div(a: int, b: int) -> int:
    """Quotient rounded towards zero."""
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


def trunc_rem(a: int, b: int) -> int:
    """Remainder with the sign of the dividend."""
    return a - b * trunc_div(a, b)


def unsigned_form(bits: int, f: Callable[[int, int], int]) -> Callable[[int, int], int]:
    """``f`` on the unsigned numbers of the same bits."""
    mask = (1 << bits) - 1
    return lambda a, b: f(a & mask, b & mask)


def np_unsigned(f: Callable[[Any, Any], Any]) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """``f`` on the unsigned view of signed arrays."""

    def run(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        signed = a.dtype
        unsigned = UNSIGNED[signed.itemsize * 8]
        return f(a.view(unsigned), b.view(unsigned)).astype(unsigned, copy=False).view(signed)

    return run


def nonzero(b: np.ndarray) -> np.ndarray:
    """A divisor with 1 in place of 0."""
    return np.where(b == 0, b.dtype.type(1), b)


def np_division(
    f: Callable[[Any, Any], Any], of_zero: Callable[[Any], Any]
) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """A quotient or remainder of arrays of one type that is ``of_zero`` of the dividend where the divisor is 0."""

    def run(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        zero = b == 0
        return np.where(zero, np.asarray(of_zero(a)).astype(a.dtype), f(a, nonzero(b))) if np.any(zero) else f(a, b)

    return run


def np_trunc_div(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Quotient rounded towards zero."""
    q = np.floor_divide(a, b)
    r = a - q * b
    return q + ((r != 0) & ((r < 0) != (a < 0))).astype(a.dtype)


def np_shift(f: Callable[[Any, Any], Any], saturate: bool = False) -> Callable[[Any, Any], Any]:
    """A shift that may exceed the width: 0 then, or as far as it goes (``saturate``)."""

    def run(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        width = a.dtype.itemsize * 8
        big = (b < 0) | (b >= width) if b.dtype.kind == "i" else b >= width
        shift = np.where(big, width - 1 if saturate else 0, b).astype(a.dtype)
        out = f(a, shift)
        return out if saturate else np.where(big, a.dtype.type(0), out)

    return run


def np_mulhi(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The upper half of the product of unsigned numbers."""
    bits = a.dtype.itemsize * 8
    if bits < 64:
        product = np.multiply(a, b, dtype=UNSIGNED[bits * 2])
        if product.ndim:  # little-endian: the upper half is every other element
            return np.ascontiguousarray(product).view(a.dtype)[..., 1::2]
        return (product >> UNSIGNED[bits * 2](bits)).astype(a.dtype)
    low = np.uint64(0xFFFFFFFF)
    s = np.uint64(32)
    a0, a1, b0, b1 = a & low, a >> s, b & low, b >> s
    mid = a1 * b0 + ((a0 * b0) >> s)
    mid2 = a0 * b1 + (mid & low)
    return a1 * b1 + (mid >> s) + (mid2 >> s)


def through_numpy(
    f: Callable[[np.ndarray, np.ndarray], np.ndarray], dtype: torch.dtype
) -> Callable[[Any, Any], Tensor]:
    """A numpy form as a function of tensors of ``dtype`` and ints; a scalar result keeps the number of dimensions."""
    np_type = SIGNED[dtype.itemsize * 8]

    def as_array(v: Tensor | int) -> np.ndarray:
        return v.numpy() if isinstance(v, Tensor) else np.array(v, dtype=np_type)

    def run(a: Tensor | int, b: Tensor | int) -> Tensor:
        x, y = as_array(a), as_array(b)
        ndim = max(x.ndim, y.ndim)
        out = np.asarray(f(np.asarray(x, order="C"), np.asarray(y, order="C")), order="C")
        return torch.from_numpy(out).reshape(out.shape if out.ndim else (1,) * ndim)

    return run
