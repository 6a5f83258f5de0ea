"""Routers of mixtures of experts: each token's best experts with their shares, and the loss that balances experts' loads.

Shares are computed in float32 and rounded once. What a router keeps for its gradient (``intermediate_output``) is of the real
shape and format; what stands in it is this module's business.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional as F

from kernbench.compiled_operators.transformer_engine.kernels import kernel, launch
from kernbench.compiled_operators.transformer_engine.names import NVTERoutingMapFormat

Tensor = torch.Tensor
_INDICES = 2
"""The form of a choice beside those of ``NVTERoutingMapFormat``: the experts' numbers."""
_TINY = 1e-20
"""Is added to a sum of shares that they are divided by."""


# -- shares ---------------------------------------------------------------------------------------------------------------


def _scores(logits: Tensor, score: str) -> tuple[Tensor, Tensor]:
    """Of each expert by itself, and what their gradient is computed from."""
    if score == "softmax":
        shares = torch.softmax(logits, -1)
        return shares, shares
    if score == "sigmoid":
        scores = torch.sigmoid(logits)
        return scores, scores
    if score == "sqrtsoftplus":
        return F.softplus(logits).sqrt(), logits
    raise ValueError(f"score_function must be softmax, sigmoid or sqrtsoftplus, not {score!r}")


def _of_logits(dscores: Tensor, kept: Tensor, score: str) -> Tensor:
    """The gradient of logits, from that of the scores."""
    if score == "softmax":
        return kept * (dscores - (dscores * kept).sum(-1, keepdim=True))
    if score == "sigmoid":
        return dscores * kept * (1 - kept)
    return dscores * torch.sigmoid(kept) / (2 * F.softplus(kept).sqrt())


def _of_shares(dshares: Tensor, scores: Tensor) -> Tensor:
    """The gradient of scores, from that of what they are of their sum."""
    total = scores.sum(-1, keepdim=True) + _TINY
    return dshares / total - (dshares * scores).sum(-1, keepdim=True) / total**2


def _scores_again(kept: Tensor, score: str) -> Tensor:
    return F.softplus(kept).sqrt() if score == "sqrtsoftplus" else kept


# -- choices --------------------------------------------------------------------------------------------------------------


