"""The functions of ``flash_attn.flash_attn_interface``, with their arguments."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from kernbench.stand_ins.attention.caches import Places
from kernbench.stand_ins.attention.definition import Tensor, Window, attend
from kernbench.stand_ins.attention.passes import backward_pass, forward_pass, varlen_backward_pass, varlen_forward_pass
from kernbench.stand_ins.attention.sequences import attend_cached, attend_packed

_NO_WINDOW = (-1, -1)

importlib.import_module("flash_attn._kernels")  # not when one is called, which Dynamo would have to trace

_flash_attn_forward, _flash_attn_backward = forward_pass, backward_pass
_flash_attn_varlen_forward, _flash_attn_varlen_backward = varlen_forward_pass, varlen_backward_pass


def _given(out: Tensor, statistics: Tensor | None) -> Any:
    return out if statistics is None else (out, statistics, None)


def _kernel(name: str, *args: Any) -> Any:
    """Call an operator that is one kernel to the simulation (``kernbench.compiled_operators.flash_attn``)."""
    with torch.no_grad():
        return getattr(torch.ops.flash_attn, name)(*args)


def _scale(q: Tensor, scale: float | None) -> float:
    return float(q.shape[-1] ** -0.5) if scale is None else scale


def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: Window = _NO_WINDOW, softcap: float = 0.0, alibi_slopes: Tensor | None = None,
    deterministic: bool = False, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """Attention of ``q`` ``[batch, queries, heads, size]`` over ``k``, ``v`` ``[batch, keys, heads, size]``."""
    return _given(*attend(
        q, k, v, dropout=dropout_p, scale=softmax_scale, causal=causal, window=window_size, softcap=softcap,
        alibi=alibi_slopes, statistics=return_attn_probs,
    ))  # fmt: skip


def flash_attn_qkvpacked_func(qkv: Tensor, *args: Any, **kwargs: Any) -> Any:
    """The same of ``[batch, length, 3, heads, size]``."""
    q, k, v = qkv.unbind(2)
    return flash_attn_func(q, k, v, *args, **kwargs)


def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, *args: Any, **kwargs: Any) -> Any:
    """The same with ``kv`` ``[batch, keys, 2, heads, size]``."""
    k, v = kv.unbind(2)
    return flash_attn_func(q, k, v, *args, **kwargs)


def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False, window_size: Window = _NO_WINDOW,
    softcap: float = 0.0, alibi_slopes: Tensor | None = None, deterministic: bool = False,
    return_attn_probs: bool = False, block_table: Tensor | None = None,
) -> Any:  # fmt: skip
    """Attention of sequences that lie one after the other: ``q`` ``[all queries, heads, size]``.

    It is one kernel, and with gradients another one. With dropout, slopes, or gradients of keys in pages the sequences' ends
    are read on the host, and each sequence is a call of its own.

    Args:
        k, v: ``[all keys, heads, size]``; with a ``block_table`` ``[sequences, pages of each]``, the pages of a cache,
            ``[pages, page, heads, size]``.
    """
    learns = torch.is_grad_enabled() and any(each.requires_grad for each in (q, k, v))
    if not (dropout_p or alibi_slopes is not None or (learns and block_table is not None)):
        out, sums = torch.ops.flash_attn.packed(
            q, k, v, cu_seqlens_q, cu_seqlens_k, None, block_table, [], _scale(q, softmax_scale), causal, *window_size,
            softcap, learns or return_attn_probs,
        )  # fmt: skip
        return _given(out, sums if return_attn_probs else None)
    return _given(*attend_packed(
        q, k, v, cu_seqlens_q, cu_seqlens_k, block_table, alibi_slopes, dropout=dropout_p, scale=softmax_scale,
        causal=causal, window=window_size, softcap=softcap, statistics=return_attn_probs,
    ))  # fmt: skip


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, *args: Any, **kwargs: Any
) -> Any:
    """The same of ``[all, 3, heads, size]``."""
    q, k, v = qkv.unbind(1)
    return flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, *args, **kwargs)


def flash_attn_varlen_kvpacked_func(q: Tensor, kv: Tensor, *args: Any, **kwargs: Any) -> Any:
    """The same with ``kv`` ``[all keys, 2, heads, size]``."""
    k, v = kv.unbind(1)
    return flash_attn_varlen_func(q, k, v, *args, **kwargs)


def flash_attn_with_kvcache(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None = None, v: Tensor | None = None,
    rotary_cos: Tensor | None = None, rotary_sin: Tensor | None = None, cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None, cache_leftpad: Tensor | None = None, block_table: Tensor | None = None,
    softmax_scale: float | None = None, causal: bool = False, window_size: Window = _NO_WINDOW, softcap: float = 0.0,
    rotary_interleaved: bool = True, alibi_slopes: Tensor | None = None, num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Any:  # fmt: skip
    """Attention over a cache, to which ``k`` and ``v`` are added first, in place.

    It is one kernel, beside what adds to the cache. With slopes the lengths are read on the host, and each sequence is a call
    of its own; while a CUDA graph is captured, which reads nothing, all are one call over all that their places hold, with a
    mask.

    Args:
        k_cache, v_cache: ``[batch, capacity, heads, size]``; with a ``block_table`` ``[batch, pages of each]``, pages,
            ``[pages, page, heads, size]``.
    """
    for name, value in (("rotary_cos", rotary_cos), ("cache_leftpad", cache_leftpad)):
        if value is not None:
            raise NotImplementedError(f"the stand-in for flash_attn_with_kvcache has no {name}")
    count, fresh = q.shape[0], 0 if k is None else k.shape[1]
    capacity = k_cache.shape[1] * (1 if block_table is None else block_table.shape[1])
    lengths = capacity - fresh if cache_seqlens is None else cache_seqlens
    if not isinstance(lengths, torch.Tensor):
        lengths = torch.full((count,), lengths, dtype=torch.int32, device=q.device)
    places = Places(cache_batch_idx, block_table, k_cache.shape[1])
    if k is not None and v is not None:
        places.write(k_cache, k, lengths)
        places.write(v_cache, v, lengths)
    if alibi_slopes is None:
        out, sums = _kernel(
            "cached", q, k_cache, v_cache, lengths, cache_batch_idx, block_table, fresh, [], _scale(q, softmax_scale), causal,
            *window_size, softcap, return_softmax_lse,
        )  # fmt: skip
        return (out, sums) if return_softmax_lse else out
    given: dict[str, Any] = {
        "scale": softmax_scale, "causal": causal, "window": window_size, "softcap": softcap,
        "statistics": return_softmax_lse,
    }  # fmt: skip
    if q.is_cuda and torch.cuda.is_current_stream_capturing():
        keys, values = (places.read(each, capacity) for each in (k_cache, v_cache))
        out, statistics = attend(q, keys, values, alibi=alibi_slopes, lengths=lengths + fresh, **given)
    else:
        out, statistics = attend_cached(q, k_cache, v_cache, places, lengths + fresh, alibi_slopes, **given)
    return out if statistics is None else (out, statistics)
