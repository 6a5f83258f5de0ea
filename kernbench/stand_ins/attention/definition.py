"""Attention as ``flash_attn`` defines it, on torch's operations.

Queries and keys are aligned at their ends: the last query sees all keys. A query that sees none gives zeros.
"""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F

Tensor = torch.Tensor
Window = tuple[int, int]


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, dropout: float = 0.0, scale: float | None = None, causal: bool = False,
    window: Window = (-1, -1), softcap: float = 0.0, alibi: Tensor | None = None, statistics: bool = False,
    lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Attention of one batch.

    Args:
        q: ``[batch, queries, heads, size]``.
        k, v: ``[batch, keys, heads of keys, size]``; as many heads, or a divisor of them.
        window: keys to the left and to the right that a query sees; -1: all.
        softcap: scores are ``softcap * tanh(scores / softcap)``; 0: they are as they are.
        alibi: slopes, ``[heads]`` or ``[batch, heads]``.
        statistics: whether the logarithms of the sums of the scores' exponentials are wanted.
        lengths: of the keys of each of the batch, on its device, ``[batch]``; those behind are not seen. None: all of them.

    Returns:
        ``[batch, queries, heads, size]`` in the format of ``q``, and (or None) ``[batch, heads, queries]`` in fp32.
    """
    queries, keys = q.shape[1], k.shape[1]
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    grouped = q.shape[1] != k.shape[1]
    left, right = window[0], right_of(window[1], causal)
    bounded = (0 <= left < keys - 1) or (0 <= right < queries - 1)  # what the last and the first query do not see
    if not (softcap or statistics or alibi is not None or lengths is not None):
        if not bounded:
            out = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, scale=scale, enable_gqa=grouped)
            return out.transpose(1, 2), None
        if left < 0 and right == 0 and queries == keys:
            out = F.scaled_dot_product_attention(
                q, k, v, dropout_p=dropout, scale=scale, is_causal=True, enable_gqa=grouped
            )
            return out.transpose(1, 2), None
    seen, distance = seen_keys(queries, keys if lengths is None else lengths, keys, left, right, q.device)
    if not (softcap or statistics):
        bias = torch.zeros_like(distance, dtype=q.dtype).masked_fill(~seen, -math.inf)
        if alibi is not None:
            bias = bias + slopes_bias(alibi, distance).to(q.dtype)
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=bias, dropout_p=dropout, scale=scale, enable_gqa=grouped
        )
        return torch.where(seen.any(-1, keepdim=True), out, 0).transpose(1, 2), None
    if grouped:
        k, v = (each.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for each in (k, v))
    scores = (q @ k.transpose(-1, -2)).float() * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if alibi is not None:
        scores = scores + slopes_bias(alibi, distance)
    scores = scores.masked_fill(~seen, -math.inf)
    shares = torch.where(seen.any(-1, keepdim=True), torch.softmax(scores, -1), 0)
    out = F.dropout(shares, dropout).to(v.dtype) @ v
    return out.transpose(1, 2), torch.logsumexp(scores, -1) if statistics else None


def right_of(right: int, causal: bool) -> int:
    """How many keys to the right a query sees, -1 for all: none that comes later, if it is ``causal``."""
    if not causal:
        return right
    return 0 if right < 0 else min(right, 0)


def sequences(ends_q: Tensor, ends_k: Tensor | None, lengths: Tensor | None = None) -> list[tuple[int, int, int, int]]:
    """Begin and end of each sequence's queries and of its keys, of sequences that lie one after the other.

    ``ends_q`` and ``ends_k``, ``[sequences + 1]``, are read on the host; ``lengths``, ``[sequences]``: of the keys, where there
    are fewer; all begin at the first one where they have no ends.
    """
    queries = ends_q.tolist()
    keys = [0] * len(queries) if ends_k is None else ends_k.tolist()
    last = keys[1:] if lengths is None else [a + b for a, b in zip(keys[:-1], lengths.tolist(), strict=True)]
    return list(zip(queries[:-1], queries[1:], keys[:-1], last, strict=True))


def slopes_of(alibi: Tensor | None, at: int) -> Tensor | None:
    """The slopes of one sequence: its own, or those of all."""
    return alibi if alibi is None or alibi.dim() == 1 else alibi[at, None]


def seen_keys(
    queries: int, ends: int | Tensor, keys: int, left: int, right: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Which keys a query sees, and how far they are from it: ``[queries, keys]``, or ``[batch, 1, queries, keys]``.

    ``ends``: of the keys, for all, or for each of the batch.
    """
    if isinstance(ends, torch.Tensor):
        ends = ends[:, None, None, None]
    at = torch.arange(queries, device=device)[:, None] + (ends - queries)
    places = torch.arange(keys, device=device)
    distance = places - at
    seen = (places < ends).expand_as(distance)
    if left >= 0:
        seen = seen & (distance >= -left)
    if right >= 0:
        seen = seen & (distance <= right)
    return seen, distance


def slopes_bias(alibi: Tensor, distance: Tensor) -> Tensor:
    """What slopes ``[heads]`` or ``[batch, heads]`` add to scores at these distances."""
    return -alibi.float()[..., None, None] * distance.abs()
