"""Element types and reductions by nccl-tests' names, and what numpy makes of them.

numpy has no bfloat16: it is computed in float32 and rounded after every step, which is what hardware and torch do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class ElementType:
    """One ``-d`` of nccl-tests.

    Attributes:
        name: nccl-tests' name.
        torch_name: attribute of ``torch``.
        itemsize: bytes per element.
        numpy: dtype that holds its values exactly.
        rounded: brings the result of an operation on that dtype back to the element type's values, in place.
    """

    name: str
    torch_name: str
    itemsize: int
    numpy: np.dtype[Any]
    rounded: Callable[[Array], Array] = lambda values: values

    @property
    def is_float(self) -> bool:
        return self.numpy.kind == "f"

    def widened(self, values: Array) -> Array:
        """``values`` in the type that wide sums are kept in: 16-bit floats in float32. The caller must not write to it."""
        return values.astype(np.float32) if self.numpy == np.float16 else values

    def narrowed(self, values: Array) -> Array:
        """A wide sum, rounded to the element type; may be ``values`` itself, rounded in place."""
        if self.torch_name == "bfloat16":
            return self.rounded(values)
        return values.astype(self.numpy) if values.dtype != self.numpy else values


def round_to_bfloat16(values: Array) -> Array:
    """Round float32 ``values`` in place to the nearest bfloat16, ties to even; infinities stay."""
    bits = values.view(np.uint32)
    bits += 0x7FFF + ((bits >> np.uint32(16)) & np.uint32(1))
    bits &= np.uint32(0xFFFF0000)
    return values


ELEMENT_TYPES = {
    row.name: row
    for row in (
        ElementType("int8", "int8", 1, np.dtype(np.int8)),
        ElementType("uint8", "uint8", 1, np.dtype(np.uint8)),
        ElementType("int32", "int32", 4, np.dtype(np.int32)),
        ElementType("int64", "int64", 8, np.dtype(np.int64)),
        ElementType("half", "float16", 2, np.dtype(np.float16)),
        ElementType("float", "float32", 4, np.dtype(np.float32)),
        ElementType("double", "float64", 8, np.dtype(np.float64)),
        ElementType("bfloat16", "bfloat16", 2, np.dtype(np.float32), round_to_bfloat16),
    )
}

COMBINE: dict[str, Callable[..., Array]] = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "avg": np.add,
}
"""``-o`` of nccl-tests -> how two values combine."""


def finish(op: str, total: Array, members: int, element: ElementType) -> Array:
    """What is left to do to the combination of all members: the division of ``avg``; integers truncate toward zero."""
    if op != "avg":
        return total
    if element.is_float:
        return element.rounded(np.divide(total, total.dtype.type(members), out=total))
    # in Python's own width: the divisor need not fit the element type, the quotient does
    wide = total.astype(np.int64)
    return ((wide - np.fmod(wide, members)) // members).astype(total.dtype)


class Scratch:
    """Memory that is used again and again: fresh pages for every message would cost more than filling them."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def array(self, length: int, dtype: np.dtype[Any]) -> Array:
        """``[length]`` unspecified values, valid until the next call."""
        nbytes = length * dtype.itemsize
        if nbytes > len(self._memory):
            self._memory = np.empty(nbytes, np.uint8)
        return self._memory[:nbytes].view(dtype)


class Inputs:
    """What each rank contributes: random values, the same for the same seed.

    A rank's buffer repeats a pattern of prime length, so that it is filled at the speed of a copy, and yet a cell that
    lands in the wrong place shows.
    """

    PERIOD = 1_048_573

    def __init__(self, seed: int, element: ElementType, op: str) -> None:
        self._seed = seed
        self._element = element
        self._op = op
        self._patterns: dict[int, Array] = {}

    def of(self, rank: int, begin: int, end: int, scratch: Scratch | None = None) -> Array:
        """Elements ``[begin, end)`` of ``rank``'s buffer, read-only; in ``scratch`` if they must be put together."""
        pattern = self._pattern(rank, min(end, self.PERIOD))
        offset = begin % self.PERIOD
        if offset + end - begin <= len(pattern):
            return pattern[offset : offset + end - begin]
        out = (scratch or Scratch()).array(end - begin, pattern.dtype)
        filled = 0
        while filled < len(out):
            part = pattern[offset : offset + len(out) - filled]
            out[filled : filled + len(part)] = part
            filled += len(part)
            offset = 0
        return out

    def _pattern(self, rank: int, length: int) -> Array:
        known = self._patterns.get(rank)
        if known is None or len(known) < length:
            known = self._patterns[rank] = self._draw(np.random.default_rng([self._seed, rank]), length)
        return known

    def _draw(self, random: np.random.Generator, length: int) -> Array:
        kind = self._element.numpy
        if not self._element.is_float:
            low, high = (1, 4) if self._op == "prod" else (0, 100) if kind.kind == "u" else (-100, 100)
            return random.integers(low, high, length, dtype=kind)
        uniform = random.random(length, dtype=np.float64 if kind.itemsize == 8 else np.float32)
        # products stay near one; anything else has both signs, so that cancellation shows the order of a sum
        values = uniform * 0.5 + 0.75 if self._op == "prod" else uniform * 2 - 1
        return self._element.rounded(values.astype(kind))
