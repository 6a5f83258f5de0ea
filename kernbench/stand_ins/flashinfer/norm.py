"""``flashinfer.norm``."""

from __future__ import annotations

import torch

from ._calls import Tensor, launch


def _normed(input: Tensor, weight: Tensor, eps: float, more: float, out: Tensor | None) -> Tensor:
    out = torch.empty_like(input) if out is None else out
    launch("norm", input, weight, eps, more, out)
    return out


def rmsnorm(
    input: Tensor, weight: Tensor, eps: float = 1e-06, out: Tensor | None = None, enable_pdl: bool | None = None
) -> Tensor:
    """Over the last dimension."""
    return _normed(input, weight, eps, 0.0, out)


def fused_add_rmsnorm(
    input: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-06, enable_pdl: bool | None = None
) -> None:
    """``residual += input``, and ``input`` is its norm."""
    launch("add_norm", input, residual, weight, eps, 0.0)


def gemma_rmsnorm(
    input: Tensor, weight: Tensor, eps: float = 1e-06, out: Tensor | None = None, enable_pdl: bool | None = None
) -> Tensor:
    """With weights that are stored less one."""
    return _normed(input, weight, eps, 1.0, out)


def gemma_fused_add_rmsnorm(
    input: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-06, enable_pdl: bool | None = None
) -> None:
    """The same in place, of a sum."""
    launch("add_norm", input, residual, weight, eps, 1.0)


def layernorm(input: Tensor, gemma: Tensor, beta: Tensor, eps: float = 1e-06) -> Tensor:
    """With weights ``gemma`` and a bias."""
    out = torch.empty_like(input)
    launch("layer_norm", input, gemma, beta, eps, out)
    return out
