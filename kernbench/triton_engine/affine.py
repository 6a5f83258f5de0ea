"""Arithmetic of affine integers that stays affine: a few Python integers, whatever the lanes and the tile.

Operands are ints or :class:`~.values.Affine`. A result of None is not affine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .lanes import Lanes
from .values import Affine, exact_bounds


def fits(v: Affine, bits: int, batch: Lanes, tile: tuple[int, ...]) -> Affine | None:
    """``v`` if no element leaves the signed range of ``bits``; bounds are made exact before giving up."""
    half = 1 << (bits - 1)
    if v.least >= -half and v.most < half:
        return v
    v.least, v.most = exact_bounds(v, batch.lanes, tile)
    return v if v.least >= -half and v.most < half else None


def aff_add(x: int | Affine, y: int | Affine) -> int | Affine:
    """Sum."""
    if type(x) is not Affine:
        if type(y) is not Affine:
            return x + y
        x, y = y, x
    if type(y) is not Affine:
        return Affine(x.constant + y, x.lane_strides, x.tile_strides, x.least + y, x.most + y, x.per_lane)
    return Affine(
        x.constant + y.constant,
        tuple([a + b for a, b in zip(x.lane_strides, y.lane_strides, strict=True)]),
        tuple([a + b for a, b in zip(x.tile_strides, y.tile_strides, strict=True)]),
        x.least + y.least,
        x.most + y.most,
        _per_lane_sum(x.per_lane, y.per_lane, 1),
    )


def _per_lane_sum(a: np.ndarray | None, b: np.ndarray | None, sign: int) -> np.ndarray | None:
    if b is None:
        return a
    if a is None:
        return b if sign > 0 else -b
    return a + b if sign > 0 else a - b


def aff_neg(x: Affine) -> Affine:
    """Negative."""
    return Affine(
        -x.constant,
        tuple([-a for a in x.lane_strides]),
        tuple([-a for a in x.tile_strides]),
        -x.most,
        -x.least,
        None if x.per_lane is None else -x.per_lane,
    )


def aff_sub(x: int | Affine, y: int | Affine) -> int | Affine:
    """Difference."""
    if type(y) is not Affine:
        return aff_add(x, -y)
    return aff_add(x, aff_neg(y))


def aff_scale(x: int | Affine, k: int) -> int | Affine:
    """Product with an int."""
    if type(x) is not Affine:
        return x * k
    if k == 0:
        return 0
    lo, hi = (x.least * k, x.most * k) if k > 0 else (x.most * k, x.least * k)
    return Affine(
        x.constant * k,
        tuple([a * k for a in x.lane_strides]),
        tuple([a * k for a in x.tile_strides]),
        lo,
        hi,
        None if x.per_lane is None else x.per_lane * k,
    )


def aff_mul(x: int | Affine, y: int | Affine) -> int | Affine | None:
    """Product, where one factor is uniform."""
    if type(y) is not Affine:
        return aff_scale(x, y)
    if type(x) is not Affine:
        return aff_scale(y, x)
    return None


def aff_div(x: int | Affine, y: int | Affine) -> int | Affine | None:
    """Quotient by a uniform divisor where it stays affine (truncating: only for operands of one sign)."""
    if type(y) is Affine or type(x) is not Affine or y <= 0 or x.least < 0 or x.per_lane is not None:
        return None
    if x.most < y:
        return 0
    if all(s % y == 0 for s in x.lane_strides + x.tile_strides):
        return Affine(
            x.constant // y,
            tuple([s // y for s in x.lane_strides]),
            tuple([s // y for s in x.tile_strides]),
            x.least // y,
            x.most // y,
        )
    return None


def aff_rem(x: int | Affine, y: int | Affine) -> int | Affine | None:
    """Remainder by a uniform divisor, for operands of one sign as in :func:`aff_div`."""
    if type(y) is Affine or type(x) is not Affine or y <= 0 or x.least < 0:
        return None
    if x.most < y:
        return x
    if x.per_lane is None and all(s % y == 0 for s in x.lane_strides + x.tile_strides):
        return x.constant % y
    return None


def aff_shl(x: int | Affine, y: int | Affine) -> int | Affine | None:
    """Left shift by a uniform number of bits."""
    return aff_scale(x, 1 << y) if type(y) is not Affine and 0 <= y < 63 else None


def aff_minmax(pick_low: bool) -> Callable[[Any, Any], Any]:
    """Minimum or maximum, where bounds tell which side it is."""

    def run(x: int | Affine, y: int | Affine) -> int | Affine | None:
        xlo, xhi = (x.least, x.most) if type(x) is Affine else (x, x)
        ylo, yhi = (y.least, y.most) if type(y) is Affine else (y, y)
        if xhi <= ylo:
            return x if pick_low else y
        if yhi <= xlo:
            return y if pick_low else x
        return None

    return run
