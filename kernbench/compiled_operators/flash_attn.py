"""Attention over a cache as ``flash_attn`` has it, one kernel for all sequences: values by definition, cost by live lengths."""

from __future__ import annotations

from typing import Any

import torch

from kernbench.compiled_operators.operators import Operators
from kernbench.cost.by_values import CallOperands
from kernbench.cost.ragged_attention import RaggedAttention, between
from kernbench.stand_ins.flash_attn._caches import Places
from kernbench.stand_ins.flash_attn._sequences import attend_cached, attend_packed

Tensor = torch.Tensor

_HOW = "float scale, bool causal, int left, int right, float softcap, bool statistics"
operators = Operators("flash_attn", schemas=[
    f"cached(Tensor q, Tensor k, Tensor v, Tensor lengths, Tensor? rows, Tensor? pages, int fresh, {_HOW}) -> (Tensor, Tensor)",
    f"packed(Tensor q, Tensor k, Tensor v, Tensor ends_q, Tensor ends_k, Tensor? pages, {_HOW}) -> (Tensor, Tensor)",
])  # fmt: skip


@operators.value
def cached(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, rows: Tensor | None, pages: Tensor | None, fresh: int,
    scale: float, causal: bool, left: int, right: int, softcap: float, statistics: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Of a batch ``[batch, queries, heads, size]`` over caches (:class:`Places`), of which ``lengths + fresh`` keys are live.

    Returns the results, and where ``statistics`` are wanted the logarithms of the sums ``[batch, heads, queries]``.
    """
    how: dict[str, Any] = {"scale": scale, "causal": causal, "window": (left, right), "softcap": softcap}
    places = Places(rows, pages, k.shape[1])
    return _both(q, *attend_cached(q, k, v, places, lengths + fresh, statistics=statistics, **how))


@operators.shape("cached")
def _of_cached(q: Tensor, statistics: bool) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q), q.new_empty(
        (q.shape[0], q.shape[2], q.shape[1]) if statistics else 0, dtype=torch.float32
    )


@operators.value
def packed(
    q: Tensor, k: Tensor, v: Tensor, ends_q: Tensor, ends_k: Tensor, pages: Tensor | None, scale: float, causal: bool,
    left: int, right: int, softcap: float, statistics: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Of sequences one after the other, ``[all queries, heads, size]``; their keys likewise, or in pages of a cache.

    Returns the results, and where ``statistics`` are wanted the logarithms of the sums ``[heads, all queries]``.
    """
    how: dict[str, Any] = {"scale": scale, "causal": causal, "window": (left, right), "softcap": softcap}
    return _both(q, *attend_packed(q, k, v, ends_q, ends_k, pages, statistics=statistics, **how))


@operators.shape("packed")
def _of_packed(q: Tensor, statistics: bool) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q), q.new_empty((q.shape[1], q.shape[0]) if statistics else 0, dtype=torch.float32)


def _both(q: Tensor, out: Tensor, statistics: Tensor | None) -> tuple[Tensor, Tensor]:
    """An operator gives two tensors: where no statistics are wanted, an empty one."""
    return out, q.new_empty(0, dtype=torch.float32) if statistics is None else statistics


# -- costs ----------------------------------------------------------------------------------------------------------------


@operators.cost("cached")
def _cost_of_cached(operands: CallOperands) -> RaggedAttention:
    """By the live lengths; where they are not known, by all that the cache holds for a sequence."""
    q, k, lengths, pages = (operands[name] for name in ("q", "k", "lengths", "pages"))
    room = k.shape[1] * (1 if pages is None else pages.shape[1])
    live = [room] * q.shape[0] if lengths.known is None else [each + operands["fresh"] for each in lengths.known]
    return _work(operands, [(q.shape[1], each) for each in live])


@operators.cost("packed")
def _cost_of_packed(operands: CallOperands) -> RaggedAttention:
    """By the sequences' ends; where they are not known, as if all were equally long."""
    q, k, ends_q, ends_k, pages = (operands[name] for name in ("q", "k", "ends_q", "ends_k", "pages"))
    count = ends_q.shape[0] - 1
    room = (k.shape[1] * pages.shape[1] if pages is not None else k.shape[0] // max(count, 1)) if count else 0
    queries = [q.shape[0] // max(count, 1)] * count if ends_q.known is None else between(ends_q.known)
    keys = [room] * count if ends_k.known is None else between(ends_k.known)
    return _work(operands, list(zip(queries, keys, strict=True)))


def _work(operands: CallOperands, lengths: list[tuple[int, int]]) -> RaggedAttention:
    q, k, left = operands["q"], operands["k"], operands["left"]
    return RaggedAttention(
        tuple(lengths), q.shape[-2], k.shape[-2], q.shape[-1], q.format, operands["causal"], None if left < 0 else left
    )
