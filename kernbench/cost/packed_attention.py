"""Costs of torch's operators of attention whose sequences may be packed: by the lengths that are live."""

from __future__ import annotations

from kernbench.cost.by_values import CallOperands, CostByValues, SeenOperand
from kernbench.cost.ragged_attention import RaggedAttention, between

_UNLIMITED = (None, -1)


def _lengths(tensor: SeenOperand, ends: SeenOperand | None, used: SeenOperand | None, sequences: int) -> list[int]:
    """Of each sequence: dense ``[sequences, tokens, ...]``, or packed and cut at ``ends``; ``used``: as many of each."""
    if used is not None and used.known is not None:
        return list(used.known)
    if ends is None:
        return [tensor.shape[1] if len(tensor.shape) == 4 else tensor.shape[0] // max(sequences, 1)] * sequences
    if ends.known is None:
        tokens = tensor.elements // (tensor.shape[-1] * tensor.shape[-2])
        return [tokens // max(sequences, 1)] * sequences
    return between(ends.known)


def _work(
    operands: CallOperands,
    names: tuple[str, str],
    used: SeenOperand | None,
    variant: str,
    *,
    causal: bool,
    window: int | None,
) -> RaggedAttention:
    query, key, value = operands["query"], operands["key"], operands["value"]
    ends_q, ends_k = (operands[name] for name in names)
    sequences = query.shape[0] if ends_q is None else ends_q.shape[0] - 1
    lengths = zip(_lengths(query, ends_q, None, sequences), _lengths(key, ends_k, used, sequences), strict=True)
    return RaggedAttention(
        tuple(lengths), query.shape[-2], key.shape[-2], query.shape[-1], query.format, causal=causal, window=window,
        variant=variant, gradient="grad_out" in operands or "grad_out_" in operands, value_width=value.shape[-1],
    )  # fmt: skip


def _flash(operands: CallOperands) -> RaggedAttention:
    left = operands["window_size_left"]
    return _work(
        operands, ("cum_seq_q", "cum_seq_k"), operands.get("seqused_k"), "flash", causal=operands["is_causal"],
        window=None if left in _UNLIMITED else left,
    )  # fmt: skip


def _efficient(operands: CallOperands) -> RaggedAttention:
    return _work(
        operands, ("cu_seqlens_q", "cu_seqlens_k"), operands.get("seqlen_k"), "efficient",
        causal=operands["custom_mask_type"] > 0, window=operands["window_size"] or None,
    )  # fmt: skip


PACKED: dict[str, CostByValues] = {
    "aten::_flash_attention_forward": CostByValues(_flash),
    "aten::_flash_attention_forward_no_dropout_inplace": CostByValues(_flash),
    "aten::_flash_attention_backward": CostByValues(_flash),
    "aten::_efficient_attention_forward": CostByValues(_efficient),
    "aten::_efficient_attention_backward": CostByValues(_efficient),
}
"""By the operator's name."""
