"""Attention over a cache as ``flash_attn`` has it, one kernel for all sequences: values by definition, cost by live lengths."""

from __future__ import annotations

from itertools import pairwise

import torch

from kernbench.compiled_operators.operators import Operators
from kernbench.cost.by_values import CallOperands
from kernbench.cost.ragged_attention import RaggedAttention
from kernbench.stand_ins.flash_attn._attention import attend, sequences
from kernbench.stand_ins.flash_attn._caches import Places

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
    places = Places(rows, pages, k.shape[1])
    found = [
        attend(
            q[at, None], *(places.read(each, end, at) for each in (k, v)), scale=scale, causal=causal,
            window=(left, right), softcap=softcap, statistics=statistics,
        )
        for at, end in enumerate((lengths + fresh).tolist())
    ]  # fmt: skip
    return _together(q, found, 0)


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
    places = None if pages is None else Places(None, pages, k.shape[1])
    found = []
    for at, (begin_q, end_q, begin_k, end_k) in enumerate(sequences(ends_q, ends_k)):
        keys, values = (
            each[None, begin_k:end_k] if places is None else places.read(each, end_k - begin_k, at) for each in (k, v)
        )
        one, sums = attend(
            q[None, begin_q:end_q], keys, values, scale=scale, causal=causal, window=(left, right), softcap=softcap,
            statistics=statistics,
        )  # fmt: skip
        found.append((one[0], None if sums is None else sums[0]))
    return _together(q, found, -1)


@operators.shape("packed")
def _of_packed(q: Tensor, statistics: bool) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q), q.new_empty((q.shape[1], q.shape[0]) if statistics else 0, dtype=torch.float32)


def _together(q: Tensor, found: list[tuple[Tensor, Tensor | None]], dim: int) -> tuple[Tensor, Tensor]:
    sums = [each for _, each in found if each is not None]
    return torch.cat([each for each, _ in found]), torch.cat(sums, dim) if sums else q.new_empty(0, dtype=torch.float32)


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
    queries = _lengths(ends_q.known) or [q.shape[0] // max(count, 1)] * count
    return _work(operands, list(zip(queries, _lengths(ends_k.known) or [room] * count, strict=True)))


def _lengths(ends: list[int] | None) -> list[int]:
    return [] if ends is None else [end - begin for begin, end in pairwise(ends)]


def _work(operands: CallOperands, lengths: list[tuple[int, int]]) -> RaggedAttention:
    q, k, left = operands["q"], operands["k"], operands["left"]
    return RaggedAttention(
        tuple(lengths), q.shape[-2], k.shape[-2], q.shape[-1], q.format, operands["causal"], None if left < 0 else left
    )
