"""``vllm._C_stable_libtorch``: weights of which several numbers lie in one word (AWQ, GPTQ, NVFP4), and products with them.

A product is computed at the rate of its activations' format and reads packed weights with their scales; unpacking is hidden.
Marlin reaches that up to some 32 rows (Frantar et al. 2024, figure 1), beyond which, and for Machete, it is UNVERIFIED:
published runs take half as long again (Marlin on an A100, 64 rows and more) to twice as long (Machete, 32 to 128 rows).
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


def _bits_and_bias(kind: int, name: str = "machete_mm") -> tuple[int, int]:
    """Bits of a number, and what is stored above it, by vLLM's number of the type: bits of exponent and mantissa, 8 each; a
    sign; 32 bits of bias."""
    exponent, mantissa, signed = kind & 0xFF, kind >> 8 & 0xFF, kind >> 16 & 1
    if exponent or signed:
        raise NotImplementedError(f"vllm: the values of {name} in its stand-in take whole numbers without a sign")
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


# -- GPTQ's own kernels: `[K / numbers in a word, N]` words, zeros `[groups, N / numbers in a word]`, scales `[groups, N]` -----


def _require(met: bool, name: str, what: str) -> None:
    if not met:
        raise NotImplementedError(f"vllm: the values of {name} in its stand-in take {what}")


@operators.value
def gptq_shuffle(q_weight: Tensor) -> None:
    """The words for :func:`gptq_gemm`, which is the only one to read them: as they are."""


@operators.value
def gptq_gemm(
    a: Tensor, b_q_weight: Tensor, b_gptq_qzeros: Tensor, b_gptq_scales: Tensor, use_v2_format: bool, bit: int
) -> Tensor:
    """``[M, K] @ [K, N]``; the first version of the format stores zeros less one."""
    _require(WORD % bit == 0, "gptq_gemm", "numbers of which a word has a whole number")
    numbers = unpacked(b_q_weight, bit, 0)
    zeros = unpacked(b_gptq_qzeros, bit, 1) + (0 if use_v2_format else 1)
    weight = (numbers - _by_groups(zeros, len(numbers))) * _by_groups(b_gptq_scales, len(numbers)).float()
    return (a.float() @ weight.to(a.dtype).float()).to(a.dtype)


# -- Marlin: words `[K / 16, 16 N / numbers in a word]`; scales, zeros and the bias in an order of its tiles -----------------


def packed(numbers: Tensor, bits: int) -> Tensor:
    """The words of numbers ``[K, N]``, several of a column in each; :func:`unpacked` along the first dimension gives them."""
    parts = numbers.long().unflatten(0, (-1, WORD // bits)) << bits * torch.arange(WORD // bits).view(1, -1, 1)
    found = parts.sum(1)
    return torch.where(found >= 1 << WORD - 1, found - (1 << WORD), found).to(torch.int32)


@operators.value
def gptq_marlin_repack(b_q_weight: Tensor, size_k: int, num_bits: int, is_a_8bit: bool) -> Tensor:
    """The words for :func:`marlin_gemm`, which is the only one to read them: as they are. On a GPU they change places."""
    _require(not is_a_8bit, "gptq_marlin_repack", "activations of 16 bits")
    return b_q_weight.reshape(size_k // _TILE, -1)


@operators.value
def awq_marlin_repack(b_q_weight: Tensor, size_k: int, num_bits: int, is_a_8bit: bool) -> Tensor:
    """The same from AWQ's words."""
    _require(not is_a_8bit and num_bits == 4, "awq_marlin_repack", "numbers of four bits, and activations of 16")
    return packed(unpacked(b_q_weight, num_bits, 1, _AWQ), num_bits).reshape(size_k // _TILE, -1)


for _name in ("gptq_marlin_repack", "awq_marlin_repack"):

    @operators.shape(_name)
    def _of_repacked(b_q_weight: Tensor, size_k: int, size_n: int, num_bits: int) -> Tensor:
        return b_q_weight.new_empty(size_k // _TILE, size_n * _TILE * num_bits // WORD)


_TILE = 16


def _from_columns_of_tiles(stored: Tensor) -> Tensor:
    """Rows in their order, of those in which each 64 columns are eight by eight, the other way round."""
    return stored.unflatten(-1, (-1, 8, 8)).transpose(-1, -2).flatten(-3)


def _from_pairs_of_tiles(stored: Tensor) -> Tensor:
    """The same where each 32 columns are four by four pairs."""
    return stored.unflatten(-1, (-1, 4, 4, 2)).transpose(-2, -3).flatten(-4)


@operators.value
def marlin_gemm(
    a: Tensor, c_or_none: Tensor | None, b_q_weight: Tensor, b_bias_or_none: Tensor | None, b_scales: Tensor,
    a_scales: Tensor | None, global_scale: Tensor | None, b_zeros_or_none: Tensor | None, b_type_id: int, size_n: int,
    size_k: int, is_zp_float: bool,
) -> Tensor:  # fmt: skip
    """``[M, K] @ [K, N]``; a weight is its number less its group's zero, times its scale, in the activations' format."""
    bits, bias = _bits_and_bias(b_type_id, "marlin_gemm")
    plain = a_scales is None and global_scale is None and c_or_none is None and not is_zp_float
    _require(plain and a.is_floating_point(), "marlin_gemm", "activations of 16 bits, and zeros that are whole numbers")
    count = WORD // bits
    less: Tensor | int = bias
    if b_zeros_or_none is not None:
        zeros = unpacked(b_zeros_or_none, bits, 1).unflatten(-1, (-1, 2, count // 2)).transpose(-1, -2).flatten(-3)
        less = _by_groups(_from_columns_of_tiles(zeros), size_k)
    ordered = _from_columns_of_tiles if len(b_scales) > 1 else _from_pairs_of_tiles
    scales = _by_groups(ordered(b_scales).float(), size_k)
    weight = (unpacked(b_q_weight.reshape(size_k // count, size_n), bits, 0) - less) * scales
    found = a.float() @ weight.to(a.dtype).float()
    found = found if b_bias_or_none is None else found + _from_pairs_of_tiles(b_bias_or_none).float()
    return found.to(a.dtype)


@operators.shape("marlin_gemm")
def _of_marlin_gemm(a: Tensor, size_m: int, size_n: int) -> Tensor:
    return a.new_empty(size_m, size_n)


# -- their costs, and those of four by eight bits ----------------------------------------------------------------------------

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
