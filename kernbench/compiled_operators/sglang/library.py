"""The operators of ``sglang-kernel``, which is imported as ``sgl_kernel``, by the schemas in its libraries.

Those without values have shapes, for runs without data, and are counted by their bytes.
"""

from __future__ import annotations

import torch

from kernbench.compiled_operators import eight_bits
from kernbench.compiled_operators.choices import best, shares
from kernbench.compiled_operators.expert_blocks import fill_blocks
from kernbench.compiled_operators.layers import gated, rms_normed, rotated
from kernbench.compiled_operators.moved import moving, taken_from
from kernbench.compiled_operators.operators import Operators
from kernbench.compiled_operators.paged_attention import flash_attention_3
from kernbench.cost.by_values import CallOperands
from kernbench.cost.matrix_work import MatrixWork
from kernbench.cost.work import StatedWork
from kernbench.torch_backend.gpu.memory.captured_memory import weak_reference

Tensor = torch.Tensor

common, flash_mla, spatial = (Operators("sgl_kernel") for _ in range(3))
flash = flash_attention_3("sgl_kernel", sinks="sinks")

# -- norms ----------------------------------------------------------------------------------------------------------------


@common.value
def rmsnorm(output: Tensor, input: Tensor, weight: Tensor, eps: float) -> None:
    """``input`` over the root of the mean of its squares, times ``weight``."""
    output.copy_(rms_normed(input, weight, eps))


