"""Which of the choices of each row, ``[rows, choices]``, are kept, as engines sample tokens."""

from __future__ import annotations

import torch

Tensor = torch.Tensor


def best(values: Tensor, counts: Tensor) -> Tensor:
    """Which are among the ``counts [rows]`` greatest of their row, or equal the least of these."""
    ordered = values.sort(-1, descending=True).values
    at = counts.long().clamp(1, values.shape[-1]) - 1
    return values >= ordered.gather(-1, at[:, None])


def shares(kept: Tensor) -> Tensor:
    """Of each row's sum."""
    return kept / kept.sum(-1, keepdim=True)
