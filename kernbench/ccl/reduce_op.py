"""Reduction operations of collectives, by their usual names.

What a library does to each value is NCCL's (``src/device/reduce_kernel.h`` of NCCL 2.27): each sum of two is rounded to the
type. Sums of 8-bit floats are sums of halves, rounded and *saturated*: what is too large becomes the largest number, not
infinity. An average of floats multiplies every contribution by 1/N, itself rounded to the type, before anything is added
(``hostToDevRedOp`` of ``src/enqueue.cc``); one of integers divides the sum. Gloo divides the sum.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence

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

    __hash__ = object.__hash__  # there is one of each: Python's own hashes its name, in Python

    @classmethod
    def parse(cls, op: object) -> ReduceOp:
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
        if left.dtype in EIGHT_BITS:
            out.copy_(saturated(_ELEMENTWISE[self._value_](left.half(), right.half()), left.dtype))
        else:
            _ELEMENTWISE[self._value_](left, right, out=out)

    def combine_all(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """``((parts[0] op parts[1]) op parts[2]) ...`` in the place of the first, each step as :meth:`combine`."""
        total = parts[0]
        if total.dtype in EIGHT_BITS:
            for part in parts[1:]:
                self.combine(total, part, total)
        else:
            step = _ELEMENTWISE[self._value_]
            for part in parts[1:]:
                step(total, part, out=total)
        return total

    def contribution(self, part: torch.Tensor, members: int) -> torch.Tensor:
        """What enters the reduction of a member's ``part``: itself."""
        return part

    def finish(self, total: torch.Tensor, members: int) -> None:
        """Turn the reduction of all members into the result, in place: the division of ``avg``.

        Integers truncate toward zero, as NCCL's do.
        """
        if self is ReduceOp.AVG:
            if total.dtype in EIGHT_BITS:
                total.copy_(saturated(total.half().div_(members), total.dtype))
            elif total.dtype.is_floating_point or total.dtype.is_complex:
                total.div_(members)
            else:
                total.div_(members, rounding_mode="trunc")


class PremultipliedAverage:
    """``AVG`` of floats as NCCL has it: every contribution is multiplied by 1/N, then all are added."""

    name = "AVG"
    value = "premul_avg"

    def combine(self, left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
        """As :meth:`ReduceOp.combine` of a sum."""
        ReduceOp.SUM.combine(left, right, out)

    def combine_all(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """As :meth:`ReduceOp.combine_all` of a sum."""
        return ReduceOp.SUM.combine_all(parts)

    def contribution(self, part: torch.Tensor, members: int) -> torch.Tensor:
        """A member's ``part`` times 1/``members``, as a new tensor; the factor and the product are rounded to its type."""
        return multiplied(part, 1.0 / members)

    def finish(self, total: torch.Tensor, members: int) -> None:
        """The sum is the average."""


PREMULTIPLIED_AVERAGE = PremultipliedAverage()

Reduction = ReduceOp | PremultipliedAverage
"""What a collective does with what its members bring."""


def reduction_named(value: str) -> Reduction:
    """The reduction that a signature has by its ``value``."""
    return PREMULTIPLIED_AVERAGE if value == PREMULTIPLIED_AVERAGE.value else ReduceOp(value)


def spelled(value: str) -> str:
    """The reduction of a signature by the name that programs have for it."""
    return value.removeprefix("premul_")


EIGHT_BITS = frozenset({torch.float8_e4m3fn, torch.float8_e5m2})
"""Floats that are computed with as halves."""


def multiplied(tensor: torch.Tensor, factor: float | torch.Tensor) -> torch.Tensor:
    """``tensor`` times ``factor``, a number or a tensor of one; the factor and the product are rounded to the tensor's type."""
    dtype = tensor.dtype
    scale = torch.as_tensor(factor).to(dtype)
    if dtype in EIGHT_BITS:
        return saturated(tensor.half() * scale.half(), dtype)
    return tensor * scale


def saturated(halves: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Halves as 8-bit floats: what is too large becomes the largest number (``__NV_SATFINITE``)."""
    most = torch.finfo(dtype).max
    return halves.clamp(-most, most).to(dtype)


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
