"""Attention over a cache and of packed sequences as ``flash_attn`` 2 and 3 have it, one kernel for all sequences: values by
definition, cost by live lengths. The two differ in how fast their kernels are, and in what is theirs alone."""

from __future__ import annotations

import functools
from typing import Any

import torch

from kernbench.compiled_operators.moved import moving_all
from kernbench.compiled_operators.operators import Operators
from kernbench.cost.by_values import CallOperands
from kernbench.cost.ragged_attention import RaggedAttention, between
from kernbench.cost.work import LEAST
from kernbench.stand_ins.attention.caches import Places
from kernbench.stand_ins.attention.definition import sequences
from kernbench.stand_ins.attention.passes import backward_of_each
from kernbench.stand_ins.attention.sequences import attend_cached, attend_packed

Tensor = torch.Tensor

_HOW = "Tensor[] scales, float scale, bool causal, int left, int right, float softcap, bool statistics"
SCHEMAS = (
    f"cached(Tensor q, Tensor k, Tensor v, Tensor lengths, Tensor? rows, Tensor? pages, int fresh, {_HOW}) -> (Tensor, Tensor)",
    "packed(Tensor q, Tensor k, Tensor v, Tensor ends_q, Tensor? ends_k, Tensor? lengths, Tensor? pages, "
    f"{_HOW}) -> (Tensor, Tensor)",
    "packed_gradients(Tensor given, Tensor q, Tensor k, Tensor v, Tensor out, Tensor sums, Tensor(a!) dq, Tensor(b!) dk, "
    "Tensor(c!) dv, Tensor ends_q, Tensor ends_k, Tensor? lengths, float scale, bool causal, int left, int right, "
    "float softcap) -> Tensor",
)
"""Of both. ``scales``: of operands in eight bits, of queries, keys and values, each ``[sequences, heads of keys]``; or none."""

OF_SECOND, OF_THIRD = "flash", "cudnn"
"""Whose time attention takes: forward passes of FlashAttention 3 are about as fast as cuDNN's (Shah et al. 2024, figure 5)."""

operators = Operators("flash_attn", schemas=SCHEMAS)
third = Operators("flash_attn_3", schemas=[
    *SCHEMAS, "combined(Tensor parts, Tensor sums, ScalarType dtype) -> (Tensor, Tensor)", "plan(Tensor lengths) -> Tensor",
])  # fmt: skip


