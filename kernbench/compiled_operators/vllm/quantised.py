"""``vllm._C_stable_libtorch``: numbers in eight bits with scales, and products of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernbench.compiled_operators import eight_bits
from kernbench.compiled_operators.moved import moving, moving_all
from kernbench.compiled_operators.vllm.core import operators
from kernbench.cost.by_values import CallOperands, SeenOperand
from kernbench.cost.matrix_work import MatrixWork

Tensor = torch.Tensor

BLOCK = 128
"""Numbers along each dimension of a weight, and along a row of activations, that have a scale, where blocks have."""

_LEAST = 1 / 512
"""The least scale of a token, in units of the format's largest number's reciprocal."""


@operators.value
def static_scaled_fp8_quant(
    result: Tensor, input: Tensor, scale: Tensor, group_shape: Sequence[int] | None = None
) -> None:
    """``input`` over its scale."""
    if scale.numel() > 1:
        raise NotImplementedError("vllm: the values of static_scaled_fp8_quant in its stand-in take one scale")
    eight_bits.store(input.float() / scale.float(), result)


@operators.value
def dynamic_scaled_fp8_quant(result: Tensor, input: Tensor, scale: Tensor) -> None:
    """``scale``: the largest magnitude over the largest number of the format."""
    scale.copy_(input.abs().amax().float() / eight_bits.largest_of(result.dtype))
    eight_bits.store(input.float() / scale, result)


@operators.value
def dynamic_per_token_scaled_fp8_quant(result: Tensor, input: Tensor, scale: Tensor, scale_ub: Tensor | None) -> None:
    """The same by rows; ``scale_ub``: the largest magnitude that counts."""
    most = eight_bits.largest_of(result.dtype)
    largest = input.float().abs().amax(-1, keepdim=True)
    largest = largest if scale_ub is None else largest.minimum(scale_ub.float())
    scales = (largest / most).clamp(min=_LEAST / most)
    scale.copy_(scales.view(scale.shape))
    eight_bits.store(input.float() / scales, result)


@operators.value
def per_token_group_fp8_quant(
    input: Tensor, output_q: Tensor, output_s: Tensor, group_size: int, eps: float, fp8_max: float, scale_ue8m0: bool
) -> None:
    """The same by groups of a row's numbers; ``scale_ue8m0``: scales are powers of two."""
    groups, scales = eight_bits.groups_and_scales(input, group_size, eps, fp8_max)
    scales = torch.exp2(scales.log2().ceil()) if scale_ue8m0 else scales
    output_s.copy_(scales)
    output_q.copy_((groups / scales[..., None]).clamp(-fp8_max, fp8_max).flatten(-2))


@operators.value
def cutlass_scaled_mm(
    out: Tensor, a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor, bias: Tensor | None
) -> None:
    """``[M, K] @ [K, N]``, each operand times its scales: one; of each row of ``a`` and column of ``b``; or of each block."""
    product = _scaled(a, a_scales.view(-1, 1) if a_scales.numel() == len(a) else a_scales, 1) @ _scaled(
        b, b_scales, BLOCK
    )
    out.copy_(product if bias is None else product + bias.float())


def _scaled(stored: Tensor, scales: Tensor, rows: int) -> Tensor:
    if scales.numel() > 1 and _is_of_blocks(stored.shape, scales.shape):
        scales = scales.repeat_interleave(rows, 0)[: len(stored)]
        scales = scales.repeat_interleave(BLOCK, 1)[:, : stored.shape[1]]
    return stored.float() * scales.float()


