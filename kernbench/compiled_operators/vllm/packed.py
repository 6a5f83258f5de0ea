"""``vllm._C_stable_libtorch``: weights of which several numbers lie in one word (AWQ, GPTQ, NVFP4), and products with them.

A product is computed at the rate of its activations' format and reads packed weights with their scales; unpacking is hidden.
Marlin reaches that up to some 32 rows (Frantar et al. 2024, figure 1), beyond which, and for Machete, it is UNVERIFIED.
"""

from __future__ import annotations

import torch

from kernbench.compiled_operators.moved import moving, moving_all
from kernbench.compiled_operators.vllm.core import operators
from kernbench.cost.by_values import CallOperands, SeenOperand
from kernbench.cost.matrix_work import MatrixWork
from kernbench.topology.dtypes import ITEM_BYTES

Tensor = torch.Tensor

WORD = 32
"""Bits of a word."""
_AWQ = (0, 4, 1, 5, 2, 6, 3, 7)
"""The places of a word's numbers in AWQ's order, from the lowest bits on."""


def product_with_packed(x: SeenOperand, width: int, *weights: SeenOperand | None, out: str = "") -> MatrixWork:
    """Of ``x [.., K]`` with a weight ``[K, width]`` that is all of ``weights``: numbers, scales, zeros."""
    inner = x.shape[-1]
    fmt = "fp8" if x.format.startswith("fp8") else x.format
    held = sum(each.nbytes for each in weights if each is not None)
    return MatrixWork(
        ((x.elements // max(inner, 1), width, inner),), fmt, out or x.format,
        stored=held / max(inner * width * ITEM_BYTES[fmt], 1),
    )  # fmt: skip


def unpacked(words: Tensor, bits: int, dim: int, order: tuple[int, ...] | None = None) -> Tensor:
    """The whole numbers of which several lie in a word, along a dimension; the first has the lowest bits.

    Args:
        words: 32 bits each.
        bits: of a number.
        dim: along which a word's numbers lie.
        order: at which place of a word each of its numbers is; None: in order.
    """
    places = torch.tensor(order or range(WORD // bits), dtype=torch.int32)
    found = (words.unsqueeze(-1) >> places * bits) & ((1 << bits) - 1)
    dim %= words.ndim
    return found.movedim(-1, dim + 1).flatten(dim, dim + 1)


def _by_groups(scales: Tensor, rows: int) -> Tensor:
    """A row for each of ``rows``, of a row for each group of them."""
    return scales.repeat_interleave(rows // len(scales), 0)


# -- AWQ as its files have it: `[K, N / 8]` words, zeros likewise by groups, scales `[groups, N]` --------------------------


def _of_awq(weight: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    numbers, less = (unpacked(each, 4, 1, _AWQ) for each in (weight, zeros))
    return (numbers - _by_groups(less, len(numbers))) * _by_groups(scales, len(numbers)).float()


@operators.value
def awq_dequantize(_kernel: Tensor, _scaling_factors: Tensor, _zeros: Tensor) -> Tensor:
    """The weight ``[K, N]``."""
    return _of_awq(_kernel, _scaling_factors, _zeros).to(_scaling_factors.dtype)


@operators.value
def awq_gemm(_in_feats: Tensor, _kernel: Tensor, _scaling_factors: Tensor, _zeros: Tensor) -> Tensor:
    """``[M, K] @ [K, N]``, the weight rounded to the activations' format."""
    weight = _of_awq(_kernel, _scaling_factors, _zeros).to(_in_feats.dtype).float()
    return (_in_feats.float() @ weight).to(_in_feats.dtype)


operators.cost("awq_dequantize")(moving_all)


@operators.cost("awq_gemm")
def _of_awq_gemm(operands: CallOperands) -> MatrixWork:
    weights = (operands[name] for name in ("_kernel", "_scaling_factors", "_zeros"))
    return product_with_packed(operands["_in_feats"], operands.results[0].shape[-1], *weights)


# -- Machete: `[K / numbers in a word, N]` words, scales and what zeros give `[groups, N]` ----------------------------------


def _bits_and_bias(kind: int) -> tuple[int, int]:
    """Bits of a number, and what is stored above it, by vLLM's number of the type: bits of exponent and mantissa, 8 each; a
    sign; 32 bits of bias."""
    exponent, mantissa, signed = kind & 0xFF, kind >> 8 & 0xFF, kind >> 16 & 1
    if exponent or signed:
        raise NotImplementedError("vllm: the values of machete_mm in its stand-in take whole numbers without a sign")
    return mantissa, kind >> 17 & 0xFFFFFFFF


@operators.value
def machete_prepack_B(B: Tensor) -> Tensor:
    """The words for :func:`machete_mm`, which is the only one to read them: as they are. On a GPU they change places."""
    return B.contiguous()


@operators.shape("machete_prepack_B")
def _of_prepacked(B: Tensor) -> Tensor:
    return torch.empty_like(B, memory_format=torch.contiguous_format)


@operators.value
def machete_mm(
    A: Tensor, B: Tensor, b_type: int, out_type: torch.dtype | None, group_scales: Tensor | None,
    group_zeros: Tensor | None, channel_scales: Tensor | None, token_scales: Tensor | None,
) -> Tensor:  # fmt: skip
    """``[M, K] @ [K, N]``; a weight is its number times its group's scale, plus ``group_zeros``, in the activations' format."""
    bits, bias = _bits_and_bias(b_type)
    weight = (unpacked(B, bits, 0) - bias).float()
    for each, put in ((group_scales, torch.mul), (group_zeros, torch.add)):
        weight = weight if each is None else put(weight, _by_groups(each.float(), len(weight)))
    found = A.float() @ weight.to(A.dtype).float()
    for scales in (channel_scales, None if token_scales is None else token_scales.view(-1, 1)):
        found = found if scales is None else found * scales.float()
    return found.to(out_type or A.dtype)


@operators.shape("machete_mm")
def _of_machete(A: Tensor, B: Tensor, out_type: torch.dtype | None) -> Tensor:
    return A.new_empty(len(A), B.shape[1], dtype=out_type or A.dtype)


operators.cost("machete_prepack_B")(moving_all)


@operators.cost("machete_mm")
def _cost_of_machete(operands: CallOperands) -> MatrixWork:
    weights = (operands[name] for name in ("B", "group_scales", "group_zeros", "channel_scales"))
    result = operands.results[0]
    return product_with_packed(operands["A"], result.shape[-1], *weights, out=result.format)


# -- Marlin, GPTQ's own kernels and four by eight bits: costs alone ---------------------------------------------------------

for _name in (
    "gptq_marlin_repack", "awq_marlin_repack", "marlin_int4_fp8_preprocess", "cutlass_pack_scale_fp8",
    "cutlass_encode_and_reorder_int4b", "cutlass_encode_and_reorder_int4b_grouped",
):  # fmt: skip
    operators.cost(_name)(moving_all)
operators.cost("gptq_shuffle")(moving("q_weight", "q_weight"))


@operators.cost("marlin_gemm")
def _of_marlin(operands: CallOperands) -> MatrixWork:
    weights = (operands[name] for name in ("b_q_weight", "b_scales", "b_zeros_or_none", "global_scale"))
    return product_with_packed(operands["a"], operands["size_n"], *weights, out=operands.results[0].format)


@operators.cost("gptq_gemm")
def _of_gptq(operands: CallOperands) -> MatrixWork:
    weights = (operands[name] for name in ("b_q_weight", "b_gptq_qzeros", "b_gptq_scales"))
    return product_with_packed(operands["a"], operands.results[0].shape[-1], *weights)


@operators.cost("cutlass_w4a8_mm")
def _of_w4a8(operands: CallOperands) -> MatrixWork:
    result = operands.results[0]
    weights = (operands[name] for name in ("B", "group_scales", "channel_scales"))
    return product_with_packed(operands["A"], result.shape[-1], *weights, out=result.format)


# -- NVFP4: two numbers in a byte, a scale for sixteen of a row -------------------------------------------------------------


@operators.cost("cutlass_scaled_fp4_mm")
def _of_fp4(operands: CallOperands) -> MatrixWork:
    a, b, out, scales = (operands[name] for name in ("a", "b", "out", "block_scale_b"))
    rows, width = out.shape
    inner = 2 * a.shape[-1]
    return MatrixWork(((rows, width, inner),), "fp4", out.format, stored=(b.nbytes + scales.nbytes) / max(b.nbytes, 1))


operators.cost("scaled_fp4_quant")(moving_all)
operators.cost("silu_and_mul_nvfp4_quant")(moving("result", "result_block_scale", "input"))
