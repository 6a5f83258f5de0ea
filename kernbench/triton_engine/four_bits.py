"""Floats of four bits (e2m1), two in a byte."""

from __future__ import annotations

import torch

E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])
"""Values of the sixteen codes."""


def unpacked(packed: torch.Tensor, dim: int) -> torch.Tensor:
    """``float32`` values of a tensor of bytes, of which each is two along ``dim``, the lower half first."""
    raw = packed.view(torch.uint8).to(torch.int64)
    return torch.stack((E2M1[raw & 15], E2M1[raw >> 4]), dim=dim + 1).flatten(dim, dim + 1)
