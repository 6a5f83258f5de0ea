"""Products in eight bits that CUDA refuses and a CPU does not: refused here, too, in CUDA's words.

Facts are those of ``aten/src/ATen/native/cuda/ScaledBlas.cpp`` of github.com/pytorch/pytorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_EIGHT = (torch.float8_e4m3fn, torch.float8_e5m2)
_STEP = 16  # elements that the sizes of operands are multiples of
_FEWEST_ROWS = 16  # of whole numbers in eight bits, and one more
_LAST_FIXED = 90  # compute capability up to which the engine takes operands in one layout only


def _scaled(arch: int, a: torch.Tensor, b: torch.Tensor) -> str:
    """Why ``a [M, K] @ b [K, N]`` with scales is refused on a GPU of compute capability ``arch``; empty if it is not."""
    if arch < 89:
        return (
            "torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or 8.9, or ROCm MI300+"
        )
    if a.dtype not in _EIGHT or b.dtype not in _EIGHT or a.dim() != 2 or b.dim() != 2:
        return ""
    if a.shape[1] % _STEP:
        return f"Expected trailing dimension of mat1 to be divisible by 16 but got mat1 shape: ({a.shape[0]}x{a.shape[1]})."
    if b.shape[0] % _STEP or b.shape[1] % _STEP:
        return f"mat2 shape ({b.shape[0]}x{b.shape[1]}) must be divisible by 16"
    if a.dtype == b.dtype == torch.float8_e5m2:
        return "Multiplication of two Float8_e5m2 matrices is not supported"
    if arch <= _LAST_FIXED and (not _by_rows(a) or not _by_rows(b.t())):
        return "Only multiplication of row-major and column-major matrices is supported by cuBLASLt"
    return ""


def _by_rows(matrix: torch.Tensor) -> bool:
    return matrix.numel() == 0 or (matrix.stride(1) == 1 and matrix.stride(0) >= matrix.shape[1])


def _whole(arch: int, a: torch.Tensor, b: torch.Tensor) -> str:
    """The same of a product of whole numbers in eight bits."""
    if a.dim() != 2 or b.dim() != 2:
        return ""
    if a.shape[0] <= _FEWEST_ROWS:
        return f"self.size(0) needs to be greater than 16, but got {a.shape[0]}"
    for name, size, side in (("self", a.shape[1], 1), ("mat2", b.shape[1], 1)):
        if size == 0 or size % 8:
            return f"{name}.size({side}) needs to be greater than 0 and a multiple of 8, but got {size}"
    return ""


Refusal = Callable[[int, torch.Tensor, torch.Tensor], str]
_REFUSALS: dict[str, Refusal] = {"_scaled_mm": _scaled, "_scaled_mm_v2": _scaled, "_int_mm": _whole}
"""By operator: what is refused of its first two arguments."""


def refusal_of(name: str) -> Callable[[int, object], None] | None:
    """What raises if CUDA refuses an operator with given arguments on a GPU of a compute capability; None: it never does."""
    why = _REFUSALS.get(name)
    if why is None:
        return None

    def check(arch: int, args: Any) -> None:
        text = why(arch, args[0], args[1]) if len(args) > 1 else ""
        if text:
            raise (ValueError if "Float8_e5m2 matrices" in text else RuntimeError)(text)

    return check
