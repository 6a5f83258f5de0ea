"""``vllm._moe_C_stable_libtorch``: routing tokens to experts."""

from __future__ import annotations

import torch

from kernbench.compiled_operators.moved import moving
from kernbench.compiled_operators.operators import Operators

Tensor = torch.Tensor

operators = Operators("_moe_C")


@operators.value
def topk_softmax(
    topk_weights: Tensor, topk_indices: Tensor, token_expert_indices: Tensor, gating_output: Tensor, renormalize: bool,
    bias: Tensor | None, is_padding: Tensor | None,
) -> None:  # fmt: skip
    """The shares of the experts that a token prefers, ``[tokens, k]``, and which these are; ``bias`` counts for the choice.
    ``token_expert_indices``: of token ``t``'s choice ``k``, ``k * tokens + t``."""
    if is_padding is not None:
        raise NotImplementedError("vllm: the values of topk_softmax in its stand-in take no is_padding")
    shares = gating_output.float().softmax(-1)
    tokens, count = topk_weights.shape
    chosen = (shares if bias is None else shares + bias.float()).topk(count, -1).indices
    weights = shares.gather(-1, chosen)
    topk_weights.copy_(weights / weights.sum(-1, keepdim=True) if renormalize else weights)
    topk_indices.copy_(chosen)
    token_expert_indices.copy_(torch.arange(count) * tokens + torch.arange(tokens)[:, None])


@operators.value
def moe_sum(input: Tensor, output: Tensor, topk_ids: Tensor | None = None, expert_map: Tensor | None = None) -> None:
    """``[tokens, k, width]`` to ``[tokens, width]``."""
    if expert_map is not None:
        raise NotImplementedError("vllm: the values of moe_sum in its stand-in take no expert_map")
    output.copy_(input.float().sum(1))


@operators.value
def moe_permute_unpermute_supported() -> bool:
    """Whether it was built with them: wheels are."""
    return True


operators.cost("topk_softmax")(moving("topk_weights", "topk_indices", "token_expert_indices", "gating_output"))
operators.cost("moe_sum")(moving("input", "output"))
