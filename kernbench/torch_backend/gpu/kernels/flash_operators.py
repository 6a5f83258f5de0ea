"""FlashAttention's and the memory-efficient kernel's operators, which programs call by themselves and builds for CPUs lack.

``torch.nn.attention.varlen``, ring attention and biases that are causal from the lower right call
``aten::_flash_attention_forward``, ``_scaled_dot_product_flash_attention`` and ``_efficient_attention_forward``. Each takes
dense operands, or sequences of several lengths one after the other; what is computed is the definition, in fp32, and each
result is rounded once. A gradient takes the logarithms of the sums that it is given: those of a ring are of all its parts.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from kernbench.errors import KernbenchError
from kernbench.torch_backend.relies_on import Reliance

Tensor = torch.Tensor

_STEP = 32
"""The memory-efficient kernel keeps the logarithms of queries up to a multiple of these."""

_UPPER_LEFT, _LOWER_RIGHT = 1, 2
"""``custom_mask_type`` of the memory-efficient kernel."""


class _Pairs(NamedTuple):
    """Which pairs of a query and a key are seen, and how.

    Attributes:
        scale: of the products.
        right: keys after a query's own that it sees; None: all.
        left: keys before it; None: all.
        lower_right: whether the last query's own key is the last one; else the first query's is the first.
        slopes: of each head: scores fall by it with each place of distance.
        dropout: probability with which a share is dropped.
        seed: what that is drawn from.
    """

    scale: float
    right: int | None
    left: int | None
    lower_right: bool = True
    slopes: Tensor | None = None
    dropout: float = 0.0
    seed: int = 0

    def scores(self, query: Tensor, key: Tensor, bias: Tensor | None) -> Tensor:
        """Of heads ``[heads, queries, width]`` and ``[heads, keys, width]``; what is not seen is minus infinity."""
        found = query @ key.mT * self.scale
        if bias is not None:
            found = found + bias
        queries, keys = found.shape[-2:]
        away = torch.arange(keys) - torch.arange(queries)[:, None] - (keys - queries if self.lower_right else 0)
        if self.slopes is not None:
            found = found - self.slopes.float()[:, None, None] * away.abs()
        hidden = torch.zeros((), dtype=torch.bool)
        if self.right is not None:
            hidden = hidden | (away > self.right)
        if self.left is not None:
            hidden = hidden | (away < -self.left)
        return found.masked_fill(hidden, -math.inf)

    def kept(self, shares: Tensor, sequence: int) -> Tensor | float:
        """What each share is multiplied by: nothing where it is dropped."""
        if not self.dropout:
            return 1.0
        drawn = torch.rand(shares.shape, generator=torch.Generator().manual_seed(self.seed + sequence))
        return (drawn >= self.dropout).float() / (1 - self.dropout)


def _attend(
    pairs: _Pairs, sequence: int, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Results ``[queries, heads, width]`` and logarithms of sums ``[heads, queries]`` of one sequence, whose operands are
    ``[tokens, heads, width]``; a query that sees nothing has zeros, and infinity."""
    query, key, value = _by_head(query, key, value)
    scores = pairs.scores(query, key, bias)
    sums = scores.logsumexp(-1)
    shares = (scores - sums.unsqueeze(-1)).exp().nan_to_num(0.0)
    out = (shares * pairs.kept(shares, sequence)) @ value
    return out.transpose(0, 1), sums.masked_fill(sums == -math.inf, math.inf)


