"""Arithmetic of affine integers that stays affine: a few Python integers, whatever the lanes and the tile.

Operands are ints or :class:`~.values.Aff`. A result of None is not affine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .values import Aff, exact_bounds


def fits(v: Aff, bits: int, b: Any, tile: tuple[int, ...]) -> Aff | None:
    """``v`` if no element leaves the signed range of ``bits``; bounds are made exact before giving up."""
    half = 1 << (bits - 1)
    if v.lo >= -half and v.hi < half:
        return v
    v.lo, v.hi = exact_bounds(v, b.lanes, tile)
    return v if v.lo >= -half and v.hi < half else None


def aff_add(x: int | Aff, y: int | Aff) -> int | Aff:
    """Sum."""
    if type(x) is not Aff:
        if type(y) is not Aff:
            return x + y
        x, y = y, x
    if type(y) is not Aff:
        return Aff(x.c + y, x.ls, x.ts, x.lo + y, x.hi + y, x.arr)
    return Aff(
        x.c + y.c,
        tuple([a + b for a, b in zip(x.ls, y.ls, strict=True)]),
        tuple([a + b for a, b in zip(x.ts, y.ts, strict=True)]),
        x.lo + y.lo,
        x.hi + y.hi,
        _arr_sum(x.arr, y.arr, 1),
    )


def _arr_sum(a: np.ndarray | None, b: np.ndarray | None, sign: int) -> np.ndarray | None:
    if b is None:
        return a
    if a is None:
        return b if sign > 0 else -b
    return a + b if sign > 0 else a - b


def aff_neg(x: Aff) -> Aff:
    """Negative."""
    return Aff(
        -x.c, tuple([-a for a in x.ls]), tuple([-a for a in x.ts]), -x.hi, -x.lo, None if x.arr is None else -x.arr
    )


def aff_sub(x: int | Aff, y: int | Aff) -> int | Aff:
    """Difference."""
    if type(y) is not Aff:
        return aff_add(x, -y)
    return aff_add(x, aff_neg(y))


def aff_scale(x: int | Aff, k: int) -> int | Aff:
    """Product with an int."""
    if type(x) is not Aff:
        return x * k
    if k == 0:
        return 0
    lo, hi = (x.lo * k, x.hi * k) if k > 0 else (x.hi * k, x.lo * k)
    return Aff(
        x.c * k,
        tuple([a * k for a in x.ls]),
        tuple([a * k for a in x.ts]),
        lo,
        hi,
        None if x.arr is None else x.arr * k,
    )


def aff_mul(x: int | Aff, y: int | Aff) -> int | Aff | None:
    """Product, where one factor is uniform."""
    if type(y) is not Aff:
        return aff_scale(x, y)
    if type(x) is not Aff:
        return aff_scale(y, x)
    return None


def aff_div(x: int | Aff, y: int | Aff) -> int | Aff | None:
    """Quotient by a uniform divisor where it stays affine (truncating: only for operands of one sign)."""
    if type(y) is Aff or type(x) is not Aff or y <= 0 or x.lo < 0 or x.arr is not None:
        return None
    if x.hi < y:
        return 0
    if all(s % y == 0 for s in x.ls + x.ts):
        return Aff(x.c // y, tuple([s // y for s in x.ls]), tuple([s // y for s in x.ts]), x.lo // y, x.hi // y)
    return None


def aff_rem(x: int | Aff, y: int | Aff) -> int | Aff | None:
    """Remainder by a uniform divisor, for operands of one sign as in :func:`aff_div`."""
    if type(y) is Aff or type(x) is not Aff or y <= 0 or x.lo < 0:
        return None
    if x.hi < y:
        return x
    if x.arr is None and all(s % y == 0 for s in x.ls + x.ts):
        return x.c % y
    return None


def aff_shl(x: int | Aff, y: int | Aff) -> int | Aff | None:
    """Left shift by a uniform number of bits."""
    return aff_scale(x, 1 << y) if type(y) is not Aff and 0 <= y < 63 else None


def aff_minmax(pick_low: bool) -> Callable[[Any, Any], Any]:
    """Minimum or maximum, where bounds tell which side it is."""

    def run(x: int | Aff, y: int | Aff) -> int | Aff | None:
        xlo, xhi = (x.lo, x.hi) if type(x) is Aff else (x, x)
        ylo, yhi = (y.lo, y.hi) if type(y) is Aff else (y, y)
        if xhi <= ylo:
            return x if pick_low else y
        if yhi <= xlo:
            return y if pick_low else x
        return None

    return run
