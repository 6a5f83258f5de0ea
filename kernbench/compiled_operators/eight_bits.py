"""Numbers in eight bits with scales: what the operators of several engines share."""

from __future__ import annotations

import torch

from kernbench.cost.by_values import SeenOperand
from kernbench.cost.matrix_work import MatrixWork

Tensor = torch.Tensor


def largest_of(dtype: torch.dtype) -> float:
    """The largest number of a format."""
    return (torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)).max


def store(numbers: Tensor, into: Tensor) -> None:
    """``numbers``, clamped to what the format of ``into`` holds; whole numbers are cut."""
    limits = torch.finfo(into.dtype) if into.dtype.is_floating_point else torch.iinfo(into.dtype)
    into.copy_(numbers.clamp(limits.min, limits.max))


def groups_and_scales(input: Tensor, size: int, least: float, largest: float) -> tuple[Tensor, Tensor]:
    """A row's numbers in groups of ``size``, and each group's largest magnitude, ``least`` at least, over ``largest``."""
    groups = input.float().unflatten(-1, (-1, size))
    return groups, groups.abs().amax(-1).clamp(min=least) / largest


def work_of_product(a: SeenOperand, width: int, result: SeenOperand, *, exact: bool = False) -> MatrixWork:
    """``[M, K] @ [K, width]``; ``exact``: sums are added up in 32 bits."""
    (rows, inner), kind = a.shape, "fp8" if a.format.startswith("fp8") else a.format
    return MatrixWork(((rows, width, inner),), kind, result.format, exact=exact)
