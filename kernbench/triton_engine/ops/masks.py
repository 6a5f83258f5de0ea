"""Boolean arithmetic: masks, which are boxes where they can be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from kernbench.triton_engine.values import Box, Value, dense_mask

from .registry import UnsupportedOpError


def mask_and(b: Any, x: Value, y: Value, tile: tuple[int, ...]) -> Value:
    """Conjunction of two masks; boxes stay boxes."""
    if type(x) is not Tensor and type(x) is not Box:
        return y if x else False
    if type(y) is not Tensor and type(y) is not Box:
        return x if y else False
    if type(x) is Box and type(y) is Box:
        return _intersect(x, y)
    return dense_mask(x, b.lanes, tile) & dense_mask(y, b.lanes, tile)


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


def boolean_form(name: str, tile: tuple[int, ...]) -> Callable[..., Value]:
    """An integer operation on ``i1``, of numbers 0 and -1."""
    if name in ("andi", "muli", "minui", "maxsi"):
        return lambda b, x, y: mask_and(b, x, y, tile)
    if name in ("ori", "maxui", "minsi"):

        def either(b: Any, x: Any, y: Any) -> Value:
            for p, q in ((x, y), (y, x)):
                if type(p) is not Tensor and type(p) is not Box:
                    return True if p else q
            return dense_mask(x, b.lanes, tile) | dense_mask(y, b.lanes, tile)

        return either
    if name in ("xori", "addi", "subi"):

        def differ(b: Any, x: Any, y: Any) -> Value:
            x, y = dense_mask(x, b.lanes, tile), dense_mask(y, b.lanes, tile)
            if type(x) is Tensor or type(y) is Tensor:
                if type(y) is not Tensor:
                    return ~x if y else x
                if type(x) is not Tensor:
                    return ~y if x else y
                return x ^ y
            return bool(x) != bool(y)

        return differ
    if name in ("divui", "divsi"):  # by 1, as by 0 gives 0; -1 // -1 wraps to -1
        return lambda b, x, y: mask_and(b, x, y, tile)
    if name == "shrsi":  # the sign fills
        return lambda b, x, y: x
    if name in ("shli", "shrui"):  # a shift by 1 leaves nothing

        def shifted(b: Any, x: Any, y: Any) -> Value:
            y = dense_mask(y, b.lanes, tile)
            return mask_and(b, x, ~y if type(y) is Tensor else not y, tile)

        return shifted
    if name in ("remui", "remsi"):
        return lambda b, x, y: False
    raise UnsupportedOpError(f"arith.{name} of booleans")
