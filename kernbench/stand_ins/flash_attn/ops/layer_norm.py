"""The functions of ``flash_attn.ops.layer_norm``."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .triton.layer_norm import layer_norm_fn

Tensor = torch.Tensor


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float) -> Tensor:
    """The norm of ``x`` ``[..., size]``."""
    found: Tensor = layer_norm_fn(x, weight, bias, eps=epsilon)
    return found


def dropout_add_layer_norm(
    x0: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor | None, dropout_p: float, epsilon: float,
    rowscale: Tensor | None = None, layerscale: Tensor | None = None, prenorm: bool = False,
    residual_in_fp32: bool = False, return_dropout_mask: bool = False, *, is_rms_norm: bool = False,
) -> Any:  # fmt: skip
    """The norm of ``dropout(layerscale * x0 * rowscale) + residual``, and that sum if ``prenorm``."""
    x = x0 if layerscale is None else x0 * layerscale
    found = layer_norm_fn(
        x, weight, bias, residual, eps=epsilon, dropout_p=dropout_p, rowscale=rowscale, prenorm=prenorm,
        residual_in_fp32=residual_in_fp32, is_rms_norm=is_rms_norm, return_dropout_mask=return_dropout_mask,
        out_dtype=weight.dtype if residual_in_fp32 else None,
    )  # fmt: skip
    return found[:-1] if return_dropout_mask else found  # there is one mask


class DropoutAddLayerNorm(nn.Module):
    """A layer of :func:`dropout_add_layer_norm`."""

    _rms = False
    bias: nn.Parameter | None

    def __init__(
        self, hidden_size: int, prenorm: bool = False, p: float = 0.0, eps: float = 1e-5, residual_in_fp32: bool = False,
        device: Any = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.prenorm, self.p, self.eps, self.residual_in_fp32 = prenorm, p, eps, residual_in_fp32
        self.weight = nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        bias = None if self._rms else nn.Parameter(torch.zeros(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", bias)

    def reset_parameters(self) -> None:
        """Weight and bias are as if they were not there."""
        nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x0: Tensor, residual: Tensor | None = None) -> Any:
        """``[..., hidden size]``."""
        return dropout_add_layer_norm(
            x0, residual, self.weight, self.bias, self.p if self.training else 0.0, self.eps, prenorm=self.prenorm,
            residual_in_fp32=self.residual_in_fp32, is_rms_norm=self._rms,
        )  # fmt: skip
