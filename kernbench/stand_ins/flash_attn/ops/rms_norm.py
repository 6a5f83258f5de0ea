"""The functions of ``flash_attn.ops.rms_norm``."""

from __future__ import annotations

from typing import Any

import torch

from .layer_norm import DropoutAddLayerNorm, dropout_add_layer_norm
from .triton.layer_norm import RMSNorm, rms_norm_fn

__all__ = ["DropoutAddRMSNorm", "RMSNorm", "dropout_add_rms_norm", "rms_norm"]

Tensor = torch.Tensor


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """``x`` ``[..., size]`` over the root of its mean square, times ``weight``."""
    found: Tensor = rms_norm_fn(x, weight, None, eps=epsilon)
    return found


def dropout_add_rms_norm(
    x0: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor | None, dropout_p: float, epsilon: float,
    *args: Any, **kwargs: Any,
) -> Any:  # fmt: skip
    """The same of ``dropout(x0) + residual``, with the arguments of ``dropout_add_layer_norm``."""
    return dropout_add_layer_norm(x0, residual, weight, bias, dropout_p, epsilon, *args, **kwargs, is_rms_norm=True)


class DropoutAddRMSNorm(DropoutAddLayerNorm):
    """A layer of :func:`dropout_add_rms_norm`."""

    _rms = True
