"""The kernels that SGLang compiles from CUDA sources while it runs (``sglang.kernels.jit``), by their names in C++.

A kernel there is a function or a class with static functions, which has template arguments: sizes, formats, ways to compute.
What these say about values is an argument of ours, before those of the call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from kernbench.compiled_operators import eight_bits
from kernbench.compiled_operators.kernel_table import Function, KernelTable
from kernbench.compiled_operators.layers import ACTIVATIONS, gated, rms_normed, rotated
from kernbench.compiled_operators.moved import taken_from
from kernbench.compiled_operators.sglang import library
from kernbench.cost.by_values import CallOperands
from kernbench.cost.work import StatedWork

__all__ = ["COMPILED", "NAMES", "CompiledKernel", "operators"]

Tensor = torch.Tensor

_TABLE = KernelTable("sglang_compiled")
operators = _TABLE.operators


@dataclass(frozen=True)
class CompiledKernel:
    """What stands in for one function of C++.

    Attributes:
        name: of the operator.
        template: places of the template arguments that are its first arguments.
    """

    name: str
    template: tuple[int, ...]

    def function(self, template: list[Any]) -> Callable[..., None]:
        """What a program calls, for these template arguments."""
        return partial(_TABLE.launch, self.name, *(template[at] for at in self.template))


COMPILED: dict[str, CompiledKernel] = {}
"""By the name in C++, without template arguments (``"FusedRopeKernel::run"``)."""


def _kernel(cpp: str, schema: str, *moved: str, template: tuple[int, ...] = (), cost: Any = None) -> Any:
    """Have a function compute what a function of C++ does."""

    def keep(function: Function) -> Function:
        for each in cpp.split():
            COMPILED[each] = CompiledKernel(schema.partition("(")[0], template)
        return _TABLE.kernel(schema, *moved, cost=cost)(function)

    return keep


# -- norms ----------------------------------------------------------------------------------------------------------------


@_kernel(
    "RMSNormWarpKernel::run RMSNormHalfKernel::run RMSNormKernel::run",
    "rms_norm(Tensor input, Tensor weight, Tensor(a!) output, float eps)", "input", "weight", "output",
)  # fmt: skip
def _rms_norm(input: Tensor, weight: Tensor, output: Tensor, eps: float) -> None:
    output.copy_(rms_normed(input, weight, eps))


@_kernel(
    "HFRMSNormWarpKernel::run HFRMSNormKernel::run",
    "rms_norm_rounded(Tensor input, Tensor weight, Tensor(a!) output, float eps)", "input", "weight", "output",
)  # fmt: skip
def _rms_norm_rounded(input: Tensor, weight: Tensor, output: Tensor, eps: float) -> None:
    """Rounded before it is multiplied by the weights, as transformers' norm is."""
    output.copy_(rms_normed(input, None, eps).to(input.dtype).float() * weight.float())


