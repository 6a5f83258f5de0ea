"""Attention of packed queries over keys that are packed, too, or in pages; what fills these, and what puts parts together.

Logarithms of sums are to the base 2. Costs are by the lengths that are live.
"""

from __future__ import annotations

import math

import torch

from kernbench.compiled_operators.flash_attn import OF_SECOND, OF_THIRD, packed
from kernbench.compiled_operators.flashinfer.kernels import TABLE
from kernbench.cost.by_values import CallOperands, SeenOperand
from kernbench.cost.ragged_attention import RaggedAttention, between
from kernbench.cost.work import StatedWork

Tensor = torch.Tensor


def live(pages: Tensor, last: Tensor, size: int) -> Tensor:
    """Keys of each sequence, of pages of ``size`` keys that are cut at ``pages``, the last of them as full as ``last``."""
    count = pages.diff()
    return torch.where(count > 0, (count - 1) * size + last, 0)


@TABLE.kernel(
    "attend(Tensor q, Tensor k, Tensor v, Tensor? ends_q, int each, Tensor ends_k, Tensor? indices, Tensor? last, "
    "Tensor? mask, float scale, float of_values, bool causal, int left, float softcap, Tensor(a!) out, Tensor(b!)? sums)",
    cost=lambda operands: _cost(operands),
)
def _attend(
    q: Tensor, k: Tensor, v: Tensor, ends_q: Tensor | None, each: int, ends_k: Tensor, indices: Tensor | None,
    last: Tensor | None, mask: Tensor | None, scale: float, of_values: float, causal: bool, left: int, softcap: float,
    out: Tensor, sums: Tensor | None,
) -> None:  # fmt: skip
    """Queries ``[all, heads, size]``, cut at ``ends_q``, or ``each`` of every sequence.

    Args:
        k, v: ``[all keys, heads, size]``, cut at ``ends_k``; or pages ``[pages, page, heads, size]``, of which a sequence
            has those of ``indices`` between its ends.
        mask: which keys each query sees, of one sequence after the other; None: as ``causal`` and ``left`` say.
    """
    sequences = len(ends_k) - 1
    if ends_q is None:
        ends_q = torch.arange(sequences + 1) * each
    table, lengths = None, None
    starts: Tensor | None = ends_k
    if indices is not None:
        assert last is not None
        lengths, starts = live(ends_k, last, k.shape[1]), None
        begins = ends_k[:-1, None].long() + torch.arange(max(int(ends_k.diff().max()), 1) if sequences else 1)
        table = indices[begins.clamp(max=max(len(indices) - 1, 0))] if len(indices) else begins * 0
    used = slice(0, int(ends_q[-1]))
    if mask is not None:
        found, logs = _masked(q, k, v, ends_q, ends_k, table, lengths, mask, scale, softcap)
    else:
        queries = q[used].float()
        found, logs = packed(
            queries, k.float(), v.float(), ends_q, starts, lengths, table, [], scale, causal, left, -1, softcap, True
        )
    out[used] = (found * of_values).to(out.dtype)
    if sums is not None:
        sums[used] = logs.T * math.log2(math.e)


