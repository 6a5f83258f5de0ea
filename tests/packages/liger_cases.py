"""The operations of ``liger-kernel`` by their public functions, each beside a formula in plain torch.

A case makes its inputs in float64; the operation sees them in its own type, the formula in float64. Both are
differentiated with the same output gradients. Inputs that are not floating point pass through as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from liger_kernel.ops import (
    LigerEmbeddingFunction,
    LigerFusedCETVDFunction,
    LigerFusedGateUpSiLUMulFunction,
    LigerFusedMoEFunction,
    LigerLlama4RopeFunction,
)
from liger_kernel.transformers import functional as liger


@dataclass(frozen=True)
class Case:
    """One call: ``operation(*inputs)`` and ``formula(*inputs)`` return the same tensors (or one)."""

    name: str
    inputs: Callable[[], tuple[Any, ...]]
    operation: Callable[..., Any]
    formula: Callable[..., Any]
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16)
    loosen: float = 1.0
    asks_device: str = ""
    """Module that asks torch for a CUDA device's properties whatever device its tensors are on."""
    is_slow: bool = False

    def __str__(self) -> str:
        return self.name


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([-b, a], -1)


def rms_norm(x, weight, eps=1e-6, offset=0.0):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * (weight + offset)


def angles(length: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin tables ``[1, length, width]`` of rotary embedding."""
    theta = torch.outer(torch.arange(length).double(), 10000.0 ** (-torch.arange(0, width, 2).double() / width))
    theta = torch.cat([theta, theta], -1)[None]
    return theta.cos(), theta.sin()


def rope(q, k, cos, sin):
    cos, sin = cos.detach()[:, None], sin.detach()[:, None]
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def mrope(q, k, cos, sin, section):
    half = [t.split([*section, *section], dim=-1) for t in (cos, sin)]
    cos, sin = (torch.cat([part[i % 3] for i, part in enumerate(t)], -1) for t in half)
    return rope(q, k, cos, sin)


def complex_rope(q, k, freqs):
    def turn(x):
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * freqs[None, :, None].to(pairs.dtype)).flatten(-2)

    return turn(q), turn(k)


def poly_norm(x, weight, bias):
    def norm(u):
        return u * torch.rsqrt(u.pow(2).mean(-1, keepdim=True) + 1e-6)

    return weight[0] * norm(x**3) + weight[1] * norm(x**2) + weight[2] * norm(x) + bias


def sparsemax(x):
    z, _ = x.sort(-1, descending=True)
    total = z.cumsum(-1)
    k = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype)
    support = (1 + k * z > total).sum(-1, keepdim=True)
    threshold = (total.gather(-1, support - 1) - 1) / support
    return (x - threshold).clamp_min(0)


def jsd(log_q, log_p, beta):
    """Generalised Jensen-Shannon divergence of log-probabilities, summed over the vocabulary, mean over rows."""
    p, q = log_p.exp(), log_q.exp()
    if beta == 0.0:
        return (p * (log_p - log_q)).sum() / len(p)
    if beta == 1.0:
        return (q * (log_q - log_p)).sum() / len(p)
    log_m = (beta * p + (1 - beta) * q).log()
    return (beta * p * (log_p - log_m) + (1 - beta) * q * (log_q - log_m)).sum() / len(p)


def cross_entropy(logits, target, smoothing=0.0, z=0.0, softcap=None, reduction="mean", weight=None):
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    loss = F.cross_entropy(logits, target, weight, label_smoothing=smoothing, reduction=reduction)
    if z:
        valid = target != -100
        squares = z * logits.logsumexp(-1)[valid].pow(2)
        loss = loss + (squares.mean() if reduction == "mean" else squares.sum())
    return loss


def labels(rows: int, classes: int) -> torch.Tensor:
    target = torch.randint(0, classes, (rows,))
    target[::5] = -100
    return target


def ce_tvd(student, teacher, target):
    ce = F.cross_entropy(student, target, reduction="none")
    tvd = 0.5 * (student.softmax(-1) - teacher.softmax(-1)).abs().sum(-1)
    return ce, torch.where(target == -100, 0.0, tvd)


def attn_res(blocks, query, weight):
    scores = (rms_norm(blocks, weight) * query).sum(-1)
    return (scores.softmax(0)[..., None] * blocks).sum(0)


def causal(scores: torch.Tensor) -> torch.Tensor:
    return torch.ones(scores.shape[-2:], dtype=torch.bool).tril()


def multi_token_attention(scores, weight, bias):
    probabilities = scores.masked_fill(~causal(scores), -1e9).softmax(-1)
    return F.conv2d(probabilities, weight, bias, padding=1).masked_fill(~causal(scores), 0)


def neighborhood_attention(q, k, v, size, dilation):
    i = torch.arange(q.shape[2])
    distance = (i[:, None] - i[None, :]).abs()
    near = (distance <= size // 2 * dilation) & (distance % dilation == 0)
    scores = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).masked_fill(~near, -torch.inf)
    return scores.softmax(-1) @ v


def sinkhorn(logits, iterations, eps):
    mat = logits.softmax(-1) + eps
    mat = mat / (mat.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        mat = mat / (mat.sum(-1, keepdim=True) + eps)
        mat = mat / (mat.sum(-2, keepdim=True) + eps)
    return mat


def mhc_coeffs(x, phi, b, alpha_pre, alpha_post, alpha_res):
    """Manifold-constrained hyper-connections: equations 14 to 19 of the paper."""
    n = x.shape[-2]
    flat = x.flatten(-2)
    mix = (flat @ phi) * torch.rsqrt(flat.pow(2).mean(-1, keepdim=True) + 1e-6)
    pre = torch.sigmoid(alpha_pre * mix[..., :n] + b[:n])
    post = 2 * torch.sigmoid(alpha_post * mix[..., n : 2 * n] + b[n : 2 * n])
    res = sinkhorn((alpha_res * mix[..., 2 * n :] + b[2 * n :]).unflatten(-1, (n, n)), 20, 1e-6)
    return pre, post, res


def experts(x, gate_up, down, index, weight):
    out = torch.zeros_like(x)
    for token in range(len(x)):
        for slot in range(index.shape[1]):
            e = int(index[token, slot])
            gate, up = (gate_up[e] @ x[token]).chunk(2)
            out[token] = out[token] + weight[token, slot] * (down[e] @ (F.silu(gate) * up))
    return out


F32 = (torch.float32,)

CASES = [
    Case("geglu", lambda: (randn(4, 7, 100), randn(4, 7, 100)), liger.liger_geglu,
         lambda a, b: F.gelu(a, approximate="tanh") * b),
    Case("swiglu", lambda: (randn(4, 7, 100), randn(4, 7, 100)), liger.liger_swiglu, lambda a, b: F.silu(a) * b),
    Case("swiglu gate and up fused", lambda: (randn(8, 200),), LigerFusedGateUpSiLUMulFunction.apply,
         lambda y: F.silu(y[:, :100]) * y[:, 100:]),
    Case("squared relu", lambda: (randn(4, 100),), liger.liger_relu_squared, lambda x: F.relu(x) ** 2),
    Case("rms norm", lambda: (randn(5, 9, 100), randn(100)), lambda x, w: liger.liger_rms_norm(x, w, 1e-6), rms_norm),
    Case("rms norm, many rows", lambda: (randn(700, 40), randn(40)),
         lambda x, w: liger.liger_rms_norm(x, w, 1e-6), rms_norm),
    Case("rms norm, gemma", lambda: (randn(5, 9, 100), randn(100)),
         lambda x, w: liger.liger_rms_norm(x, w, 1e-6, 1.0, "gemma", False), lambda x, w: rms_norm(x, w, offset=1.0)),
    Case("add and rms norm", lambda: (randn(5, 9, 100), randn(5, 9, 100), randn(100)),
         lambda x, r, w: liger.liger_fused_add_rms_norm(x, r, w, 1e-6), lambda x, r, w: (rms_norm(x + r, w), x + r)),
    Case("modulated rms norm", lambda: (randn(3, 6, 100), randn(100), randn(3, 100), randn(3, 100)),
         liger.liger_modulated_rms_norm,
         lambda x, w, scale, shift: rms_norm(x, w) * (1 + scale[:, None]) + shift[:, None], F32),
    Case("poly norm", lambda: (randn(9, 100), randn(3), randn(1)[0]), liger.liger_poly_norm, poly_norm, F32),
    Case("layer norm", lambda: (randn(5, 9, 100), randn(100), randn(100)),
         lambda x, w, b: liger.liger_layer_norm(x, w, b, 1e-6),
         lambda x, w, b: F.layer_norm(x, (100,), w, b, 1e-6)),
    Case("group norm", lambda: (randn(3, 12, 50), randn(12), randn(12)),
         lambda x, w, b: liger.liger_group_norm(x, w, b, 12, 4, 1e-6),
         lambda x, w, b: F.group_norm(x, 4, w, b, 1e-6), F32),
    Case("rope", lambda: (randn(2, 4, 9, 32), randn(2, 2, 9, 32), *angles(9, 32)), liger.liger_rope, rope),
    Case("multimodal rope",
         lambda: (randn(2, 4, 9, 32), randn(2, 2, 9, 32), *(randn(3, 2, 9, 16).repeat(1, 1, 1, 2) for _ in "cs")),
         lambda q, k, c, s: liger.liger_qwen2vl_mrope(q, k, c, s, [4, 6, 6]),
         lambda q, k, c, s: mrope(q, k, c, s, [4, 6, 6])),
    Case("complex rope",
         lambda: (randn(2, 9, 4, 32), randn(2, 9, 2, 32), torch.polar(torch.ones(9, 16), torch.rand(9, 16))),
         LigerLlama4RopeFunction.apply, complex_rope),
    Case("softmax", lambda: (randn(5, 9, 100),), liger.liger_softmax, lambda x: x.softmax(-1)),
    Case("softmax, wide", lambda: (randn(2, 40000),), liger.liger_softmax, lambda x: x.softmax(-1), F32),
    Case("sparsemax", lambda: (randn(9, 100),), liger.liger_sparsemax, sparsemax, F32),
    Case("dynamic tanh", lambda: (randn(9, 100), randn(1), randn(100), randn(100)), liger.liger_dyt,
         lambda x, alpha, gamma, beta: gamma * torch.tanh(alpha * x) + beta, F32,
         asks_device="liger_kernel.ops.dyt"),
    Case("embedding", lambda: (randn(50, 100), torch.randint(0, 50, (3, 8))), LigerEmbeddingFunction.apply,
         lambda table, index: F.embedding(index, table), F32),
    Case("cross entropy", lambda: (randn(20, 300), labels(20, 300)), liger.liger_cross_entropy, cross_entropy),
    Case("cross entropy, wide", lambda: (randn(6, 70000), labels(6, 70000)), liger.liger_cross_entropy, cross_entropy,
         F32),
    Case("cross entropy, smoothed, z loss, capped", lambda: (randn(20, 300) * 5, labels(20, 300)),
         lambda x, t: liger.liger_cross_entropy(x, t, label_smoothing=0.1, lse_square_scale=1e-3, softcap=9.0),
         lambda x, t: cross_entropy(x, t, 0.1, 1e-3, 9.0)),
    Case("cross entropy, weighted sum", lambda: (randn(20, 300), labels(20, 300), torch.rand(300)),
         lambda x, t, w: liger.liger_cross_entropy(x, t, w.float(), reduction="sum"),
         lambda x, t, w: cross_entropy(x, t, reduction="sum", weight=w.double()), F32),
    Case("linear cross entropy", lambda: (randn(20, 64), randn(300, 64), labels(20, 300)),
         liger.liger_fused_linear_cross_entropy, lambda x, w, t: cross_entropy(x @ w.T, t), loosen=4),
    Case("linear cross entropy, bias", lambda: (randn(20, 64), randn(300, 64), labels(20, 300), randn(300)),
         liger.liger_fused_linear_cross_entropy, lambda x, w, t, b: cross_entropy(x @ w.T + b, t), F32),
    *(Case(f"jensen-shannon, beta {beta}", lambda: (randn(9, 100).log_softmax(-1), randn(9, 100).log_softmax(-1)),
           lambda q, p, beta=beta: liger.liger_jsd(q, p.detach(), None, beta),
           lambda q, p, beta=beta: jsd(q, p.detach(), beta), F32) for beta in (0.0, 0.3, 1.0)),
    Case("linear jensen-shannon", lambda: (randn(9, 32), randn(100, 32), randn(9, 48), randn(100, 48)),
         lambda x, w, y, v: liger.liger_fused_linear_jsd(x, w, y.detach(), v.detach()),
         lambda x, w, y, v: jsd((x @ w.T).log_softmax(-1), (y @ v.T).detach().log_softmax(-1), 0.5), F32, loosen=4),
    Case("kl divergence", lambda: (randn(9, 100).log_softmax(-1), randn(9, 100).softmax(-1)),
         lambda x, y: liger.liger_kl_div(x, y.detach(), reduction="batchmean"),
         lambda x, y: F.kl_div(x, y.detach(), reduction="batchmean"), F32),
    Case("kl divergence, log target, sum", lambda: (randn(9, 100).log_softmax(-1), randn(9, 100).log_softmax(-1)),
         lambda x, y: liger.liger_kl_div(x, y.detach(), reduction="sum", log_target=True),
         lambda x, y: F.kl_div(x, y.detach(), reduction="sum", log_target=True), F32),
    Case("linear kl divergence", lambda: (randn(9, 32), randn(100, 32), randn(9, 100).softmax(-1)),
         lambda x, w, p: liger.liger_fused_linear_kl_div(x, w, p.detach()),
         lambda x, w, p: F.kl_div((x @ w.T).log_softmax(-1), p.detach(), reduction="batchmean"), F32, loosen=4),
    Case("total variation", lambda: (randn(9, 100).softmax(-1), randn(9, 100).softmax(-1)),
         lambda p, q: liger.liger_tvd(p, q.detach(), reduction="batchmean"),
         lambda p, q: 0.5 * (p - q.detach()).abs().sum() / len(p), F32),
    Case("cross entropy and total variation", lambda: (randn(20, 300), randn(20, 300), labels(20, 300)),
         lambda s, t, y: LigerFusedCETVDFunction.apply(s, t.detach(), y, -100),
         lambda s, t, y: ce_tvd(s, t.detach(), y), F32),
    Case("attention residuals", lambda: (randn(4, 2, 5, 64), randn(64), randn(64)), liger.liger_attn_res, attn_res,
         F32),
    Case("multi-token attention", lambda: (randn(2, 3, 20, 20), randn(3, 3, 3, 3), randn(3)),
         lambda s, w, b: liger.liger_multi_token_attention(s, w, b, 1, 1), multi_token_attention, F32),
    Case("neighborhood attention", lambda: tuple(randn(2, 2, 40, 32) for _ in "qkv"),
         lambda q, k, v: liger.liger_fused_neighborhood_attention(q, k, v, 7, 2),
         lambda q, k, v: neighborhood_attention(q, k, v, 7, 2), F32, loosen=200),
    Case("hyper-connection coefficients",
         lambda: (randn(6, 4, 32), randn(128, 24) * 0.1, randn(24),
                  *(torch.tensor(a, dtype=torch.float64) for a in (0.5, 0.7, 0.9))),
         lambda *a: liger.liger_mhc_coeffs(*a, allow_fp32=True), mhc_coeffs, F32, loosen=200),
    Case("hyper-connection input", lambda: (randn(6, 4, 100), randn(6, 4)), liger.liger_mhc_pre,
         lambda x, h: (h[..., None] * x).sum(-2), F32),
    Case("hyper-connection output", lambda: (randn(6, 4, 100), randn(6, 100), randn(6, 4), randn(6, 4, 4)),
         liger.liger_mhc_post_res, lambda x, f, post, res: res @ x + post[..., None] * f[:, None], F32),
    Case("mixture of experts",
         lambda: (randn(24, 64), randn(4, 96, 64) * 0.1, randn(4, 64, 48) * 0.1,
                  torch.rand(24, 4).argsort(-1)[:, :2].to(torch.int32), randn(24, 2).softmax(-1)),
         LigerFusedMoEFunction.apply, experts, F32, loosen=200, is_slow=True),
]  # fmt: skip