def cached(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, rows: Tensor | None, pages: Tensor | None, fresh: int,
    scales: list[Tensor], scale: float, causal: bool, left: int, right: int, softcap: float, statistics: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Of a batch ``[batch, queries, heads, size]`` over caches (:class:`Places`), of which ``lengths + fresh`` keys are live.

    Returns the results, and where ``statistics`` are wanted the logarithms of the sums ``[batch, heads, queries]``.
    """
    how: dict[str, Any] = {"scale": scale, "causal": causal, "window": (left, right), "softcap": softcap}
    places = Places(rows, pages, k.shape[1])
    wide, of_values = _unscaled(q, scales)
    out, sums = attend_cached(wide, _numbers(k), _numbers(v), places, lengths + fresh, statistics=statistics, **how)
    return _both(q, out if of_values is None else out * of_values[:, None, :, None], sums)


def packed(
    q: Tensor, k: Tensor, v: Tensor, ends_q: Tensor, ends_k: Tensor | None, lengths: Tensor | None, pages: Tensor | None,
    scales: list[Tensor], scale: float, causal: bool, left: int, right: int, softcap: float, statistics: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Of sequences one after the other, ``[all queries, heads, size]``; their keys likewise, or in pages of a cache.

    Returns the results, and where ``statistics`` are wanted the logarithms of the sums ``[heads, all queries]``.
    """
    how: dict[str, Any] = {"scale": scale, "causal": causal, "window": (left, right), "softcap": softcap}
    wide, of_values = _unscaled(q, [each.repeat_interleave(ends_q.diff(), dim=0) for each in scales])
    out, sums = attend_packed(
        wide, _numbers(k), _numbers(v), ends_q, ends_k, pages, lengths=lengths, statistics=statistics, **how
    )
    return _both(q, out if of_values is None else out * of_values[..., None], sums)


def packed_gradients(
    given: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, dq: Tensor, dk: Tensor, dv: Tensor,
    ends_q: Tensor, ends_k: Tensor, lengths: Tensor | None, scale: float, causal: bool, left: int, right: int,
    softcap: float,
) -> Tensor:  # fmt: skip
    """Of :func:`packed`, of which it takes results and sums: writes the gradients; returns the sums of ``given * out``,
    ``[heads, all queries]``."""
    for each in (dk, dv):  # of keys that no sequence uses
        each.zero_()
    spans = sequences(ends_q, ends_k, lengths)
    how = (scale, causal, left, right, softcap)
    return backward_of_each(spans, given, q, k, v, out, sums, dq, dk, dv, None, how)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    """What the backward pass of :func:`packed` wants."""
    q, k, v, ends_q, ends_k, lengths, _, _, *how, _ = inputs
    ctx.save_for_backward(q, k, v, *output, ends_q, ends_k, lengths)
    ctx.how = how


def _backward(ctx: Any, given: Tensor, _: Tensor, *, namespace: str) -> tuple[Any, ...]:
    """Of :func:`packed`: its sums have no gradient, as in the package."""
    q, k, v, out, sums, *ends = ctx.saved_tensors
    gradients = [torch.empty_like(each) for each in (q, k, v)]
    getattr(torch.ops, namespace).packed_gradients(given, q, k, v, out, sums, *gradients, *ends, *ctx.how)
    return *gradients, *(None,) * 4, [], *(None,) * 6


def _numbers(tensor: Tensor) -> Tensor:
    """As products of matrices have them, which are not rounded in between."""
    return tensor.float() if tensor.dtype.itemsize < torch.float32.itemsize else tensor


def _unscaled(q: Tensor, scales: list[Tensor]) -> tuple[Tensor, Tensor | None]:
    """Queries with their scales and those of keys, and what results are to be multiplied by, ``[.., heads]``."""
    wide = _numbers(q)
    if not scales:
        return wide, None
    of_queries, of_keys, of_values = (each.repeat_interleave(q.shape[-2] // each.shape[-1], dim=-1) for each in scales)
    factor = of_queries * of_keys
    return wide * (factor[..., None] if q.dim() == 3 else factor[:, None, :, None]), of_values


def _both(q: Tensor, out: Tensor, statistics: Tensor | None) -> tuple[Tensor, Tensor]:
    """An operator gives two tensors: where no statistics are wanted, an empty one."""
    return out.to(_written(q)), q.new_empty(0, dtype=torch.float32) if statistics is None else statistics


def _written(q: Tensor) -> torch.dtype:
    """The format of results: bf16 of eight bits."""
    return torch.bfloat16 if q.dtype.itemsize == 1 else q.dtype


def _of_cached(q: Tensor, v: Tensor, statistics: bool) -> tuple[Tensor, Tensor]:
    return q.new_empty(*q.shape[:-1], v.shape[-1], dtype=_written(q)), q.new_empty(
        (q.shape[0], q.shape[2], q.shape[1]) if statistics else 0, dtype=torch.float32
    )


def _of_packed(q: Tensor, v: Tensor, statistics: bool) -> tuple[Tensor, Tensor]:
    return q.new_empty(*q.shape[:-1], v.shape[-1], dtype=_written(q)), q.new_empty(
        (q.shape[1], q.shape[0]) if statistics else 0, dtype=torch.float32
    )


def _of_gradients(sums: Tensor) -> Tensor:
    return torch.empty_like(sums)


@third.value
def combined(parts: Tensor, sums: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Attention over all keys, of that over parts of them, ``[parts, batch, queries, heads, size]`` and the logarithms of their
    sums ``[parts, batch, queries, heads]``: each part by its share of the whole sum."""
    whole = torch.logsumexp(sums, 0)
    shares = torch.where(whole > -torch.inf, (sums - whole).exp(), 0)
    return (parts * shares[..., None]).sum(0).to(dtype), whole


@third.value
def plan(lengths: Tensor) -> Tensor:
    """How a kernel is to split its work, which is its own business: five whole numbers, of no meaning here."""
    return lengths.new_zeros(5, dtype=torch.int32)


# -- costs ----------------------------------------------------------------------------------------------------------------


third.cost("combined")(moving_all)


@third.cost("plan")
def _cost_of_plan(operands: CallOperands) -> float:
    return LEAST


def _cached_lengths(operands: CallOperands) -> list[tuple[int, int]]:
    """The live ones; where they are not known, all that the cache holds for a sequence."""
    q, k, lengths, pages = (operands[name] for name in ("q", "k", "lengths", "pages"))
    room = k.shape[1] * (1 if pages is None else pages.shape[1])
    live = [room] * q.shape[0] if lengths.known is None else [each + operands["fresh"] for each in lengths.known]
    return [(q.shape[1], each) for each in live]


def _packed_lengths(operands: CallOperands) -> list[tuple[int, int]]:
    """By the sequences' ends; where they are not known, as if all were equally long."""
    q, k, ends_q, ends_k, lengths = (operands[name] for name in ("q", "k", "ends_q", "ends_k", "lengths"))
    pages = operands.get("pages")  # of no backward pass
    count = ends_q.shape[0] - 1
    room = (k.shape[1] * pages.shape[1] if pages is not None else k.shape[0] // max(count, 1)) if count else 0
    queries = [q.shape[0] // max(count, 1)] * count if ends_q.known is None else between(ends_q.known)
    if lengths is not None and lengths.known is not None:
        keys = list(lengths.known)
    else:
        keys = [room] * count if ends_k is None or ends_k.known is None else between(ends_k.known)
    return list(zip(queries, keys, strict=True))


def _fill(table: Operators, variant: str) -> None:
    """Give the operators of a table their values, shapes and costs, of kernels that are as fast as those of ``variant``."""

    def work(operands: CallOperands, lengths: list[tuple[int, int]], *, gradient: bool) -> RaggedAttention:
        q, k, values, left = operands["q"], operands["k"], operands["v"].shape[-1], operands["left"]
        return RaggedAttention(
            tuple(lengths), q.shape[-2], k.shape[-2], q.shape[-1], q.format, operands["causal"], None if left < 0 else left,
            variant, gradient, value_width=None if values == q.shape[-1] else values,
        )  # fmt: skip

    for value, shape, lengths in (
        (cached, _of_cached, _cached_lengths), (packed, _of_packed, _packed_lengths),
        (packed_gradients, _of_gradients, _packed_lengths),
    ):  # fmt: skip
        name, gradient = value.__name__, value is packed_gradients
        table.value(name)(value)
        table.shape(name)(shape)
        table.cost(name)(
            lambda operands, lengths=lengths, gradient=gradient: work(operands, lengths(operands), gradient=gradient)
        )
    table.gradient("packed", _keep, functools.partial(_backward, namespace=table.namespaces[0]))


_fill(operators, OF_SECOND)
_fill(third, OF_THIRD)
