"""Norms, gated activations and rotary embedding: in float32, rounded once. Costs are the bytes that are moved."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from kernbench.compiled_operators.flashinfer.kernels import TABLE
from kernbench.compiled_operators.layers import gated, rms_normed, rotated

Tensor = torch.Tensor


@TABLE.kernel("norm(Tensor x, Tensor weight, float eps, float more, Tensor(a!) out)", "x", "weight", "out")
def _norm(x: Tensor, weight: Tensor, eps: float, more: float, out: Tensor) -> None:
    """``more``: is added to the weights (Gemma's are stored less one)."""
    out.copy_(rms_normed(x, weight, eps, more))


@TABLE.kernel(
    "add_norm(Tensor(a!) x, Tensor(b!) residual, Tensor weight, float eps, float more)",
    "x", "x", "residual", "residual", "weight",
)  # fmt: skip
def _add_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, more: float) -> None:
    """The sum is the new residual, and its norm the new ``x``."""
    total = x.float() + residual.float()
    residual.copy_(total)
    x.copy_(rms_normed(total, weight, eps, more))


@TABLE.kernel(
    "layer_norm(Tensor x, Tensor weight, Tensor bias, float eps, Tensor(a!) out)", "x", "weight", "bias", "out"
)
def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float, out: Tensor) -> None:
    out.copy_(F.layer_norm(x.float(), x.shape[-1:], weight.float(), bias.float(), eps))


@TABLE.kernel("gated(Tensor x, str gate, Tensor(a!) out)", "x", "out")
def _gated(x: Tensor, gate: str, out: Tensor) -> None:
    out.copy_(gated(gate, x))


def turned(x: Tensor, cos: Tensor, sin: Tensor, interleave: bool) -> Tensor:
    """``x [tokens, heads, size]`` turned by angles ``[tokens, pairs]``: of neighbours, or of both halves of what is turned."""
    wide, width = x.float(), 2 * cos.shape[-1]
    part = rotated(wide[..., :width], cos[:, None], sin[:, None], halves=not interleave)
    return torch.cat((part, wide[..., width:]), -1)


def frequencies(width: int, scale: float, theta: float, bounds: list[float]) -> Tensor:
    """Of each pair; ``bounds``: Llama 3.1's low and high factor and the length it was trained with, between which they are
    scaled the more the slower they are; none: all are."""
    plain = theta ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)
    if not bounds:
        return plain / scale
    low, high, length = bounds
    share = ((length * plain / (2 * math.pi) - low) / (high - low)).clamp(0, 1)
    return (1 - share) * plain / scale + share * plain


@TABLE.kernel(
    "rope(Tensor q, Tensor k, Tensor? positions, Tensor? ends, Tensor? offsets, int width, bool interleave, float scale, "
    "float theta, float[] bounds, Tensor(a!) out_q, Tensor(b!) out_k)",
    "q", "k", "positions", "ends", "offsets", "out_q", "out_k",
)  # fmt: skip
def _rope(
    q: Tensor, k: Tensor, positions: Tensor | None, ends: Tensor | None, offsets: Tensor | None, width: int,
    interleave: bool, scale: float, theta: float, bounds: list[float], out_q: Tensor, out_k: Tensor,
) -> None:  # fmt: skip
    """By positions, or by those of sequences that are cut at ``ends`` and begin at ``offsets``."""
    if positions is None:
        assert ends is not None
        assert offsets is not None
        of_each = torch.arange(len(offsets)).repeat_interleave(ends.diff())
        positions = torch.arange(len(of_each)) - ends[:-1].long()[of_each] + offsets.long()[of_each]
    used = len(positions)
    angles = positions.float()[:, None] * frequencies(width, scale, theta, bounds)
    for x, out in ((q, out_q), (k, out_k)):
        out[:used] = turned(x[:used], angles.cos(), angles.sin(), interleave).to(out.dtype)


@TABLE.kernel(
    "rope_by_table(Tensor positions, Tensor q, Tensor k, Tensor table, bool interleave, Tensor(a!) out_q, Tensor(b!) out_k)",
    "positions", "q", "k", "out_q", "out_k",
)  # fmt: skip
def _rope_by_table(
    positions: Tensor, q: Tensor, k: Tensor, table: Tensor, interleave: bool, out_q: Tensor, out_k: Tensor
) -> None:
    """``table [positions, width]``: cosines, then sines."""
    cos, sin = table[positions.long()].float().chunk(2, -1)
    for x, out in ((q, out_q), (k, out_k)):
        out.copy_(turned(x, cos, sin, interleave))
