"""FlashAttention 2 and 3 as serving engines build them, with keys and values in pages.

Queries are packed one sequence after the other, ``[tokens, heads, size]``; ``cu_seqlens_q``, ``[sequences + 1]``, has the ends.
Keys and values are either packed the same way, or pages, ``[pages, page size, heads of keys, size]``, of which a sequence has
those that its row of the table names. The last query of a sequence sees all of its keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import torch

from kernbench.compiled_operators.operators import Operators
from kernbench.cost.by_values import CallOperands, SeenOperand
from kernbench.cost.ragged_attention import RaggedAttention, between
from kernbench.cost.work import LEAST
from kernbench.stand_ins.attention.definition import attend as attend_one

Tensor = torch.Tensor


def attend(
    q: Tensor, k: Tensor, v: Tensor, ends_q: Tensor, ends_k: Tensor | None, lengths: Tensor | None, pages: Tensor | None,
    scale: float, causal: bool, window: tuple[int, int], softcap: float = 0.0, sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Attention in float32.

    Args:
        q, k, v, ends_q, ends_k: see above; ``ends_k`` where there are no pages.
        lengths: of the keys of each sequence, ``[sequences]``; None: all between its ends.
        pages: of each sequence, ``[sequences, most pages]``; None: keys are packed.
        window: keys to the left and right of its own that a query sees; -1: all.
        softcap: scores are ``softcap * tanh(score / softcap)``; 0: as they are.
        sinks: ``[heads]``, a score of each head that takes part in the sum and has no value.

    Returns:
        ``[tokens, heads, size of v]``, and the logarithms of the sums of the scores' exponentials, ``[heads, tokens]``.
    """
    out = torch.zeros(*q.shape[:-1], v.shape[-1])
    sums = torch.full((q.shape[1], q.shape[0]), math.inf)
    bounds = ends_q.tolist()
    for at, (begin, end) in enumerate(pairwise(bounds)):
        if pages is None:
            assert ends_k is not None
            first, last = int(ends_k[at]), int(ends_k[at + 1])
            keys, values = (each[first:last] for each in (k, v))
        else:
            # a row of the table says nothing behind the pages that hold its keys
            used = pages[at] if lengths is None else pages[at, : -(-int(lengths[at]) // k.shape[1])]
            keys, values = (each[used.long()].flatten(0, 1) for each in (k, v))
        if lengths is not None:
            keys, values = (each[: int(lengths[at])] for each in (keys, values))
        if end > begin and len(keys):
            out[begin:end], sums[:, begin:end] = _one(
                q[begin:end].float(), keys.float(), values.float(), scale, causal, window, softcap, sinks
            )
    return out, sums


def _one(
    q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, window: tuple[int, int], softcap: float,
    sinks: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Of one sequence: ``[queries, heads, size]``, and sums ``[heads, queries]``."""
    (out,), sums = attend_one(
        q[None], k[None], v[None], scale=scale, causal=causal, window=window, softcap=softcap, statistics=True
    )
    assert sums is not None
    if sinks is None:
        return out, sums[0]
    together = torch.logaddexp(sums[0], sinks.float()[:, None])
    share = torch.where(together > -math.inf, (sums[0] - together).exp(), 0)
    return out * share.T[..., None], together


def _refuse(name: str, **given: object) -> None:
    unknown = [each for each, value in given.items() if value is not None and value is not False]
    if unknown:
        raise NotImplementedError(
            f"the values of {name} in a stand-in take no {', '.join(unknown)}: run without data (--no-data)"
        )


def flash_attention_2(namespace: str) -> Operators:
    """The operators of a library of FlashAttention 2."""
    operators = Operators(namespace)
    operators.value("varlen_fwd")(_varlen_fwd)
    operators.shape("varlen_fwd")(_of_varlen_fwd)
    operators.cost("varlen_fwd")(_cost_of_varlen_fwd)
    return operators


def flash_attention_3(namespace: str, sinks: str) -> Operators:
    """The operators of a library of FlashAttention 3.

    Args:
        namespace: in which they are.
        sinks: what its ``fwd`` calls the scores of heads that have no value.
    """
    operators = Operators(namespace)
    values: dict[str, Callable[..., list[Tensor]]] = {"s_aux": _fwd_s_aux, "sinks": _fwd_sinks}
    operators.value("fwd")(values[sinks])
    operators.shape("fwd")(_of_fwd)
    operators.cost("fwd")(_cost_of_fwd)
    operators.value("get_scheduler_metadata")(_scheduler_metadata)
    operators.shape("get_scheduler_metadata")(_scheduler_metadata)
    operators.cost("get_scheduler_metadata")(_cost_of_metadata)
    return operators


def _fwd_s_aux(
    q: Tensor, k: Tensor, v: Tensor, k_new: Tensor | None, q_v: Tensor | None, out: Tensor | None,
    cu_seqlens_q: Tensor | None, cu_seqlens_k: Tensor | None, seqused_q: Tensor | None, seqused_k: Tensor | None,
    page_table: Tensor | None, kv_batch_idx: Tensor | None, leftpad_k: Tensor | None, rotary_cos: Tensor | None,
    softmax_scale: float, is_causal: bool, window_size_left: int, window_size_right: int, softcap: float, s_aux: Tensor | None,
) -> list[Tensor]:  # fmt: skip
    """The results, the sums of the exponentials, and two that are used with splits only."""
    _refuse(
        "FlashAttention 3", k_new=k_new, q_v=q_v, seqused_q=seqused_q, kv_batch_idx=kv_batch_idx, leftpad_k=leftpad_k,
        rotary_cos=rotary_cos, queries_in_eight_bits=q.dtype.itemsize == 1, a_batch_of_equal_lengths=cu_seqlens_q is None,
    )  # fmt: skip
    assert cu_seqlens_q is not None
    window = (window_size_left, window_size_right)
    found, sums = attend(
        q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_k, page_table, softmax_scale, is_causal, window, softcap, s_aux
    )
    out = _room(q, v, out)
    return [out.copy_(found), sums, q.new_empty(0, dtype=torch.float32), q.new_empty(0, dtype=torch.float32)]


def _fwd_sinks(
    q: Tensor, k: Tensor, v: Tensor, k_new: Tensor | None, q_v: Tensor | None, out: Tensor | None,
    cu_seqlens_q: Tensor | None, cu_seqlens_k: Tensor | None, seqused_q: Tensor | None, seqused_k: Tensor | None,
    page_table: Tensor | None, kv_batch_idx: Tensor | None, leftpad_k: Tensor | None, rotary_cos: Tensor | None,
    softmax_scale: float, is_causal: bool, window_size_left: int, window_size_right: int, attention_chunk: int,
    softcap: float, sinks: Tensor | None, sparse_mask_fine: Tensor | None, only_qv: bool,
) -> list[Tensor]:  # fmt: skip
    _refuse(
        "FlashAttention 3", attention_chunk=attention_chunk != 0, sparse_mask_fine=sparse_mask_fine, only_qv=only_qv
    )
    return _fwd_s_aux(
        q, k, v, k_new, q_v, out, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, page_table, kv_batch_idx, leftpad_k,
        rotary_cos, softmax_scale, is_causal, window_size_left, window_size_right, softcap, sinks,
    )  # fmt: skip


def _of_fwd(q: Tensor, v: Tensor, out: Tensor | None) -> list[Tensor]:
    return [_room(q, v, out), _sums(q), q.new_empty(0, dtype=torch.float32), q.new_empty(0, dtype=torch.float32)]


def _scheduler_metadata(seqused_k: Tensor) -> Tensor:
    """How a kernel is to split its work, which is its own business: five whole numbers, of no meaning here."""
    return seqused_k.new_zeros(5, dtype=torch.int32)


def _varlen_fwd(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor | None, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, seqused_k: Tensor | None,
    leftpad_k: Tensor | None, block_table: Tensor | None, alibi_slopes: Tensor | None, p_dropout: float, softmax_scale: float,
    is_causal: bool, window_size_left: int, window_size_right: int, softcap: float,
) -> list[Tensor]:  # fmt: skip
    """The results, and the sums of the exponentials."""
    _refuse("FlashAttention 2", leftpad_k=leftpad_k, alibi_slopes=alibi_slopes, dropout=p_dropout > 0)
    window = (window_size_left, window_size_right)
    found, sums = attend(
        q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_k, block_table, softmax_scale, is_causal, window, softcap
    )
    return [_room(q, v, out).copy_(found), sums]


def _of_varlen_fwd(q: Tensor, v: Tensor, out: Tensor | None) -> list[Tensor]:
    return [_room(q, v, out), _sums(q)]


def _room(q: Tensor, v: Tensor, out: Tensor | None) -> Tensor:
    return q.new_empty(*q.shape[:-1], v.shape[-1]) if out is None else out


def _sums(q: Tensor) -> Tensor:
    """``[heads, tokens]``, or ``[batch, heads, queries]``."""
    return q.new_empty(*q.shape[:-3], q.shape[-2], q.shape[-3], dtype=torch.float32)


# -- costs ----------------------------------------------------------------------------------------------------------------


def _cost_of_fwd(operands: CallOperands) -> RaggedAttention:
    # Forward passes of FlashAttention 3 are about as fast as cuDNN's (Shah et al. 2024, figure 5); decoding is bound by memory
    return _work(operands, operands["page_table"], "cudnn")


def _cost_of_varlen_fwd(operands: CallOperands) -> RaggedAttention:
    return _work(operands, operands["block_table"], "flash")


def _cost_of_metadata(operands: CallOperands) -> float:
    return LEAST


def _work(operands: CallOperands, pages: SeenOperand | None, variant: str) -> RaggedAttention:
    """By the lengths that are known, else by the longest that the caller says there is."""
    q, k, values = operands["q"], operands["k"], operands["v"].shape[-1]
    window, more = operands["window_size_left"], operands.get("q_v")  # the part of the queries for the values' columns
    queries = _queries(operands)
    return RaggedAttention(
        tuple(zip(queries, _keys(operands, pages, len(queries)), strict=True)), q.shape[-2], k.shape[-2], q.shape[-1], q.format,
        operands["is_causal"], None if window < 0 else window, variant,
        value_width=None if values == q.shape[-1] else values, latent=0 if more is None else more.shape[-1],
    )  # fmt: skip


def _queries(operands: CallOperands) -> list[int]:
    q, ends = operands["q"], operands["cu_seqlens_q"]
    if ends is None:
        return [q.shape[1]] * q.shape[0]
    known = ends.known
    if known is None:
        count = ends.shape[0] - 1
        return [q.shape[0] // max(count, 1)] * count
    return between(known)


def _keys(operands: CallOperands, pages: SeenOperand | None, count: int) -> list[int]:
    k, lengths, ends = operands["k"], operands["seqused_k"], operands["cu_seqlens_k"]
    known = None if lengths is None else lengths.known
    if known is not None:
        return list(known)
    known = None if pages is not None or ends is None else ends.known
    if known is not None:
        return between(known)
    room = k.shape[0] if pages is None and ends is not None else k.shape[1] * (1 if pages is None else pages.shape[1])
    most = operands["max_seqlen_k"]
    return [room if most is None else min(most, room)] * count