@common.value
def fused_add_rmsnorm(input: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
    """``residual`` becomes the sum of both, ``input`` the norm of the sum before it is rounded."""
    added(input, residual, weight, eps)


@common.value
def gemma_rmsnorm(output: Tensor, input: Tensor, weight: Tensor, eps: float) -> None:
    """The same, times ``weight + 1``."""
    output.copy_(rms_normed(input, weight, eps, 1.0))


@common.value
def gemma_fused_add_rmsnorm(input: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
    """The same, times ``weight + 1``."""
    added(input, residual, weight, eps, 1.0)


def added(input: Tensor, residual: Tensor, weight: Tensor, eps: float, plus: float = 0.0) -> None:
    """``residual`` becomes the sum of both, ``input`` its norm."""
    total = input.float() + residual.float()
    residual.copy_(total)
    input.copy_(rms_normed(total, weight, eps, plus))


for _name in ("rmsnorm", "gemma_rmsnorm"):
    common.cost(_name)(moving("output", "input", "weight"))
for _name in ("fused_add_rmsnorm", "gemma_fused_add_rmsnorm"):
    common.cost(_name)(moving("input", "input", "residual", "residual", "weight"))

# -- activations, rotary embedding ----------------------------------------------------------------------------------------


@common.value
def silu_and_mul(out: Tensor, input: Tensor) -> None:
    """The first half through SiLU, times the second."""
    out.copy_(gated("silu", input))


@common.value
def gelu_and_mul(out: Tensor, input: Tensor) -> None:
    """The first half through GELU, times the second."""
    out.copy_(gated("gelu", input))


@common.value
def gelu_tanh_and_mul(out: Tensor, input: Tensor) -> None:
    """The first half through GELU by tanh, times the second."""
    out.copy_(gated("gelu_tanh", input))


for _name in ("silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul"):
    common.cost(_name)(moving("out", "input"))


@common.value
def rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor | None, head_size: int, cos_sin_cache: Tensor, is_neox: bool
) -> None:
    """``cos_sin_cache``: ``[positions, width]``, cosines in its first half; the first ``width`` elements of each head are
    turned."""
    cos, sin = cos_sin_cache[positions.flatten().long()].float()[:, None].chunk(2, -1)
    width = 2 * cos.shape[-1]
    for given in (query, key):
        if given is not None:
            heads = given.reshape(positions.numel(), -1, head_size).clone()
            heads[..., :width] = rotated(heads[..., :width], cos, sin, halves=is_neox).to(heads.dtype)
            given.copy_(heads.view(given.shape))


@common.cost("rotary_embedding")
def cost_of_rotation(operands: CallOperands) -> StatedWork:
    """Queries and keys are read and written, and a row of the table is read for each position."""
    positions, query, key = operands["positions"], operands["query"], operands["key"]
    turned = query.nbytes + (0 if key is None else key.nbytes)
    return StatedWork(2 * turned + positions.nbytes + taken_from(operands["cos_sin_cache"], positions))


# -- experts --------------------------------------------------------------------------------------------------------------


@common.value
def topk_softmax(
    topk_weights: Tensor, topk_indices: Tensor, gating_output: Tensor, renormalize: bool, moe_softcapping: float,
    correction_bias: Tensor | None,
) -> None:  # fmt: skip
    """The shares of the experts that a token prefers, ``[tokens, k]``, and which these are; the bias counts for the choice."""
    scores = gating_output.float()
    if moe_softcapping:
        scores = moe_softcapping * torch.tanh(scores / moe_softcapping)
    if correction_bias is not None:
        scores = scores + correction_bias
    _choose(topk_weights, topk_indices, scores.softmax(-1), None, renormalize)


@common.value
def topk_sigmoid(
    topk_weights: Tensor, topk_indices: Tensor, gating_output: Tensor, renormalize: bool, correction_bias: Tensor | None
) -> None:
    """The same of experts that are scored each for itself."""
    _choose(topk_weights, topk_indices, gating_output.float().sigmoid(), correction_bias, renormalize)


def _choose(weights: Tensor, indices: Tensor, shares: Tensor, bias: Tensor | None, renormalize: bool) -> None:
    """Of equal ones the first come first."""
    judged = shares if bias is None else shares + bias.float()
    chosen = judged.sort(stable=True, dim=-1, descending=True).indices[:, : weights.shape[1]]
    found = shares.gather(-1, chosen)
    weights.copy_(found / found.sum(-1, keepdim=True) if renormalize else found)
    indices.copy_(chosen)


for _name in ("topk_softmax", "topk_sigmoid"):
    common.cost(_name)(moving("topk_weights", "topk_indices", "gating_output"))


@common.value
def moe_align_block_size(
    topk_ids: Tensor, num_experts: int, block_size: int, sorted_token_ids: Tensor, experts_ids: Tensor,
    num_tokens_post_pad: Tensor, cumsum_buffer: Tensor, ignore_invalid_expert: bool,
) -> None:  # fmt: skip
    """The places in ``topk_ids`` in blocks of experts, and how many there are; ``num_experts`` counts ``-1``, too, which stands
    for experts of other ranks and comes first, or is left out."""
    experts = range(0 if ignore_invalid_expert else -1, num_experts - 1)
    chosen = topk_ids.flatten().tolist()
    ends = fill_blocks(chosen, zip(experts, experts, strict=True), block_size, sorted_token_ids, experts_ids)
    cumsum_buffer.zero_()[1 : 1 + len(ends)] = torch.tensor(ends, dtype=cumsum_buffer.dtype)
    num_tokens_post_pad.fill_(ends[-1])


common.cost("moe_align_block_size")(moving("topk_ids", "topk_ids", "sorted_token_ids", "experts_ids"))


@common.value
def moe_sum(input: Tensor, output: Tensor) -> None:
    """``[tokens, k, width]`` to ``[tokens, width]``."""
    output.copy_(input.float().sum(1))


@common.value
def moe_sum_reduce(input: Tensor, output: Tensor, routed_scaling_factor: float) -> None:
    """The same, times a factor."""
    output.copy_(routed_scaling_factor * input.float().sum(1))


for _name in ("moe_sum", "moe_sum_reduce"):
    common.cost(_name)(moving("input", "output"))

# -- probabilities of tokens ----------------------------------------------------------------------------------------------


@common.value
def top_k_renorm_probs(probs: Tensor, renorm_probs: Tensor, maybe_top_k_arr: Tensor | None, top_k_val: int) -> None:
    """Of each row the largest ones, and those that equal the least of these, over their sum; zeros for others."""
    counts = torch.full((len(probs),), top_k_val) if maybe_top_k_arr is None else maybe_top_k_arr
    _keep(probs, renorm_probs, best(probs, counts))


@common.value
def top_p_renorm_probs(probs: Tensor, renorm_probs: Tensor, maybe_top_p_arr: Tensor | None, top_p_val: float) -> None:
    """Of each row the fewest of the largest ones whose sum is at least that, over their sum; zeros for others."""
    share = torch.full((len(probs),), top_p_val) if maybe_top_p_arr is None else maybe_top_p_arr
    ordered = probs.sort(-1, descending=True).values
    before = ordered.cumsum(-1) - ordered
    counts = (before < share[:, None]).sum(-1, keepdim=True).clamp(min=1)
    _keep(probs, renorm_probs, probs >= ordered.gather(-1, counts - 1))


def _keep(probs: Tensor, into: Tensor, kept: Tensor) -> None:
    into.copy_(shares(torch.where(kept, probs, 0)))


for _name in ("top_k_renorm_probs", "top_p_renorm_probs"):
    common.cost(_name)(moving("probs", "probs", "renorm_probs"))

# -- numbers in eight bits, and products of them --------------------------------------------------------------------------

MOST_FP8 = eight_bits.largest_of(torch.float8_e4m3fn)


@common.value
def sgl_per_token_quant_fp8(input: Tensor, output_q: Tensor, output_s: Tensor) -> None:
    """Each row by its largest magnitude over the format's largest number; rows of zeros are zeros."""
    rows = input.float()
    scales = rows.abs().amax(-1, keepdim=True) / MOST_FP8
    output_s[: len(rows)] = scales.view(-1, *output_s.shape[1:])
    eight_bits.store(torch.where(scales > 0, rows / scales, 0.0), output_q[: len(rows)])


@common.value
def sgl_per_token_group_quant_8bit(
    input: Tensor, output_q: Tensor, output_s: Tensor, group_size: int, eps: float, scale_ue8m0: bool
) -> None:
    """The same by groups of a row's numbers; ``eps``: the least magnitude that counts."""
    if scale_ue8m0:
        raise NotImplementedError(
            "sglang: scales that are packed powers of two have no values in its stand-in, only a cost"
        )
    groups, scales = eight_bits.groups_and_scales(input, group_size, eps, eight_bits.largest_of(output_q.dtype))
    output_s.copy_(scales)
    eight_bits.store((groups / scales[..., None]).flatten(-2), output_q)


for _name in ("sgl_per_token_quant_fp8", "sgl_per_token_group_quant_8bit", "sgl_per_token_group_quant_8bit_v2"):
    common.cost(_name)(moving("input", "output_q", "output_s"))


def scaled_product(
    mat_a: Tensor, mat_b: Tensor, scales_a: Tensor, scales_b: Tensor, out_dtype: torch.dtype, bias: Tensor | None
) -> Tensor:
    """``[M, K] @ [K, N]``, each row of the one and column of the other times its scale."""
    product = (mat_a.float() * scales_a.float().view(-1, 1)) @ (mat_b.float() * scales_b.float().view(1, -1))
    return (product if bias is None else product + bias.float()).to(out_dtype)


def _shape_of_product(mat_a: Tensor, mat_b: Tensor, out_dtype: torch.dtype) -> Tensor:
    return mat_a.new_empty((mat_a.shape[0], mat_b.shape[1]), dtype=out_dtype)


def _cost_of_product(operands: CallOperands) -> MatrixWork:
    return eight_bits.work_of_product(operands["mat_a"], operands["mat_b"].shape[-1], operands.results[0])


for _name in ("fp8_scaled_mm", "int8_scaled_mm"):
    common.value(_name)(scaled_product)
    common.shape(_name)(_shape_of_product)
    common.cost(_name)(_cost_of_product)

# -- memory of graphs ----------------------------------------------------------------------------------------------


@common.program
def weak_ref_tensor(tensor: Tensor) -> Tensor:
    """A tensor in the same memory, which does not keep it."""
    return weak_reference(tensor)