@_kernel(
    "FusedAddRMSNormKernel::run",
    "add_rms_norm(bool rounded, Tensor(a!) input, Tensor(b!) residual, Tensor weight, float eps)",
    "input", "input", "residual", "residual", "weight", template=(0,),
)  # fmt: skip
def _add_rms_norm(rounded: bool, input: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
    if not rounded:
        library.added(input, residual, weight, eps)
        return
    total = input.float() + residual.float()
    residual.copy_(total)
    input.copy_(rms_normed(total, None, eps).to(input.dtype).float() * weight.float())


@_kernel(
    "QKNormKernel::run", "qk_norm(Tensor(a!) q, Tensor(b!) k, Tensor q_weight, Tensor k_weight, float eps)",
    "q", "q", "k", "k", "q_weight", "k_weight",
)  # fmt: skip
def _qk_norm(q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float) -> None:
    """Each head of queries and keys for itself."""
    for heads, weight in ((q, q_weight), (k, k_weight)):
        rows = heads.unflatten(-1, (-1, weight.numel())) if heads.shape[-1] != weight.numel() else heads
        heads.copy_(rms_normed(rows, weight, eps).view(heads.shape))


# -- activations ----------------------------------------------------------------------------------------------------------


@_kernel("ActivationKernel::run_activation", "activation(Tensor input, Tensor(a!) out, str type)", "input", "out")
def _activation(input: Tensor, out: Tensor, type: str) -> None:
    out.copy_(gated(type, input))


@_kernel(
    "ActivationKernel::run_activation_with_rounding",
    "activation_rounded(Tensor input, Tensor(a!) out, str type, float limit)", "input", "out",
)  # fmt: skip
def _activation_rounded(input: Tensor, out: Tensor, type: str, limit: float) -> None:
    """The activation is rounded before it is multiplied; a positive limit bounds what it is of, and the factor both ways."""
    gate, up = input.float().chunk(2, -1)
    if limit > 0:
        most = torch.tensor(limit, dtype=input.dtype).item()
        gate, up = gate.clamp(max=most), up.clamp(-most, most)
    out.copy_(ACTIVATIONS[type](gate).to(input.dtype).float() * up)


@_kernel(
    "ActivationKernel::run_activation_with_rounding_input_inplace",
    "activation_rounded_in_place(Tensor(a!) input, Tensor(b!) out, str type)", "input", "out",
)  # fmt: skip
def _activation_rounded_in_place(input: Tensor, out: Tensor, type: str) -> None:
    _activation_rounded(input.clone(), out, type, 0.0)


@_kernel(
    "ActivationKernel::run_activation_filtered",
    "activation_of_experts(Tensor input, Tensor(a!) out, Tensor experts, int step, str type)", "input", "out", "experts",
)  # fmt: skip
def _activation_of_experts(input: Tensor, out: Tensor, experts: Tensor, step: int, type: str) -> None:
    """Rows of an expert that is elsewhere, -1, stay."""
    here = experts.repeat_interleave(step)[: len(input)] != -1
    out[here] = gated(type, input[here]).to(out.dtype)


@_kernel(
    "ActivationKernel::run_activation_sorted_filtered",
    "activation_of_sorted(Tensor input, Tensor(a!) out, Tensor experts, int step, Tensor tokens, Tensor count, int valid, "
    "str type)",
    "input", "out", "experts", "tokens",
)  # fmt: skip
def _activation_of_sorted(
    input: Tensor, out: Tensor, experts: Tensor, step: int, tokens: Tensor, count: Tensor, valid: int, type: str
) -> None:
    """Likewise of rows that are sorted by expert and filled up to blocks; what fills up stays."""
    rows = torch.arange(len(input))
    here = (rows < count.item()) & (tokens[: len(input)] < valid)
    here &= experts.repeat_interleave(step)[: len(input)] != -1
    out[here] = gated(type, input[here]).to(out.dtype)


@_kernel("ActivationKernel::run_unary_activation", "unary(Tensor input, Tensor(a!) out, str type)", "input", "out")
def _unary(input: Tensor, out: Tensor, type: str) -> None:
    out.copy_(ACTIVATIONS[type](input.float()))


# -- rotary embedding, caches ---------------------------------------------------------------------------------------------


def _cost_of_rotation(operands: CallOperands) -> StatedWork:
    q, k, positions = operands["q"], operands["k"], operands["positions"]
    return StatedWork(2 * (q.nbytes + k.nbytes) + positions.nbytes + taken_from(operands["table"], positions))


@_kernel(
    "FusedRopeKernel::run",
    "rotate(bool halves, Tensor(a!) q, Tensor(b!) k, Tensor table, Tensor positions)",
    template=(0,), cost=_cost_of_rotation,
)  # fmt: skip
def _rotate(halves: bool, q: Tensor, k: Tensor, table: Tensor, positions: Tensor) -> None:
    """``q``, ``k``: ``[tokens, heads, width]``; ``table``: ``[positions, width]``, cosines in its first half."""
    cos, sin = table[positions.long()].float()[:, None].chunk(2, -1)
    for heads in (q, k):
        heads.copy_(rotated(heads, cos, sin, halves=halves))


def _cost_of_storing(operands: CallOperands) -> StatedWork:
    q, k, v, positions, places = (operands[name] for name in ("q", "k", "v", "positions", "places"))
    turned = 2 * (q.nbytes + k.nbytes) + positions.nbytes + taken_from(operands["table"], positions)
    return StatedWork(turned + k.nbytes + 2 * v.nbytes + places.nbytes)


@_kernel(
    "FusedRopeKernel::run_fused",
    "rotate_and_store(bool halves, Tensor(a!) q, Tensor(b!) k, Tensor v, Tensor(c!) k_cache, Tensor(d!) v_cache, "
    "Tensor table, Tensor positions, Tensor places)",
    template=(0,), cost=_cost_of_storing,
)  # fmt: skip
def _rotate_and_store(
    halves: bool, q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, table: Tensor, positions: Tensor,
    places: Tensor,
) -> None:  # fmt: skip
    """Then keys and values are rows of the caches, ``[rows, heads * width]``, at their places."""
    _rotate(halves, q, k, table, positions)
    k_cache[places.long()] = k.flatten(1)
    v_cache[places.long()] = v.flatten(1)


@_kernel(
    "RotaryEmbeddingKernel::run",
    "rotate_heads(Tensor positions, Tensor(a!) query, Tensor(b!)? key, int head_size, Tensor cos_sin_cache, bool is_neox)",
    cost=library.cost_of_rotation,
)  # fmt: skip
def _rotate_heads(
    positions: Tensor, query: Tensor, key: Tensor | None, head_size: int, cos_sin_cache: Tensor, is_neox: bool
) -> None:
    library.rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox)


