"""``vllm._moe_C_stable_libtorch``: routing tokens to experts, and products with experts' packed weights.

Without data experts are balanced, and as many are used as there are choices.
"""

from __future__ import annotations

import torch

from kernbench.compiled_operators.expert_blocks import fill_blocks
from kernbench.compiled_operators.moved import moving, moving_all
from kernbench.compiled_operators.operators import Operators
from kernbench.cost.by_values import CallOperands
from kernbench.cost.matrix_work import MatrixWork
from kernbench.topology.dtypes import ITEM_BYTES

Tensor = torch.Tensor

operators = Operators("_moe_C")


@operators.value
def topk_softmax(
    topk_weights: Tensor, topk_indices: Tensor, token_expert_indices: Tensor, gating_output: Tensor, renormalize: bool,
    bias: Tensor | None, is_padding: Tensor | None = None,
) -> None:  # fmt: skip
    """The shares of the experts that a token prefers, ``[tokens, k]``, and which these are; ``bias`` counts for the choice.
    ``token_expert_indices``: of token ``t``'s choice ``k``, ``k * tokens + t``. Padding has no expert: -1."""
    shares = gating_output.float().softmax(-1)
    _choose(topk_weights, topk_indices, token_expert_indices, shares, bias, is_padding, 1.0, renormalize=renormalize)


@operators.value
def topk_sigmoid(
    topk_weights: Tensor, topk_indices: Tensor, token_expert_indices: Tensor, gating_output: Tensor, renormalize: bool,
    bias: Tensor | None, routed_scaling_factor: float, is_padding: Tensor | None = None,
) -> None:  # fmt: skip
    """The same of experts that are scored each for itself, times ``routed_scaling_factor``."""
    shares = gating_output.float().sigmoid()
    _choose(
        topk_weights, topk_indices, token_expert_indices, shares, bias, is_padding, routed_scaling_factor,
        renormalize=renormalize,
    )  # fmt: skip


def _choose(
    weights: Tensor, indices: Tensor, places: Tensor, shares: Tensor, bias: Tensor | None, is_padding: Tensor | None,
    factor: float, *, renormalize: bool,
) -> None:  # fmt: skip
    shares = shares.nan_to_num(0.0, 0.0, 0.0)
    tokens, count = weights.shape
    chosen = _first(shares if bias is None else shares + bias.float(), count)
    scores = shares.gather(-1, chosen)
    found = scores * factor
    if renormalize:
        total = scores.sum(-1, keepdim=True)
        found = found / torch.where(total > 0, total, 1.0)
    if is_padding is not None:
        found, chosen = found.masked_fill(is_padding[:, None], 0), chosen.masked_fill(is_padding[:, None], -1)
    weights.copy_(found)
    indices.copy_(chosen)
    places.copy_(torch.arange(count) * tokens + torch.arange(tokens)[:, None])


def _first(scores: Tensor, count: int) -> Tensor:
    """The places of the largest ones in a row, in their order; of equal ones the first come first."""
    return scores.sort(stable=True, dim=-1, descending=True).indices[:, :count]


SIGMOID = 1
"""``scoring_func`` of :func:`grouped_topk`: scores are sigmoids of what is given; else they are what is given."""