def _gradients(
    pairs: _Pairs,
    sequence: int,
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    sums: Tensor,
    bias: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of query, key and value ``[tokens, heads, width]``, and of the scores ``[heads, queries, keys]``."""
    groups = key.shape[1]
    wide = _by_head(query, key, value)
    grad, out = (each.float().transpose(0, 1) for each in (grad, out))
    shares = (pairs.scores(wide[0], wide[1], bias) - sums.unsqueeze(-1)).exp().nan_to_num(0.0)
    kept = pairs.kept(shares, sequence)
    of_scores = shares * (grad @ wide[2].mT * kept - (grad * out).sum(-1, keepdim=True))
    of_key, of_value = of_scores.mT @ wide[0] * pairs.scale, (shares * kept).mT @ grad
    shared = (each.unflatten(0, (groups, -1)).sum(1).transpose(0, 1) for each in (of_key, of_value))
    return (of_scores @ wide[1] * pairs.scale).transpose(0, 1), *shared, of_scores


def _by_head(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``[heads, tokens, width]`` in fp32, keys and values with a head for each of the queries'."""
    repeats = query.shape[1] // key.shape[1]
    keys, values = (each.float().repeat_interleave(repeats, 1).transpose(0, 1) for each in (key, value))
    return query.float().transpose(0, 1), keys, values


# -- FlashAttention ----------------------------------------------------------------------------------------------------


def _cuts(
    query: Tensor, key: Tensor, ends_q: Tensor | None, ends_k: Tensor | None, used: Tensor | None
) -> Iterator[tuple[Any, Any]]:
    """Where each sequence's queries and keys are: an index, or a slice of what is packed."""
    if ends_q is None:
        for at in range(query.shape[0]):
            yield at, at
        return
    queries = ends_q.tolist()
    keys = None if ends_k is None else ends_k.tolist()
    for at in range(len(queries) - 1):
        begin = keys[at] if keys else 0
        end = begin + int(used[at]) if used is not None else keys[at + 1] if keys else None
        yield slice(queries[at], queries[at + 1]), slice(begin, end)


def _side(size: int | None, causal: bool = False) -> int | None:
    """A side of a window: torch says -1, or nothing, for all."""
    return 0 if causal else None if size is None or size < 0 else int(size)


def _paged(each: Tensor, pages: Tensor, at: int) -> Tensor:
    return each[pages[at].long()].flatten(0, 1)


def flash_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    seqused_k: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """``[sequences, tokens, heads, width]``, or packed ``[all tokens, heads, width]``: output, logarithms of the sums, and what
    the dropout was drawn from."""
    if return_debug_mask and dropout_p:
        raise KernbenchError("the debug mask of FlashAttention's dropout is not simulated: leave return_debug_mask out")
    seed = int(torch.randint(1 << 62, ())) if dropout_p else 0
    width = query.shape[-1]
    pairs = _Pairs(
        width**-0.5 if scale is None else scale, _side(window_size_right, is_causal), _side(window_size_left),
        dropout=dropout_p, seed=seed,
    )  # fmt: skip
    out = torch.zeros_like(query)
    dense = cum_seq_q is None
    sums = torch.full(
        (query.shape[0], query.shape[2], query.shape[1]) if dense else (query.shape[1], query.shape[0]), math.inf
    )
    for at, (queries, keys) in enumerate(_cuts(query, key, cum_seq_q, cum_seq_k, seqused_k)):
        slopes = None if alibi_slopes is None else alibi_slopes[at] if alibi_slopes.dim() == 2 else alibi_slopes
        mine = pairs._replace(slopes=slopes)
        parts = (
            (each[keys] for each in (key, value))
            if block_table is None
            else (_paged(each, block_table, at)[: keys.stop] for each in (key, value))
        )
        keys_at, values_at = parts
        made, found = _attend(mine, at, query[queries], keys_at, values_at, None)
        out[queries] = made.to(out.dtype)
        if dense:
            sums[at] = found
        else:
            sums[:, queries] = found
    drawn = torch.tensor([seed, 0], dtype=torch.uint64)
    return out, sums, drawn, torch.zeros((), dtype=torch.uint64), query.new_empty(0)


def flash_forward_into(out: Tensor, query: Tensor, key: Tensor, value: Tensor, *rest: Any, **how: Any) -> Tensor:
    """The same, into memory of the caller's; gives the logarithms of the sums."""
    made, sums, *_ = flash_forward(query, key, value, *rest, **how)
    out.copy_(made)
    return sums


def flash_backward(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor, cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None, max_q: int, max_k: int, dropout_p: float, is_causal: bool, rng_state: Tensor, unused: Any, *,
    scale: float | None = None, window_size_left: int | None = None, window_size_right: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of query, key and value."""
    pairs = _Pairs(
        query.shape[-1] ** -0.5 if scale is None else scale, _side(window_size_right, is_causal), _side(window_size_left),
        dropout=dropout_p, seed=int(rng_state.view(-1)[0]) if dropout_p else 0,
    )  # fmt: skip
    dense = cum_seq_q is None or not cum_seq_q.numel()
    made = tuple(torch.zeros_like(each) for each in (query, key, value))
    cuts = _cuts(query, key, None, None, None) if dense else _cuts(query, key, cum_seq_q, cum_seq_k, None)
    for at, (queries, keys) in enumerate(cuts):
        sums = logsumexp[at] if dense else logsumexp[:, queries]
        found = _gradients(
            pairs, at, grad_out[queries], query[queries], key[keys], value[keys], out[queries], sums, None
        )
        for to, place, one in zip(made, (queries, keys, keys), found, strict=False):
            to[place] = one.to(to.dtype)
    return made  # type: ignore[return-value]


def sdp_flash_forward(
    query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, is_causal: bool = False,
    return_debug_mask: bool = False, *, scale: float | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """The same of ``[sequences, heads, tokens, width]``."""
    q, k, v = (each.transpose(1, 2) for each in (query, key, value))
    tokens = query.shape[2], key.shape[2]
    out, sums, drawn, unused, debug = flash_forward(
        q, k, v, None, None, *tokens, dropout_p, is_causal, return_debug_mask, scale=scale
    )
    none = torch.empty(0, dtype=torch.int32)
    return out.transpose(1, 2), sums, none, none.clone(), *tokens, drawn, unused, debug


def sdp_flash_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Tensor,
    philox_offset: Tensor,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """Its gradients."""
    of_out, q, k, v, o = (each.transpose(1, 2) for each in (grad_out, query, key, value, out))
    made = flash_backward(
        of_out,
        q,
        k,
        v,
        o,
        logsumexp,
        None,
        None,
        max_q,
        max_k,
        dropout_p,
        is_causal,
        philox_seed,
        philox_offset,
        scale=scale,
    )
    return tuple(each.transpose(1, 2) for each in made)


# -- the memory-efficient kernel ---------------------------------------------------------------------------------------


def _efficient_pairs(
    query: Tensor, scale: float | None, mask: int, window: int | None, dropout: float, seed: int
) -> _Pairs:
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    left = window - 1 if window else None
    return _Pairs(factor, 0 if mask else None, left, mask == _LOWER_RIGHT, dropout=dropout, seed=seed)


def _efficient_cuts(
    query: Tensor, ends_q: Tensor | None, ends_k: Tensor | None, used: Tensor | None
) -> Iterator[tuple[int, Any, Any]]:
    """Batch, queries and keys of each sequence; what is packed is the only one of its batch."""
    if ends_q is None:
        for at in range(query.shape[0]):
            yield at, slice(None), slice(None if used is None else int(used[at]))
        return
    for _, (queries, keys) in zip(range(len(ends_q) - 1), _cuts(query[0], query[0], ends_q, ends_k, used), strict=True):
        yield 0, queries, keys


def _bias_at(bias: Tensor | None, at: int) -> Any:
    return None if bias is None else bias[at if bias.shape[0] > 1 else 0].float()


def efficient_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    dropout_p: float,
    custom_mask_type: int,
    compute_log_sumexp: bool = False,
    *,
    scale: float | None = None,
    seqlen_k: Tensor | None = None,
    window_size: int | None = None,
) -> tuple[Any, ...]:
    """``[sequences, tokens, heads, width]``, or packed in a batch of one: output, logarithms of the sums, what the dropout was
    drawn from, and the longest sequences."""
    if bias is not None and bias.dtype != query.dtype:
        raise RuntimeError(f"invalid dtype for bias - should match query's dtype: {bias.dtype}, and not {query.dtype}")
    seed = int(torch.randint(1 << 62, ())) if dropout_p else 0
    pairs = _efficient_pairs(query, scale, custom_mask_type, window_size, dropout_p, seed)
    longest = query.shape[1] if cu_seqlens_q is None or max_seqlen_q is None else max_seqlen_q
    sequences = query.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
    out = query.new_zeros((*query.shape[:3], value.shape[-1]))
    kept = -(-longest // _STEP) * _STEP if compute_log_sumexp else 0
    sums = torch.full((sequences, query.shape[2], kept), math.inf)
    for at, (batch, queries, keys) in enumerate(_efficient_cuts(query, cu_seqlens_q, cu_seqlens_k, seqlen_k)):
        parts = query[batch, queries], key[batch, keys], value[batch, keys]
        made, found = _attend(pairs, at, *parts, _bias_at(bias, at))
        out[batch, queries] = made.to(out.dtype)
        if kept:
            sums[at, :, : found.shape[-1]] = found
    longest_k = key.shape[1] if cu_seqlens_k is None or max_seqlen_k is None else max_seqlen_k
    drawn = torch.tensor(seed, dtype=torch.int64)
    return out, sums, drawn, torch.zeros((), dtype=torch.int64), longest, longest_k


def efficient_backward(
    grad_out_: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    out: Tensor,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    max_seqlen_q: int,
    max_seqlen_k: int,
    logsumexp: Tensor,
    dropout_p: float,
    philox_seed: Tensor,
    philox_offset: Tensor,
    custom_mask_type: int,
    bias_requires_grad: bool,
    *,
    scale: float | None = None,
    num_splits_key: int | None = None,
    window_size: int | None = None,
    shared_storage_dqdkdv: bool = False,
) -> tuple[Any, ...]:
    """Gradients of query, key, value and bias."""
    pairs = _efficient_pairs(
        query, scale, custom_mask_type, window_size, dropout_p, int(philox_seed) if dropout_p else 0
    )
    made = tuple(torch.zeros_like(each) for each in (query, key, value))
    of_bias = torch.zeros(bias.shape) if bias is not None and bias_requires_grad else None
    for at, (batch, queries, keys) in enumerate(_efficient_cuts(query, cu_seqlens_q, cu_seqlens_k, None)):
        parts = query[batch, queries], key[batch, keys], value[batch, keys]
        sums = logsumexp[at][:, : parts[0].shape[0]]
        *found, of_scores = _gradients(
            pairs, at, grad_out_[batch, queries], *parts, out[batch, queries], sums, _bias_at(bias, at)
        )
        for to, place, one in zip(made, (queries, keys, keys), found, strict=True):
            to[batch, place] = one.to(to.dtype)
        if bias is not None and of_bias is not None:
            of_bias[at if bias.shape[0] > 1 else 0] += of_scores.sum_to_size(bias.shape[1:])
    return *made, torch.empty(0) if bias is None or of_bias is None else of_bias.to(bias.dtype)


KERNELS: dict[str, Callable[..., Any]] = {
    "aten::_flash_attention_forward": flash_forward,
    "aten::_flash_attention_forward_no_dropout_inplace": flash_forward_into,
    "aten::_flash_attention_backward": flash_backward,
    "aten::_scaled_dot_product_flash_attention": sdp_flash_forward,
    "aten::_scaled_dot_product_flash_attention_backward": sdp_flash_backward,
    "aten::_efficient_attention_forward": efficient_forward,
    "aten::_efficient_attention_backward": efficient_backward,
}
"""What CPUs have no kernel for, by name."""


def _takes(function: Callable[..., Any]) -> Callable[[Any], bool]:
    """Says of an operator whether its arguments have the names of a function's parameters, in that order."""
    names = list(inspect.signature(function).parameters)
    return lambda operator: [each.name for each in operator.default._schema.arguments][: len(names)] == names


RELIES_ON = tuple(
    Reliance(f"torch.ops.aten.{name.removeprefix('aten::')}", "what it takes is taken here", holds=_takes(function))
    for name, function in KERNELS.items()
    if function is not flash_forward_into
)