def _masked(
    q: Tensor, k: Tensor, v: Tensor, ends_q: Tensor, ends_k: Tensor, table: Tensor | None, lengths: Tensor | None,
    mask: Tensor, scale: float, softcap: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    found, logs, first = [], [], 0
    for at, (begin, end) in enumerate(zip(ends_q[:-1].tolist(), ends_q[1:].tolist(), strict=True)):
        if table is None or lengths is None:
            keys, values = (each[int(ends_k[at]) : int(ends_k[at + 1])].float() for each in (k, v))
        else:
            keys, values = (each[table[at].long()].flatten(0, 1)[: int(lengths[at])].float() for each in (k, v))
        groups = q.shape[1] // k.shape[-2]
        keys, values = (each.repeat_interleave(groups, 1) for each in (keys, values))
        scores = torch.einsum("ihd,jhd->hij", q[begin:end].float(), keys) * scale
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        count = (end - begin) * len(keys)
        seen = mask[first : first + count].view(end - begin, len(keys)).bool()
        first += count
        scores = scores.masked_fill(~seen, -math.inf)
        sums = torch.logsumexp(scores, -1)
        shares = torch.where(sums[..., None] > -math.inf, (scores - sums[..., None]).exp(), 0)
        found.append(torch.einsum("hij,jhd->ihd", shares, values))
        logs.append(sums)
    return torch.cat(found), torch.cat(logs, 1)


def _cost(operands: CallOperands) -> RaggedAttention:
    """By the ends and the pages that are known; else as if all that is there were divided equally."""
    q, k, ends_q, ends_k, last = (operands[name] for name in ("q", "k", "ends_q", "ends_k", "last"))
    count = ends_k.shape[0] - 1
    queries = [operands["each"]] * count
    if ends_q is not None:
        queries = [q.shape[0] // max(count, 1)] * count if ends_q.known is None else between(ends_q.known)
    values, left, masked = operands["v"].shape[-1], operands["left"], operands["mask"] is not None
    return RaggedAttention(
        tuple(zip(queries, _keys(k, ends_k, operands["indices"], last, count), strict=True)), q.shape[-2], k.shape[-2],
        q.shape[-1], k.format, operands["causal"] and not masked, None if left < 0 or masked else left,
        OF_SECOND if masked else OF_THIRD, value_width=None if values == q.shape[-1] else values,
    )  # fmt: skip


def _keys(
    k: SeenOperand, ends: SeenOperand, indices: SeenOperand | None, last: SeenOperand | None, count: int
) -> list[int]:
    if indices is None:
        return [k.shape[0] // max(count, 1)] * count if ends.known is None else between(ends.known)
    if ends.known is None:
        return [indices.shape[0] * k.shape[1] // max(count, 1)] * count
    pages = between(ends.known)
    full = [k.shape[1]] * count if last is None or last.known is None else last.known
    return [(number - 1) * k.shape[1] + rest if number else 0 for number, rest in zip(pages, full, strict=True)]


@TABLE.kernel(
    "append(Tensor key, Tensor value, Tensor sequences, Tensor positions, Tensor(a!) k, Tensor(b!) v, Tensor indices, "
    "Tensor ends)",
    cost=lambda operands: StatedWork(2 * (operands["key"].nbytes + operands["value"].nbytes)),
)
def _append(
    key: Tensor,
    value: Tensor,
    sequences: Tensor,
    positions: Tensor,
    k: Tensor,
    v: Tensor,
    indices: Tensor,
    ends: Tensor,
) -> None:
    """Keys and values ``[tokens, heads, size]`` at their positions of their sequences."""
    there = sequences >= 0
    at, place = sequences[there].long(), positions[there].long()
    page = indices[ends[at].long() + place // k.shape[1]].long()
    k[page, place % k.shape[1]] = key[there].to(k.dtype)
    v[page, place % k.shape[1]] = value[there].to(v.dtype)


@TABLE.kernel(
    "places(Tensor ends, Tensor lengths, Tensor(a!) sequences, Tensor(b!) positions)", "sequences", "positions"
)
def _places(ends: Tensor, lengths: Tensor, sequences: Tensor, positions: Tensor) -> None:
    """Of tokens that are the last ones of their sequences: which, and where in it."""
    count = ends.diff()
    of_each = torch.arange(len(lengths)).repeat_interleave(count)
    sequences[: len(of_each)] = of_each.to(sequences.dtype)
    within = torch.arange(len(of_each)) - ends[:-1].long()[of_each]
    positions[: len(of_each)] = ((lengths - count).long()[of_each] + within).to(positions.dtype)


@TABLE.kernel("merge(Tensor v, Tensor s, Tensor(a!) out, Tensor(b!) sums)", "v", "s", "out", "sums")
def _merge(v: Tensor, s: Tensor, out: Tensor, sums: Tensor) -> None:
    """Attention over all keys, of that over parts, ``[tokens, parts, heads, size]``, and the logarithms of their sums."""
    whole = torch.logsumexp(s.float() * math.log(2), 1) / math.log(2)
    shares = torch.where(whole[:, None] > -math.inf, torch.exp2(s.float() - whole[:, None]), 0)
    out.copy_((v.float() * shares[..., None]).sum(1))
    sums.copy_(whole)


@TABLE.kernel(
    "merge_into(Tensor(a!) v, Tensor(b!) s, Tensor other, Tensor other_s, Tensor? mask)",
    "v", "v", "s", "s", "other", "other_s", "mask",
)  # fmt: skip
def _merge_into(v: Tensor, s: Tensor, other: Tensor, other_s: Tensor, mask: Tensor | None) -> None:
    """The same of two, into the first one; ``mask``: of which tokens."""
    out, sums = torch.empty_like(v), torch.empty_like(s)
    _merge(torch.stack((v, other), 1), torch.stack((s, other_s), 1), out, sums)
    chosen = torch.ones(len(v), dtype=torch.bool) if mask is None else mask.bool()
    v[chosen], s[chosen] = out[chosen], sums[chosen]


@TABLE.kernel(
    "merge_two(Tensor v, Tensor s, Tensor other, Tensor other_s, Tensor(a!) out, Tensor(b!) sums)",
    "v", "s", "other", "other_s", "out", "sums",
)  # fmt: skip
def _merge_two(v: Tensor, s: Tensor, other: Tensor, other_s: Tensor, out: Tensor, sums: Tensor) -> None:
    _merge(torch.stack((v, other), 1), torch.stack((s, other_s), 1), out, sums)