def _is_of_blocks(shape: Sequence[int], scales: Sequence[int]) -> bool:
    return len(scales) == 2 and 1 < shape[1] != scales[1] and scales[1] == -(-shape[1] // BLOCK) and shape[1] > BLOCK


for _name in ("static_scaled_fp8_quant", "dynamic_scaled_fp8_quant", "dynamic_per_token_scaled_fp8_quant"):
    operators.cost(_name)(moving("result", "input", "scale"))
operators.cost("per_token_group_fp8_quant")(moving("input", "output_q", "output_s"))


@operators.cost("cutlass_scaled_mm")
def _of_product(operands: CallOperands) -> MatrixWork:
    a, out, scales = operands["a"], operands["out"], operands["a_scales"]
    blocks = _is_of_blocks(a.shape, scales.shape)  # sums of a block are added up in 32 bits
    return eight_bits.work_of_product(a, out.shape[-1], out, exact=blocks)


operators.cost("cutlass_scaled_mm_azp")(_of_product)


# -- experts: the products of each with its tokens -------------------------------------------------------------------------


@operators.cost("cutlass_moe_mm")
def _of_experts(operands: CallOperands) -> MatrixWork:
    """Balanced: which token has which expert is known on the GPU alone. UNVERIFIED."""
    a, b, out = operands["a_tensors"], operands["b_tensors"], operands["out_tensors"]
    return _grouped("fp8" if a.format.startswith("fp8") else a.format, b.shape[0], out, a.shape[-1], 1.0)


@operators.cost("cutlass_fp4_group_mm")
def _of_experts_in_fp4(operands: CallOperands) -> MatrixWork:
    a, b, out, scales = operands["a"], operands["b"], operands["out"], operands["b_blockscales"]
    return _grouped("fp4", b.shape[0], out, 2 * a.shape[-1], (b.nbytes + scales.nbytes) / max(b.nbytes, 1))


operators.cost("cutlass_mxfp4_group_mm")(_of_experts_in_fp4)


def _grouped(fmt: str, experts: int, out: SeenOperand, inner: int, stored: float) -> MatrixWork:
    rows, width = out.elements // max(out.shape[-1], 1), out.shape[-1]
    used = max(min(experts, rows), 1)
    return MatrixWork(((-(-rows // used), width, inner),) * used, fmt, out.format, grouped=True, stored=stored)


for _name in (
    "get_cutlass_moe_mm_data", "get_cutlass_moe_mm_problem_sizes_from_expert_offsets", "get_cutlass_batched_moe_mm_data",
    "scaled_fp4_experts_quant", "silu_and_mul_scaled_fp4_experts_quant", "mxfp4_experts_quant",
    "silu_and_mul_mxfp4_experts_quant", "per_token_group_quant_int8", "per_token_group_fp8_quant_packed",
    "rms_norm_static_fp8_quant", "rms_norm_dynamic_per_token_quant", "rms_norm_per_block_quant",
    "silu_and_mul_per_block_quant", "silu_and_mul_quant", "persistent_masked_m_silu_mul_quant",
):  # fmt: skip
    operators.cost(_name)(moving_all)
operators.cost("fused_add_rms_norm_static_fp8_quant")(moving("result", "input", "residual", "residual", "weight"))

# -- eight bits of whole numbers ------------------------------------------------------------------------------------------

_MOST = 127
"""The largest magnitude that is used of whole numbers in eight bits."""


@operators.value
def static_scaled_int8_quant(result: Tensor, input: Tensor, scale: Tensor, azp: Tensor | None) -> None:
    """``input`` over its scale, rounded to even; ``azp``: what zero is stored as."""
    numbers = (input.float() / scale.float()).round()
    result.copy_((numbers if azp is None else numbers + azp).clamp(-_MOST - 1, _MOST))


@operators.value
def dynamic_scaled_int8_quant(result: Tensor, input: Tensor, scale: Tensor, azp: Tensor | None) -> None:
    """The same by rows: ``scale`` is the largest magnitude over 127."""
    if azp is not None:
        raise NotImplementedError("vllm: the values of dynamic_scaled_int8_quant in its stand-in take no azp")
    largest = input.float().abs().amax(-1, keepdim=True)
    scale.copy_((largest / _MOST).view(scale.shape))
    result.copy_((input.float() * torch.where(largest > 0, _MOST / largest, 0)).round().clamp(-_MOST - 1, _MOST))


for _name in ("static_scaled_int8_quant", "dynamic_scaled_int8_quant"):
    operators.cost(_name)(moving("result", "input", "scale"))