def _cost_of_rows(operands: CallOperands) -> StatedWork:
    """Rows that have a place are read and written."""
    k, v, places, skipped = (operands[name] for name in ("k", "v", "places", "skipped"))
    known = places.known
    kept = places.shape[0] if known is None else sum(each != skipped for each in known)
    return StatedWork(2 * kept * (k.row_bytes(1) + v.row_bytes(1)) + places.nbytes)


@_kernel(
    "StoreKVCacheKernel::run",
    "store(Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor places, int limit, int skipped)",
    cost=_cost_of_rows,
)  # fmt: skip
def _store(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, places: Tensor, limit: int, skipped: int) -> None:
    """Rows of keys and values to their places in caches; what has the place ``skipped`` is not kept."""
    if bool(((places < 0) | (places >= limit)).any()):
        raise IndexError(f"store_cache: places {places.tolist()} outside of a cache of {limit} rows")
    kept = places != skipped
    k_cache[places[kept].long()] = k[kept]
    v_cache[places[kept].long()] = v[kept]


@_kernel("ClampPosition::run", "last_places(Tensor(a!) dst, Tensor seq_lens)", "dst", "seq_lens")
def _last_places(dst: Tensor, seq_lens: Tensor) -> None:
    """The place of the last token of each sequence."""
    dst.copy_((seq_lens - 1).clamp(min=0))


# -- experts --------------------------------------------------------------------------------------------------------------


@_kernel(
    "topk_softmax",
    "topk_softmax(Tensor(a!) topk_weights, Tensor(b!) topk_indices, Tensor gating_output, Tensor(c!) workspace, "
    "bool renormalize, float moe_softcapping, Tensor? correction_bias)",
    "topk_weights", "topk_indices", "gating_output",
)  # fmt: skip
def _topk_softmax(
    topk_weights: Tensor, topk_indices: Tensor, gating_output: Tensor, renormalize: bool, moe_softcapping: float,
    correction_bias: Tensor | None,
) -> None:  # fmt: skip
    library.topk_softmax(topk_weights, topk_indices, gating_output, renormalize, moe_softcapping, correction_bias)


