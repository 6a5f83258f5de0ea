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
def moe_align_block_size(
    topk_ids: Tensor, num_experts: int, block_size: int, sorted_token_ids: Tensor, experts_ids: Tensor,
    num_tokens_post_pad: Tensor, maybe_expert_map: Tensor | None, scatter_idx: Tensor | None = None,
) -> None:  # fmt: skip
    """The places in ``topk_ids`` by expert, each expert's filled up to whole blocks with a place that is none; the expert of
    each block, ``-1`` where there is none; how many places there are. Experts that ``maybe_expert_map`` has not are left out.
    """
    if scatter_idx is not None:
        raise NotImplementedError("vllm: the values of moe_align_block_size in its stand-in take no scatter_idx")
    chosen = topk_ids.flatten().tolist()
    numbers = [*range(num_experts)] if maybe_expert_map is None else maybe_expert_map.tolist()
    places: list[int] = []
    blocks: list[int] = []
    for expert, number in enumerate(numbers):
        mine = [] if number < 0 else [place for place, each in enumerate(chosen) if each == expert]
        places += mine + [len(chosen)] * (-len(mine) % block_size)
        blocks += [number] * -(-len(mine) // block_size)
    sorted_token_ids.fill_(len(chosen))[: len(places)] = torch.tensor(places, dtype=sorted_token_ids.dtype)
    experts_ids.fill_(-1)[: len(blocks)] = torch.tensor(blocks, dtype=experts_ids.dtype)
    num_tokens_post_pad.fill_(len(places))


@operators.value
def moe_permute_unpermute_supported() -> bool:
    """Whether it was built with them: wheels are."""
    return True


operators.cost("topk_softmax")(moving("topk_weights", "topk_indices", "token_expert_indices", "gating_output"))
operators.cost("moe_sum")(moving("input", "output"))
operators.cost("moe_align_block_size")(moving("topk_ids", "topk_ids", "sorted_token_ids", "experts_ids"))
