"""The functions of ``flash_attn.ops.activations`` that models call."""

from __future__ import annotations

import torch
from torch.nn import functional as F

Tensor = torch.Tensor


def swiglu(x: Tensor, y: Tensor) -> Tensor:
    """``silu(x) * y``. Shazeer 2020."""
    return F.silu(x) * y


def fast_gelu_impl(x: Tensor) -> Tensor:
    """GELU by tanh. Hendrycks & Gimpel 2016."""
    return F.gelu(x, approximate="tanh")


def bias_gelu_impl(x: Tensor, bias: Tensor) -> Tensor:
    """The same of ``x + bias``."""
    return F.gelu(x + bias, approximate="tanh")
