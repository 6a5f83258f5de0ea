"""Softmax of scaled scores, with a mask or without later keys, in float32; a row that sees no key gives zeros."""

from __future__ import annotations

import math

import torch

from kernbench.compiled_operators.transformer_engine.kernels import kernel, launch

Tensor = torch.Tensor


@kernel("scaled_softmax(Tensor x, Tensor? mask, Tensor! out, float scale, bool causal)", "x", "mask", "out")
def _scaled_softmax(x: Tensor, mask: Tensor | None, out: Tensor, scale: float, causal: bool) -> None:
    scores = x.float() * scale
    if mask is not None:
        scores = scores.masked_fill(mask.bool(), -math.inf)
    if causal:  # ends meet
        queries, keys = scores.shape[-2:]
        seen = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
        scores = scores.masked_fill(~seen, -math.inf)
    out.copy_(torch.softmax(scores, -1).nan_to_num(0.0))


@kernel("scaled_softmax_backward(Tensor grad, Tensor shares, Tensor! dx, float scale)", "grad", "shares", "dx")
def _scaled_softmax_backward(grad: Tensor, shares: Tensor, dx: Tensor, scale: float) -> None:
    given, kept = grad.float(), shares.float()
    dx.copy_(scale * kept * (given - (given * kept).sum(-1, keepdim=True)))


def _forward(input: Tensor, mask: Tensor | None, scale: float, causal: bool) -> Tensor:
    out = torch.empty_like(input)
    launch("scaled_softmax", input, mask, out, scale, causal)
    return out


def scaled_softmax_forward(input: Tensor, scale_factor: float) -> Tensor:
    """Of ``[batch, heads, queries, keys]``."""
    return _forward(input, None, scale_factor, False)


def scaled_masked_softmax_forward(input: Tensor, mask: Tensor, scale_factor: float) -> Tensor:
    """Without the keys at which the mask is one."""
    return _forward(input, mask, scale_factor, False)


def scaled_upper_triang_masked_softmax_forward(input: Tensor, scale_factor: float) -> Tensor:
    """Of ``[.., queries, keys]``, as many: without later keys."""
    return _forward(input, None, scale_factor, True)


def scaled_aligned_causal_masked_softmax_forward(input: Tensor, scale_factor: float) -> Tensor:
    """The last query sees all keys."""
    return _forward(input, None, scale_factor, True)


def scaled_softmax_backward(output_grad: Tensor, softmax_results: Tensor, scale_factor: float) -> Tensor:
    """The gradient of the scores, in memory of its own: the package's Python calls it in an operator of torch's that says
    that it writes none of its arguments, and torch refuses a result that is one of them."""
    dx = torch.empty_like(output_grad)
    launch("scaled_softmax_backward", output_grad, softmax_results, dx, scale_factor)
    return dx


scaled_masked_softmax_backward = scaled_softmax_backward
scaled_upper_triang_masked_softmax_backward = scaled_softmax_backward
scaled_aligned_causal_masked_softmax_backward = scaled_softmax_backward
