"""Tensors that an operator takes and gives, as far as its time depends on them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import NamedTuple

from kernbench.topology.dtypes import ITEM_BYTES, canonical_dtype

Shape = tuple[int, ...]
Shapes = Sequence[Shape]


class Operand(NamedTuple):
    """A tensor that an operator takes or gives.

    Attributes:
        shape: elements along each dimension.
        format: short name of the number format of its values (``"bf16"``).
        values: numbers in one element: two of a complex one, two of a packed pair of four bits.
    """

    shape: Shape
    format: str
    values: int = 1

    @property
    def nbytes(self) -> float:
        """Bytes."""
        return prod(self.shape) * self.values * ITEM_BYTES[self.format]

    @property
    def complex(self) -> bool:
        """Whether its elements are pairs of real and imaginary parts."""
        return self.values == 2 and self.format != "fp4"

    @classmethod
    def of(cls, shape: Sequence[int], dtype: object) -> Operand:
        """An operand whose dtype is torch's own or a name; one that descriptions do not know counts as the widest float."""
        dims = tuple(int(dim) for dim in shape)
        return cls(dims, *_format(str(dtype)))


@cache
def _format(dtype: str) -> tuple[str, int]:
    name = dtype.removeprefix("torch.")
    if name in _PACKED:
        return _PACKED[name]
    try:
        return canonical_dtype(name), 1
    except ValueError:
        return "fp64", 1


_PACKED = {
    "complex32": ("fp16", 2),
    "complex64": ("fp32", 2),
    "complex128": ("fp64", 2),
    "float4_e2m1fn_x2": ("fp4", 2),
}

Operands = Sequence[Operand]


def nbytes_of(operands: Operands) -> float:
    """Bytes of all operands."""
    return sum(operand.nbytes for operand in operands)


def everything(given: Operands, made: Operands) -> float:
    """Every operand is read and every result written, once."""
    return nbytes_of(given) + nbytes_of(made)
