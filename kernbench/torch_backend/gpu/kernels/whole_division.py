"""Division of whole numbers by zero: a GPU raises nothing, and what it gives is undefined.

NVIDIA's compiler ends the instructions of a division, and those of a remainder, with all ones where the divisor is zero
(``LOP3`` 0x33 of the divisor in 32 bits, ``SEL`` 0xffffffff in 64: SASS for compute capability 9.0 of the ``ptxas`` that comes
with Triton 3.7, for ``div`` and ``rem``), so that is what is given: -1, or the largest number without a sign, and of an
``int64`` that fits into 32 bits 4294967295, as it is divided so (:func:`~kernbench.triton_engine.fixed_width.by_zero`).
Rounding down, torch takes one from a quotient of two signs that has a remainder: -2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernbench.torch_backend.gpu.tensors.placement import block_of
from kernbench.torch_backend.relies_on import Reliance

_OPERATORS = ("floor_divide", "div", "remainder", "fmod")

RELIES_ON = tuple(
    Reliance(f"torch.ops.aten.{name}{place}", "dividend and divisor come first", has=("overloads",))
    for name in _OPERATORS
    for place in ("", "_")
)


def _is_on_gpu(value: object) -> bool:
    return isinstance(value, torch.Tensor) and block_of(value) is not None


def _is_whole(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return not (value.dtype.is_floating_point or value.dtype.is_complex or value.dtype is torch.bool)
    return isinstance(value, int) and not isinstance(value, bool)


def _without_raising(call: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A kernel that divides, for operands of which one may be on a simulated GPU."""

    def compute(dividend: Any, divisor: Any, *args: Any, **kwargs: Any) -> Any:
        rounding = kwargs.get("rounding_mode")
        if not _is_whole(dividend) or not _is_whole(divisor) or (name == "div" and rounding is None):
            return call(dividend, divisor, *args, **kwargs)
        if not _is_on_gpu(dividend) and not _is_on_gpu(divisor):
            return call(dividend, divisor, *args, **kwargs)
        zero = torch.as_tensor(divisor == 0)
        if not zero.any():
            return call(dividend, divisor, *args, **kwargs)
        down = name == "floor_divide" or rounding == "floor"
        lower = torch.as_tensor(dividend < 0) & zero if down else None
        short = (torch.as_tensor(dividend).to(torch.int64) >> 32 == 0) & zero
        harmless = torch.where(zero, 1, divisor) if isinstance(divisor, torch.Tensor) else 1
        result = call(dividend, harmless, *args, **kwargs)
        ones = -1 if result.dtype.is_signed else torch.iinfo(result.dtype).max
        result.masked_fill_(zero.broadcast_to(result.shape), ones)
        if result.dtype.itemsize == 8:
            result.masked_fill_(short.broadcast_to(result.shape), 0xFFFFFFFF)
        return result if lower is None else result.masked_fill_(lower.broadcast_to(result.shape), -2)

    return compute


def _kernels() -> dict[str, Callable[..., object]]:
    found: dict[str, Callable[..., object]] = {}
    for name in _OPERATORS:
        for place in ("", "_"):
            packet = getattr(torch.ops.aten, name + place)
            for overload in packet.overloads():
                func = getattr(packet, overload)
                found[func.name()] = _without_raising(func._op, name)
    return found


KERNELS = _kernels()