def _best(scores: Tensor, topk: int, groups: int, group_topk: int) -> Tensor:
    """The numbers of each token's best experts, of its best groups if there are any: by the sum of a group's best."""
    if group_topk:
        by_group = scores.view(len(scores), groups, -1)
        loads = by_group.topk(topk // group_topk, -1).values.sum(-1)
        seen = torch.zeros_like(loads, dtype=torch.bool).scatter(1, loads.topk(group_topk, -1).indices, True)
        scores = by_group.masked_fill(~seen[..., None], -math.inf).view(scores.shape)
    return scores.topk(topk, -1).indices


def _chosen(best: Tensor, experts: int) -> Tensor:
    """Whether each token has each expert, from the numbers of those that it has."""
    return torch.zeros(len(best), experts, dtype=torch.bool).scatter(1, best, True)


def _write_choice(best: Tensor, experts: int, form: int, out: Tensor) -> None:
    if form == _INDICES:
        out.view(best.shape).copy_(best)
        return
    chosen = _chosen(best, experts)
    if form == int(NVTERoutingMapFormat.BITMAP_U8):  # the first expert is the lowest bit
        bits = F.pad(chosen.int(), (0, -experts % 8)).view(len(best), -1, 8)
        chosen = (bits << torch.arange(8)).sum(-1)
    out.view(chosen.shape).copy_(chosen)


def _read_choice(choice: Tensor, tokens: int, experts: int, form: int) -> Tensor:
    """Whether each token has each expert."""
    if form == _INDICES:
        return _chosen(choice.view(tokens, -1).long(), experts)
    if form == int(NVTERoutingMapFormat.BITMAP_U8):
        bits = choice.view(tokens, -1, 1).int() >> torch.arange(8) & 1
        return bits.view(tokens, -1)[:, :experts].bool()
    return choice.view(tokens, experts).bool()


def _room_for_choice(logits: Tensor, form: int) -> Tensor:
    experts = logits.shape[-1]
    if form == int(NVTERoutingMapFormat.BITMAP_U8):
        return torch.empty((*logits.shape[:-1], -(-experts // 8)), dtype=torch.uint8, device=logits.device)
    return torch.empty(logits.shape, dtype=torch.bool, device=logits.device)


# -- routing --------------------------------------------------------------------------------------------------------------


@kernel(
    "route(Tensor logits, Tensor? bias, Tensor! probs, Tensor! choice, Tensor! kept, int topk, bool pre, int groups, "
    "int group_topk, float scale, str score, int form)",
    "logits", "probs", "choice", "kept",
)  # fmt: skip
def _route(
    logits: Tensor, bias: Tensor | None, probs: Tensor, choice: Tensor, kept: Tensor, topk: int, pre: bool, groups: int,
    group_topk: int, scale: float, score: str, form: int,
) -> None:  # fmt: skip
    experts = logits.shape[-1]
    given = logits.reshape(-1, experts).float()
    after = score == "softmax" and not pre
    scores, saved = (given, given) if after else _scores(given, score)
    best = _best(scores if bias is None else scores + bias.float(), topk, groups, group_topk)
    of_best = scores.gather(1, best)
    if after:
        of_best = torch.softmax(of_best, -1)
        saved = torch.zeros_like(given).scatter(1, best, of_best)
    elif score != "softmax" and topk > 1:
        of_best = of_best / (of_best.sum(-1, keepdim=True) + _TINY)
    probs.view(given.shape).copy_(torch.zeros_like(given).scatter(1, best, of_best * scale))
    kept.view(given.shape).copy_(saved)
    _write_choice(best, experts, form, choice)


@kernel(
    "route_backward(Tensor choice, Tensor kept, Tensor grad, Tensor! dlogits, int topk, bool pre, float scale, str score, "
    "int form)",
    "choice", "kept", "grad", "dlogits",
)  # fmt: skip
def _route_backward(
    choice: Tensor,
    kept: Tensor,
    grad: Tensor,
    dlogits: Tensor,
    topk: int,
    pre: bool,
    scale: float,
    score: str,
    form: int,
) -> None:
    experts = grad.shape[-1]
    given = grad.reshape(-1, experts).float() * scale
    chosen, saved = _read_choice(choice, len(given), experts, form), kept.view(given.shape)
    given = given * chosen
    if score != "softmax" and topk > 1:
        given = _of_shares(given, _scores_again(saved, score) * chosen) * chosen
    dlogits.view(given.shape).copy_(_of_logits(given, saved, score))


def fused_topk_with_score_function_fwd(
    logits: Tensor,
    topk: int,
    use_pre_softmax: bool,
    num_groups: int | None,
    group_topk: int | None,
    scaling_factor: float | None,
    score_function: str,
    expert_bias: Tensor | None,
    routing_map_format: int,
    topk_indices: Tensor | None,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Shares of the experts that tokens have, zeros elsewhere; which these are, unless they are written as
    ``topk_indices``; and what is kept for the gradient, in float32."""
    probs = torch.empty_like(logits)
    kept = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    dense = topk_indices is not None
    choice = topk_indices if topk_indices is not None else _room_for_choice(logits, routing_map_format)
    launch(
        "route", logits, expert_bias, probs, choice, kept, topk, use_pre_softmax, num_groups or 0, group_topk or 0,
        scaling_factor or 1.0, score_function, _INDICES if dense else routing_map_format,
    )  # fmt: skip
    return probs, None if dense else choice, kept


def fused_topk_with_score_function_bwd(
    routing_map: Tensor,
    intermediate_output: Tensor,
    grad_probs: Tensor,
    grad_logits: Tensor,
    topk: int,
    use_pre_softmax: bool,
    scaling_factor: float | None,
    score_function: str,
    use_dense_indices: bool,
    routing_map_format: int,
) -> None:
    """Writes the gradient of logits."""
    form = _INDICES if use_dense_indices else routing_map_format
    launch(
        "route_backward", routing_map, intermediate_output, grad_probs, grad_logits, topk, use_pre_softmax,
        scaling_factor or 1.0, score_function, form,
    )  # fmt: skip


# -- losses ---------------------------------------------------------------------------------------------------------------


@kernel(
    "scores_for_loss(Tensor logits, Tensor! scores, Tensor! choice, Tensor! kept, int topk, str score, int form)",
    "logits", "scores", "choice", "kept",
)  # fmt: skip
def _scores_for_loss(
    logits: Tensor, scores: Tensor, choice: Tensor, kept: Tensor, topk: int, score: str, form: int
) -> None:
    experts = logits.shape[-1]
    shares, saved = _scores(logits.reshape(-1, experts).float(), score)
    if score != "softmax":
        shares = shares / (shares.sum(-1, keepdim=True) + _TINY)
    scores.view(shares.shape).copy_(shares)
    kept.view(saved.shape).copy_(saved)
    _write_choice(_best(shares, topk, 0, 0), experts, form, choice)


@kernel(
    "scores_for_loss_backward(Tensor kept, Tensor grad, Tensor! dlogits, str score)", "kept", "grad", "dlogits"
)  # fmt: skip
def _scores_for_loss_backward(kept: Tensor, grad: Tensor, dlogits: Tensor, score: str) -> None:
    given, saved = grad.float(), kept.view(grad.shape)
    if score != "softmax":
        given = _of_shares(given, _scores_again(saved, score))
    dlogits.copy_(_of_logits(given, saved, score))


def fused_score_for_moe_aux_loss_fwd(
    logits: Tensor, topk: int, score_function: str, routing_map_format: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Shares of all experts in float32, which a token would have, and what is kept for the gradient."""
    scores = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    choice, kept = _room_for_choice(logits, routing_map_format), torch.empty_like(scores)
    launch("scores_for_loss", logits, scores, choice, kept, topk, score_function, routing_map_format)
    return scores, choice, kept


def fused_score_for_moe_aux_loss_bwd(
    intermediate_output: Tensor, grad_scores: Tensor, grad_logits: Tensor, topk: int, score_function: str
) -> None:
    """Writes the gradient of logits."""
    launch("scores_for_loss_backward", intermediate_output, grad_scores, grad_logits, score_function)


@kernel(
    "balance(Tensor probs, Tensor loads, Tensor? tokens, Tensor! loss, Tensor! factor, float scale)",
    "probs", "loads", "loss", "factor",
)  # fmt: skip
def _balance(probs: Tensor, loads: Tensor, tokens: Tensor | None, loss: Tensor, factor: Tensor, scale: float) -> None:
    if tokens is not None:
        scale = scale / float(tokens) ** 2
    loss.copy_((probs.float().sum(0) * loads.float()).sum() * scale)
    factor.fill_(scale)


@kernel(
    "balance_backward(Tensor factor, Tensor loads, Tensor grad, Tensor! dprobs)", "factor", "loads", "grad", "dprobs"
)
def _balance_backward(factor: Tensor, loads: Tensor, grad: Tensor, dprobs: Tensor) -> None:
    dprobs.copy_((loads.float() * factor * grad.float()).expand(dprobs.shape))


def _aux_loss(probs: Tensor, loads: Tensor, tokens: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    loss = torch.empty((), dtype=probs.dtype, device=probs.device)
    factor = torch.empty((), dtype=torch.float32, device=probs.device)
    launch("balance", probs, loads, tokens, loss, factor, scale)
    return loss, factor


def fused_moe_aux_loss_fwd(
    probs: Tensor, tokens_per_expert: Tensor, total_num_tokens: int, num_experts: int, num_rows: int, num_cols: int,
    topk: int, coeff: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The loss in the format of ``probs``, and the factor in it, for its gradient."""
    return _aux_loss(probs, tokens_per_expert, None, num_experts * coeff / topk / total_num_tokens**2)


def fused_moe_aux_loss_fwd_graph_safe(
    probs: Tensor, tokens_per_expert: Tensor, total_num_tokens: Tensor, num_experts: int, num_rows: int, num_cols: int,
    topk: int, coeff: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The same where the number of tokens is on the GPU."""
    return _aux_loss(probs, tokens_per_expert, total_num_tokens, num_experts * coeff / topk)


def fused_moe_aux_loss_bwd(
    Const_buf: Tensor, tokens_per_expert: Tensor, num_rows: int, num_cols: int, grad_aux_loss: Any
) -> Tensor:
    """The gradient of ``probs``."""
    dprobs = torch.empty((num_rows, num_cols), dtype=grad_aux_loss.dtype, device=grad_aux_loss.device)
    launch("balance_backward", Const_buf, tokens_per_expert, grad_aux_loss, dprobs)
    return dprobs
