"""``flashinfer.rope``: ``q`` and ``k`` ``[tokens, heads, size]`` turned by their positions."""

from __future__ import annotations

import torch

from ._calls import Tensor, launch

Both = tuple[Tensor, Tensor]
"""Of queries and of keys."""


def _turn(
    q: Tensor, k: Tensor, positions: Tensor | None, ends: Tensor | None, offsets: Tensor | None, width: int | None,
    interleave: bool, scale: float, theta: float, bounds: tuple[float, ...] = (), *, inplace: bool,
) -> Both:  # fmt: skip
    out_q, out_k = (q, k) if inplace else (torch.empty_like(q), torch.empty_like(k))
    launch(
        "rope", q, k, positions, ends, offsets, width or q.shape[-1], interleave, scale, theta, list(map(float, bounds)),
        out_q, out_k,
    )  # fmt: skip
    return out_q, out_k


def apply_rope_inplace(
    q: Tensor, k: Tensor, indptr: Tensor, offsets: Tensor, rotary_dim: int | None = None, interleave: bool = False,
    rope_scale: float = 1, rope_theta: float = 10000.0,
) -> None:  # fmt: skip
    """Of sequences cut at ``indptr``, whose first positions are ``offsets``."""
    _turn(q, k, None, indptr, offsets, rotary_dim, interleave, rope_scale, rope_theta, inplace=True)


def apply_rope_pos_ids_inplace(
    q: Tensor, k: Tensor, pos_ids: Tensor, rotary_dim: int | None = None, interleave: bool = False, rope_scale: float = 1,
    rope_theta: float = 10000.0,
) -> None:  # fmt: skip
    """Of tokens at positions ``pos_ids``."""
    _turn(q, k, pos_ids, None, None, rotary_dim, interleave, rope_scale, rope_theta, inplace=True)


def apply_llama31_rope_inplace(
    q: Tensor, k: Tensor, indptr: Tensor, offsets: Tensor, rotary_dim: int | None = None, interleave: bool = False,
    rope_scale: float = 8, rope_theta: float = 500000.0, low_freq_factor: float = 1, high_freq_factor: float = 4,
    old_context_len: int = 8192,
) -> None:  # fmt: skip
    """With Llama 3.1's frequencies."""
    bounds = (low_freq_factor, high_freq_factor, old_context_len)
    _turn(q, k, None, indptr, offsets, rotary_dim, interleave, rope_scale, rope_theta, bounds, inplace=True)


def apply_llama31_rope_pos_ids_inplace(
    q: Tensor, k: Tensor, pos_ids: Tensor, rotary_dim: int | None = None, interleave: bool = False, rope_scale: float = 8,
    rope_theta: float = 500000.0, low_freq_factor: float = 1, high_freq_factor: float = 4, old_context_len: int = 8192,
) -> None:  # fmt: skip
    """The same by positions."""
    bounds = (low_freq_factor, high_freq_factor, old_context_len)
    _turn(q, k, pos_ids, None, None, rotary_dim, interleave, rope_scale, rope_theta, bounds, inplace=True)


def apply_rope(
    q: Tensor, k: Tensor, indptr: Tensor, offsets: Tensor, rotary_dim: int | None = None, interleave: bool = False,
    rope_scale: float = 1, rope_theta: float = 10000.0,
) -> Both:  # fmt: skip
    """As :func:`apply_rope_inplace`, into new tensors."""
    return _turn(q, k, None, indptr, offsets, rotary_dim, interleave, rope_scale, rope_theta, inplace=False)


def apply_rope_pos_ids(
    q: Tensor, k: Tensor, pos_ids: Tensor, rotary_dim: int | None = None, interleave: bool = False, rope_scale: float = 1,
    rope_theta: float = 10000.0,
) -> Both:  # fmt: skip
    """As :func:`apply_rope_pos_ids_inplace`, into new tensors."""
    return _turn(q, k, pos_ids, None, None, rotary_dim, interleave, rope_scale, rope_theta, inplace=False)


def apply_llama31_rope(
    q: Tensor, k: Tensor, indptr: Tensor, offsets: Tensor, rotary_dim: int | None = None, interleave: bool = False,
    rope_scale: float = 8, rope_theta: float = 500000.0, low_freq_factor: float = 1, high_freq_factor: float = 4,
    old_context_len: int = 8192,
) -> Both:  # fmt: skip
    """As :func:`apply_llama31_rope_inplace`, into new tensors."""
    bounds = (low_freq_factor, high_freq_factor, old_context_len)
    return _turn(q, k, None, indptr, offsets, rotary_dim, interleave, rope_scale, rope_theta, bounds, inplace=False)


def apply_llama31_rope_pos_ids(
    q: Tensor, k: Tensor, pos_ids: Tensor, rotary_dim: int | None = None, interleave: bool = False, rope_scale: float = 8,
    rope_theta: float = 500000.0, low_freq_factor: float = 1, high_freq_factor: float = 4, old_context_len: int = 8192,
) -> Both:  # fmt: skip
    """As :func:`apply_llama31_rope_pos_ids_inplace`, into new tensors."""
    bounds = (low_freq_factor, high_freq_factor, old_context_len)
    return _turn(q, k, pos_ids, None, None, rotary_dim, interleave, rope_scale, rope_theta, bounds, inplace=False)


def apply_rope_with_cos_sin_cache(
    positions: Tensor, query: Tensor, key: Tensor, head_size: int, cos_sin_cache: Tensor, is_neox: bool = True
) -> Both:
    """Of ``[tokens, heads * head_size]`` by a table of cosines and sines, into new tensors."""
    out = torch.empty_like(query), torch.empty_like(key)
    _by_table(positions, (query, key), head_size, cos_sin_cache, is_neox, out)
    return out


def apply_rope_with_cos_sin_cache_inplace(
    positions: Tensor, query: Tensor, key: Tensor, head_size: int, cos_sin_cache: Tensor, is_neox: bool = True
) -> None:
    """The same in place."""
    _by_table(positions, (query, key), head_size, cos_sin_cache, is_neox, (query, key))


def _by_table(positions: Tensor, given: Both, size: int, table: Tensor, is_neox: bool, out: Both) -> None:
    if table.dtype != torch.float32:
        raise ValueError("cos_sin_cache should be float32")
    heads = [each.unflatten(-1, (-1, size)) for each in (*given, *out)]
    launch("rope_by_table", positions, *heads[:2], table, not is_neox, *heads[2:])