# -- numbers in eight bits ------------------------------------------------------------------------------------------------


@_kernel(
    "per_token_quant_fp8", "per_token_fp8(Tensor input, Tensor(a!) output_q, Tensor(b!) output_s)",
    "input", "output_q", "output_s",
)  # fmt: skip
def _per_token_fp8(input: Tensor, output_q: Tensor, output_s: Tensor) -> None:
    library.sgl_per_token_quant_fp8(input, output_q, output_s)


def _cost_of_one_scale(operands: CallOperands) -> StatedWork:
    """The input is read once more where its largest magnitude is looked for."""
    read = operands["input"].nbytes * (1 if operands["is_static"] else 2)
    return StatedWork(read + operands["output_q"].nbytes)


@_kernel(
    "per_tensor_quant_fp8",
    "per_tensor_fp8(bool is_static, Tensor input, Tensor(a!) output_q, Tensor(b!) output_s)",
    template=(0,), cost=_cost_of_one_scale,
)  # fmt: skip
def _per_tensor_fp8(is_static: bool, input: Tensor, output_q: Tensor, output_s: Tensor) -> None:
    """By one scale, which is given (``is_static``), or grows to the largest magnitude over the format's largest number."""
    if not is_static:
        _largest(input, output_s)
    eight_bits.store(input.float() / output_s.float(), output_q)


@_kernel("per_tensor_absmax_fp8", "largest_fp8(Tensor input, Tensor(a!) output_s)", "input", "output_s")
def _largest(input: Tensor, output_s: Tensor) -> None:
    output_s.copy_(output_s.maximum(input.float().abs().amax() / library.MOST_FP8))


_GROUPS = "int group_size, bool ue8m0, bool gated, Tensor input, Tensor(a!) output_q, Tensor(b!) output_s"
_OF_GROUPS = (2, 3, 6)


@_kernel(
    "PerTokenGroupQuantFlatKernel::run", f"groups({_GROUPS})", "input", "output_q", "output_s", template=_OF_GROUPS
)
def _groups(group_size: int, ue8m0: bool, gated: bool, input: Tensor, output_q: Tensor, output_s: Tensor) -> None:
    """By groups of a row's numbers; ``gated``: the first half of a row through SiLU, times the second."""
    if gated:
        gate, up = input.chunk(2, -1)
        input = torch.nn.functional.silu(gate.float()).to(input.dtype) * up
    library.sgl_per_token_group_quant_8bit(input, output_q, output_s, group_size, 1e-10, ue8m0)


def _without_values() -> None:
    raise NotImplementedError("sglang: scales of rows by expert have no values in its stand-in, only a cost")


for _name, _more in (
    ("Masked", "Tensor masked_m, int expected_m"),
    ("Sorted", "Tensor sorted_token_ids, Tensor num_tokens_post_padded, int num_valid_tokens"),
):
    _kernel(
        f"PerTokenGroupQuant{_name}Kernel::run", f"groups_{_name.lower()}({_GROUPS}, {_more})",
        "input", "output_q", "output_s", template=_OF_GROUPS,
    )(_without_values)  # fmt: skip


@_kernel(
    "PerTokenGroupQuant8bitV2Kernel::run",
    "groups_v2(Tensor input, Tensor(a!) output_q, Tensor(b!) output_s, Tensor masked_m, int group_size, bool ue8m0, "
    "bool gated, bool masked, int groups, int experts, bool by_column, int hidden_groups, int tokens, int expert_stride, "
    "int hidden_stride)",
    "input", "output_q", "output_s",
)  # fmt: skip
def _groups_v2(
    input: Tensor, output_q: Tensor, output_s: Tensor, group_size: int, ue8m0: bool, gated: bool, masked: bool
) -> None:
    if masked:
        _without_values()
    _groups(group_size, ue8m0, gated, input, output_q, output_s)


NAMES = COMPILED
"""What stands in for ``load_jit`` looks up."""
