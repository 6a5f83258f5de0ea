"""The functions of ``flash_attn.ops.triton.layer_norm``: normalisation of a sum, with dropout, in one pass of the real kernel.

What is normalised is the sum in fp32; the residual that is given on is that sum in the residual's format.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Tensor = torch.Tensor


def _dropped(x: Tensor, p: float) -> tuple[Tensor, Tensor | None]:
    if not p:
        return x, None
    kept = torch.rand_like(x, dtype=torch.float32) >= p
    return torch.where(kept, x / (1 - p), 0), kept


def _normed(total: Tensor, weight: Tensor, bias: Tensor | None, eps: float, zero_centred: bool, rms: bool) -> Tensor:
    """In the format of ``total``."""
    if zero_centred or weight.dtype != total.dtype:
        weight = weight.to(total.dtype) + (1.0 if zero_centred else 0.0)
    bias = None if bias is None else bias.to(total.dtype)
    if not rms:
        return F.layer_norm(total, total.shape[-1:], weight, bias, eps)
    out = F.rms_norm(total, total.shape[-1:], weight, eps)
    return out if bias is None else out + bias


def _into(place: Tensor | None, value: Tensor) -> Tensor:
    return value if place is None else place.copy_(value)


def layer_norm_fn(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None = None, x1: Tensor | None = None,
    weight1: Tensor | None = None, bias1: Tensor | None = None, eps: float = 1e-6, dropout_p: float = 0.0,
    rowscale: Tensor | None = None, prenorm: bool = False, residual_in_fp32: bool = False,
    zero_centered_weight: bool = False, is_rms_norm: bool = False, return_dropout_mask: bool = False,
    out_dtype: torch.dtype | None = None, out: Tensor | None = None, residual_out: Tensor | None = None,
) -> Any:  # fmt: skip
    """The norm of ``dropout(rowscale * x) + dropout(x1) + residual``, all ``[..., size]``.

    Returns:
        It, a second one by ``weight1`` if that is given, the sum if ``prenorm``, the two masks if they are wanted.
    """
    given = out_dtype or x.dtype
    plain = residual is x1 is rowscale is None and not dropout_p and not residual_in_fp32 and given == x.dtype
    masks: tuple[Tensor | None, Tensor | None] = (None, None)
    if plain:
        total = x
    else:
        total = x.float() if rowscale is None else x.float() * rowscale[..., None]
        total, kept = _dropped(total, dropout_p)
        masks = (kept, None)
        if x1 is not None:
            second, kept1 = _dropped(x1.float(), dropout_p)
            total, masks = total + second, (kept, kept1)
        if residual is not None:
            total = total + residual
    carried = residual.dtype if residual is not None else torch.float32 if residual_in_fp32 else x.dtype
    norms = [_into(out, _normed(total, weight, bias, eps, zero_centered_weight, is_rms_norm).to(given))]
    if weight1 is not None:
        norms.append(_normed(total, weight1, bias1, eps, zero_centered_weight, is_rms_norm).to(given))
    found = (
        *norms, *((_into(residual_out, total.to(carried)),) if prenorm else ()), *(masks if return_dropout_mask else ())
    )  # fmt: skip
    return found if len(found) > 1 else found[0]


def rms_norm_fn(x: Tensor, weight: Tensor, bias: Tensor | None, *args: Any, **kwargs: Any) -> Any:
    """The same with the root of the mean square; the arguments but ``is_rms_norm``."""
    names = (
        "residual", "x1", "weight1", "bias1", "eps", "dropout_p", "rowscale", "prenorm", "residual_in_fp32",
        "zero_centered_weight", "return_dropout_mask", "out_dtype", "out", "residual_out",
    )  # fmt: skip
    return layer_norm_fn(x, weight, bias, **dict(zip(names, args, strict=False)), **kwargs, is_rms_norm=True)


def layer_norm_linear_fn(
    x: Tensor, norm_weight: Tensor, norm_bias: Tensor | None, linear_weight: Tensor, linear_bias: Tensor | None,
    residual: Tensor | None = None, eps: float = 1e-6, prenorm: bool = False, residual_in_fp32: bool = False,
    is_rms_norm: bool = False,
) -> Any:  # fmt: skip
    """A linear layer of the norm; with the sum if ``prenorm``."""
    found = layer_norm_fn(
        x, norm_weight, norm_bias, residual, eps=eps, prenorm=prenorm, residual_in_fp32=residual_in_fp32,
        is_rms_norm=is_rms_norm,
    )  # fmt: skip
    normed = found[0] if prenorm else found
    out = F.linear(normed.to(linear_weight.dtype), linear_weight, linear_bias)
    return (out, found[1]) if prenorm else out


class RMSNorm(nn.Module):
    """A layer of :func:`rms_norm_fn`."""

    def __init__(
        self, hidden_size: int, eps: float = 1e-5, dropout_p: float = 0.0, zero_centered_weight: bool = False,
        device: Any = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.eps = eps
        self.drop = nn.Dropout(dropout_p) if dropout_p > 0 else None
        self.zero_centered_weight = zero_centered_weight
        self.weight = nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The weight is as if it were not there."""
        nn.init.constant_(self.weight, 0.0 if self.zero_centered_weight else 1.0)

    def forward(
        self, x: Tensor, residual: Tensor | None = None, prenorm: bool = False, residual_in_fp32: bool = False
    ) -> Any:
        """``[..., hidden size]``."""
        return rms_norm_fn(
            x, self.weight, None, residual, eps=self.eps, prenorm=prenorm, residual_in_fp32=residual_in_fp32,
            dropout_p=self.drop.p if self.drop is not None and self.training else 0.0,
            zero_centered_weight=self.zero_centered_weight,
        )  # fmt: skip