@operators.value
def grouped_topk(
    scores: Tensor, n_group: int, topk_group: int, topk: int, renormalize: bool, routed_scaling_factor: float, bias: Tensor,
    scoring_func: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The experts that a token prefers among those of its best groups: those with the largest sums of their best two."""
    shares = scores.float().sigmoid() if scoring_func == SIGMOID else scores.float()
    judged = (shares + bias.float()).unflatten(-1, (n_group, -1))
    if n_group > 1:
        groups = _first(judged.topk(2, -1).values.sum(-1), topk_group)
        left = torch.ones(len(scores), n_group, dtype=torch.bool).scatter_(1, groups, False)
        judged = judged.masked_fill(left[..., None], -torch.inf)
    chosen = _first(judged.flatten(1), topk)
    weights = shares.gather(-1, chosen)
    total = weights.sum(-1, keepdim=True) + 1e-20 if renormalize else 1.0
    return weights / total * routed_scaling_factor, chosen.to(torch.int32)


@operators.shape("grouped_topk")
def _of_grouped_topk(scores: Tensor, topk: int) -> tuple[Tensor, Tensor]:
    return (
        scores.new_empty(len(scores), topk, dtype=torch.float32),
        scores.new_empty(len(scores), topk, dtype=torch.int32),
    )


@operators.value
def moe_sum(input: Tensor, output: Tensor, topk_ids: Tensor | None = None, expert_map: Tensor | None = None) -> None:
    """``[tokens, k, width]`` to ``[tokens, width]``."""
    parts = input.float()
    if topk_ids is not None:  # what is of experts elsewhere was not written
        here = topk_ids >= 0
        if expert_map is not None:
            here = here & (expert_map[topk_ids.clamp(min=0).long()] >= 0)
        parts = torch.where(here[..., None], parts, 0)
    output.copy_(parts.sum(1))


@operators.value
def moe_align_block_size(
    topk_ids: Tensor, num_experts: int, block_size: int, sorted_token_ids: Tensor, experts_ids: Tensor,
    num_tokens_post_pad: Tensor, maybe_expert_map: Tensor | None, scatter_idx: Tensor | None = None,
) -> None:  # fmt: skip
    """The places in ``topk_ids`` by expert, each expert's filled up to whole blocks with a place that is none; the expert of
    each block, ``-1`` where there is none; how many places there are. Experts that ``maybe_expert_map`` has not are left out.
    """
    chosen = topk_ids.flatten().tolist()
    numbers = [*range(num_experts)] if maybe_expert_map is None else maybe_expert_map.tolist()
    if scatter_idx is not None:
        known = [0 <= each < num_experts and numbers[each] >= 0 for each in chosen]
        scatter_idx.copy_(torch.tensor([at if here else -1 for at, here in enumerate(known)]).view(scatter_idx.shape))
    here = [(expert, number) for expert, number in enumerate(numbers) if number >= 0]
    ends = fill_blocks(chosen, here, block_size, sorted_token_ids, experts_ids)
    num_tokens_post_pad.fill_(ends[-1] if ends else 0)


@operators.value
def moe_permute_unpermute_supported() -> bool:
    """Whether it was built with them: wheels are."""
    return True


for _name in ("topk_softmax", "topk_sigmoid", "topk_softplus_sqrt"):
    operators.cost(_name)(moving("topk_weights", "topk_indices", "token_expert_indices", "gating_output"))
for _name in (
    "grouped_topk",
    "moe_prepare_scatter",
    "batched_moe_align_block_size",
    "fused_globalize_align_block_size",
):
    operators.cost(_name)(moving_all)
operators.cost("moe_sum")(moving("input", "output"))
operators.cost("moe_align_block_size")(moving("topk_ids", "topk_ids", "sorted_token_ids", "experts_ids"))
for _name in ("moe_permute", "moe_permute_with_scratch"):  # a row is read for each that is written
    operators.cost(_name)(moving("permuted_input", "permuted_input", "topk_ids", "inv_permuted_idx", "permuted_idx"))
operators.cost("moe_unpermute")(moving("permuted_hidden_states", "topk_weights", "inv_permuted_idx", "hidden_states"))
operators.cost("shuffle_rows")(moving("output_tensor", "output_tensor", "dst2src_map"))


# -- products with packed weights `[experts, ...]`, whose scales are read with them: UNVERIFIED ----------------------------


@operators.cost("moe_wna16_marlin_gemm")
def _of_marlin(operands: CallOperands) -> MatrixWork:
    held = sum(
        each.nbytes for name in ("b_q_weight", "b_scales", "b_zeros_or_none") if (each := operands[name]) is not None
    )
    rows, width, inner = operands["size_m"] * operands["top_k"], operands["size_n"], operands["size_k"]
    return _of_experts(operands["a"].format, operands["b_q_weight"].shape[0], rows, width, inner, held)


@operators.cost("moe_wna16_gemm")
def _of_wna16(operands: CallOperands) -> MatrixWork:
    held = sum(each.nbytes for name in ("b_qweight", "b_scales", "b_qzeros") if (each := operands[name]) is not None)
    x, weight = operands["input"], operands["b_qweight"]
    rows = operands["output"].elements // max(weight.shape[1], 1)
    return _of_experts(x.format, weight.shape[0], rows, weight.shape[1], x.shape[-1], held)


def _of_experts(fmt: str, experts: int, rows: int, width: int, inner: int, held: int) -> MatrixWork:
    """Products of ``rows`` rows in all, each with the weight of one of the ``experts``, which have ``held`` bytes together."""
    fmt = "fp8" if fmt.startswith("fp8") else fmt
    used = max(min(experts, rows), 1)
    stored = held / max(experts * width * inner * ITEM_BYTES[fmt], 1)
    return MatrixWork(((-(-rows // used), width, inner),) * used, fmt, "fp16", grouped=True, stored=stored)
