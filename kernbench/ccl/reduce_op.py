"""Reduction operations of collectives, by the names that everybody uses for them."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import torch

from kernbench.errors import KernbenchError


class ReduceOp(enum.Enum):
    """``torch.distributed.ReduceOp`` by value: ``ReduceOp.SUM`` is ``ReduceOp("sum")``."""

    SUM = "sum"
    PRODUCT = "product"
    MIN = "min"
    MAX = "max"
    AVG = "avg"
    BAND = "band"
    BOR = "bor"
    BXOR = "bxor"

    @classmethod
    def parse(cls, op: Any) -> ReduceOp:
        """Read an op given as ours, as a string (``"sum"``, ``"prod"``, ``"mean"``, any case) or as torch's own."""
        if isinstance(op, cls):
            return op
        text = op if isinstance(op, str) else str(op)
        name = text.rsplit(".", 1)[-1].lower()
        name = _ALIASES.get(name, name)
        try:
            return cls(name)
        except ValueError:
            known = ", ".join(member.value for member in cls)
            raise KernbenchError(f"unknown reduction {op!r}: expected one of {known}") from None

    def check_dtype(self, dtype: torch.dtype) -> None:
        """Raise :class:`KernbenchError` if the op is not defined for ``dtype``."""
        if self in _BITWISE and (dtype.is_floating_point or dtype.is_complex):
            raise KernbenchError(f"reduction {self.value} is bitwise: it needs integers, not {dtype}")
        if self in (ReduceOp.MIN, ReduceOp.MAX) and dtype.is_complex:
            raise KernbenchError(f"reduction {self.value} needs an order: it is not defined for {dtype}")

    def combine(self, left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
        """``out = left op right``, elementwise, rounded to the dtype as every step of a hardware collective is."""
        self.elementwise(left, right, out=out)

    @property
    def elementwise(self) -> Callable[..., torch.Tensor]:
        """torch's function for ``left op right``, which takes ``out``."""
        return _ELEMENTWISE[self._value_]

    def finish(self, total: torch.Tensor, members: int) -> None:
        """Turn the reduction of all members into the result, in place: the division of ``avg``.

        Integers truncate toward zero, as NCCL's do.
        """
        if self is ReduceOp.AVG:
            if total.dtype.is_floating_point or total.dtype.is_complex:
                total.div_(members)
            else:
                total.div_(members, rounding_mode="trunc")


_ALIASES = {"prod": "product", "mean": "avg", "average": "avg", "minimum": "min", "maximum": "max", "add": "sum"}
_BITWISE = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)
_ELEMENTWISE: dict[str, Callable[..., torch.Tensor]] = {
    "sum": torch.add,
    "avg": torch.add,
    "product": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}
