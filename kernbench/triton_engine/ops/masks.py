"""Boolean arithmetic: masks, which are boxes where they can be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from kernbench.triton_engine.batch import Batch
from kernbench.triton_engine.values import Box, Value, dense_mask


def mask_and(batch: Batch, x: Value, y: Value, tile: tuple[int, ...]) -> Value:
    """Conjunction of two masks; boxes stay boxes."""
    if type(x) is not Tensor and type(x) is not Box:
        return y if x else False
    if type(y) is not Tensor and type(y) is not Box:
        return x if y else False
    if type(x) is Box and type(y) is Box:
        return _intersect(x, y)
    return dense_mask(x, batch.lanes, tile) & dense_mask(y, batch.lanes, tile)


def _intersect(x: Box, y: Box) -> Box:
    bounds = []
    for p, q in zip(x.bounds, y.bounds, strict=True):
        if p is None or q is None:
            bounds.append(p if q is None else q)
            continue
        lo: Any = np.maximum(p[0], q[0])
        hi: Any = np.minimum(p[1], q[1])
        bounds.append((lo if np.ndim(lo) else int(lo), hi if np.ndim(hi) else int(hi)))
    return Box(tuple(bounds))


def picked(neutral: bool) -> Callable[[list[Any]], int | None]:
    """The operand that a conjunction (``neutral``: True) or disjunction of a mask and a boolean is."""

    def position(operands: list[Any]) -> int | None:
        for k, operand in enumerate(operands):
            if type(operand) is bool:
                return 1 - k if operand is neutral else k
        return None

    return position


def mask_or(batch: Batch, x: Value, y: Value, tile: tuple[int, ...]) -> Value:
    """Disjunction."""
    for p, q in ((x, y), (y, x)):
        if type(p) is not Tensor and type(p) is not Box:
            return True if p else q
    return dense_mask(x, batch.lanes, tile) | dense_mask(y, batch.lanes, tile)


def mask_xor(batch: Batch, x: Value, y: Value, tile: tuple[int, ...]) -> Value:
    """Where two masks differ."""
    x, y = dense_mask(x, batch.lanes, tile), dense_mask(y, batch.lanes, tile)
    if type(x) is Tensor or type(y) is Tensor:
        if type(y) is not Tensor:
            return ~x if y else x
        if type(x) is not Tensor:
            return ~y if x else y
        return x ^ y
    return bool(x) != bool(y)


def mask_shifted_out(batch: Batch, x: Value, y: Value, tile: tuple[int, ...]) -> Value:
    """``x`` where ``y`` does not hold: a shift by 1 leaves nothing of one bit."""
    y = dense_mask(y, batch.lanes, tile)
    return mask_and(batch, x, ~y if type(y) is Tensor else not y, tile)
