"""The functions of FlashAttention 3's ``flash_attn_interface``, which is also a module of its own, with their arguments.

How work is split over a GPU (``num_splits``, ``pack_gqa``, ``sm_margin``, ``scheduler_metadata``) is taken and changes nothing.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

from kernbench.stand_ins.attention.caches import Places
from kernbench.stand_ins.attention.definition import Tensor, Window, attend

_NO_WINDOW = (-1, -1)

importlib.import_module("flash_attn_3._C")  # not when one is called, which Dynamo would have to trace


def _kernel(name: str, *args: Any) -> Any:
    """Call an operator that is one kernel to the simulation (``kernbench.compiled_operators.flash_attn``)."""
    with torch.no_grad():
        return getattr(torch.ops.flash_attn_3, name)(*args)


def _learns(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(each.requires_grad for each in tensors)


def _refuse(name: str, **given: object) -> None:
    """What has no definition here."""
    for what, value in given.items():
        if isinstance(value, torch.Tensor) or value:
            raise NotImplementedError(f"the stand-in for {name} has no {what}")


def _scales(q: Tensor, k: Tensor, sequences: int, given: tuple[Tensor | None, ...]) -> list[Tensor]:
    """Of operands in eight bits: one for all where none is given. Of others: none."""
    if q.dtype.itemsize > 1 and all(each is None for each in given):
        return []
    one = torch.ones(sequences, k.shape[-2], dtype=torch.float32, device=q.device)
    return [one if each is None else each for each in given]


def _refuse_to_learn(name: str, scales: list[Tensor]) -> None:
    if scales:
        raise NotImplementedError(f"{name} has no gradient of operands in eight bits")


def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None = None, causal: bool = False, qv: Tensor | None = None,
    q_descale: Tensor | None = None, k_descale: Tensor | None = None, v_descale: Tensor | None = None,
    window_size: Window = _NO_WINDOW, attention_chunk: int = 0, softcap: float = 0.0, num_splits: int = 1,
    pack_gqa: bool | None = None, deterministic: bool = False, sm_margin: int = 0, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """Attention of ``q`` ``[batch, queries, heads, size]`` over ``k``, ``v`` ``[batch, keys, heads, size]``: one kernel, or
    with gradients torch's operations.

    Of operands in eight bits with a scale for each sequence and head of the keys the result is in bf16, and the shares of the
    keys are not rounded.
    """
    _refuse("flash_attn_func", qv=qv, attention_chunk=attention_chunk)
    scales = _scales(q, k, len(q), (q_descale, k_descale, v_descale))
    if not _learns(q, k, v):
        lengths = torch.full((len(q),), k.shape[1], dtype=torch.int32, device=q.device)
        out, sums = _kernel(
            "cached", q, k, v, lengths, None, None, 0, scales, _scale(q, softmax_scale), causal, *window_size, softcap,
            return_attn_probs,
        )  # fmt: skip
    else:
        _refuse_to_learn("flash_attn_func", scales)
        out, sums = attend(
            q,
            k,
            v,
            scale=softmax_scale,
            causal=causal,
            window=window_size,
            softcap=softcap,
            statistics=return_attn_probs,
        )
    return (out, sums) if return_attn_probs else out


def _scale(q: Tensor, scale: float | None) -> float:
    return float(q.shape[-1] ** -0.5) if scale is None else scale


def flash_attn_qkvpacked_func(
    qkv: Tensor, softmax_scale: float | None = None, causal: bool = False, q_descale: Tensor | None = None,
    k_descale: Tensor | None = None, v_descale: Tensor | None = None, window_size: Window = _NO_WINDOW,
    attention_chunk: int = 0, softcap: float = 0.0, deterministic: bool = False, num_heads_q: int | None = None,
    sm_margin: int = 0, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """The same of ``[batch, length, 3, heads, size]``; or of ``[batch, length, heads of all three, size]``, of which
    ``num_heads_q`` are the queries'."""
    if qkv.dim() == 5:
        q, k, v = qkv.unbind(2)
    else:
        if num_heads_q is None:
            raise ValueError("flash_attn_qkvpacked_func: of [batch, length, heads, size] num_heads_q is wanted")
        rest = (qkv.shape[2] - num_heads_q) // 2
        q, k, v = qkv.split([num_heads_q, rest, rest], dim=2)
    return flash_attn_func(
        q, k, v, softmax_scale, causal, None, q_descale, k_descale, v_descale, window_size, attention_chunk, softcap,
        deterministic=deterministic, sm_margin=sm_margin, return_attn_probs=return_attn_probs,
    )  # fmt: skip


def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    seqused_q: Tensor | None = None, seqused_k: Tensor | None = None, softmax_scale: float | None = None,
    causal: bool = False, qv: Tensor | None = None, q_descale: Tensor | None = None, k_descale: Tensor | None = None,
    v_descale: Tensor | None = None, window_size: Window = _NO_WINDOW, attention_chunk: int = 0, softcap: float = 0.0,
    num_splits: int = 1, pack_gqa: bool | None = None, deterministic: bool = False, sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """Attention of sequences that lie one after the other: ``q`` ``[all queries, heads, size]``, keys likewise.

    It is one kernel, and with gradients another one.
    """
    _refuse("flash_attn_varlen_func", qv=qv, attention_chunk=attention_chunk, seqused_q=seqused_q)
    scales = _scales(q, k, len(cu_seqlens_q) - 1, (q_descale, k_descale, v_descale))
    learns = _learns(q, k, v)
    if learns:
        _refuse_to_learn("flash_attn_varlen_func", scales)
    out, sums = torch.ops.flash_attn_3.packed(
        q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_k, None, scales, _scale(q, softmax_scale), causal, *window_size, softcap,
        learns or return_attn_probs,
    )  # fmt: skip
    return (out, sums) if return_attn_probs else out


def flash_attn_combine(
    out_partial: Tensor, lse_partial: Tensor, out: Tensor | None = None, out_dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """Attention over all keys, of that over parts of them, ``[parts, batch, queries, heads, size]`` and ``[parts, batch,
    queries, heads]``, both in float32."""
    whole, sums = _kernel("combined", out_partial, lse_partial, out_dtype or torch.float32)
    return (whole if out is None else out.copy_(whole)), sums


def flash_attn_with_kvcache(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None = None, v: Tensor | None = None,
    qv: Tensor | None = None, rotary_cos: Tensor | None = None, rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None, cache_batch_idx: Tensor | None = None, cache_leftpad: Tensor | None = None,
    page_table: Tensor | None = None, cu_seqlens_q: Tensor | None = None, cu_seqlens_k_new: Tensor | None = None,
    max_seqlen_q: int | None = None, rotary_seqlens: Tensor | None = None, q_descale: Tensor | None = None,
    k_descale: Tensor | None = None, v_descale: Tensor | None = None, softmax_scale: float | None = None,
    causal: bool = False, window_size: Window = _NO_WINDOW, attention_chunk: int = 0, softcap: float = 0.0,
    rotary_interleaved: bool = True, scheduler_metadata: Tensor | None = None, num_splits: int = 0,
    pack_gqa: bool | None = None, sm_margin: int = 0, return_softmax_lse: bool = False,
) -> Any:  # fmt: skip
    """Attention over a cache, to which ``k`` and ``v`` are added first, in place: one kernel, beside what adds to the cache.

    Args:
        q: ``[batch, queries, heads, size]``; with ``cu_seqlens_q`` ``[all queries, heads, size]``.
        k_cache, v_cache: ``[batch, capacity, heads, size]``; with a ``page_table`` ``[batch, pages of each]``, pages.
    """
    _refuse(
        "flash_attn_with_kvcache", qv=qv, rotary_cos=rotary_cos, cache_leftpad=cache_leftpad,
        cu_seqlens_k_new=cu_seqlens_k_new, attention_chunk=attention_chunk,
    )  # fmt: skip
    sequences = len(q) if cu_seqlens_q is None else len(cu_seqlens_q) - 1
    fresh = 0 if k is None else k.shape[1]
    lengths = cache_seqlens
    if lengths is None:
        lengths = k_cache.shape[1] * (1 if page_table is None else page_table.shape[1]) - fresh
    if not isinstance(lengths, torch.Tensor):
        lengths = torch.full((sequences,), lengths, dtype=torch.int32, device=q.device)
    places = Places(cache_batch_idx, page_table, k_cache.shape[1])
    if k is not None and v is not None:
        places.write(k_cache, k, lengths)
        places.write(v_cache, v, lengths)
    scales = _scales(q, k_cache, sequences, (q_descale, k_descale, v_descale))
    how = (scales, _scale(q, softmax_scale), causal, *window_size, softcap, return_softmax_lse)
    if cu_seqlens_q is None:
        out, sums = _kernel("cached", q, k_cache, v_cache, lengths, cache_batch_idx, page_table, fresh, *how)
    else:
        if page_table is None:  # each sequence's row is its one page
            rows = torch.arange(sequences, device=q.device) if cache_batch_idx is None else cache_batch_idx
            page_table = rows[:, None]
        out, sums = _kernel(
            "packed", q, k_cache, v_cache, cu_seqlens_q, None, lengths + fresh if fresh else lengths, page_table, *how
        )
    parts = q.new_empty(0, dtype=torch.float32)  # of keys that are split, which they are not
    return (out, sums, parts, parts) if return_softmax_lse else out


def get_scheduler_metadata(
    batch_size: int, max_seqlen_q: int, max_seqlen_k: int, num_heads_q: int, num_heads_kv: int, headdim: int,
    cache_seqlens: Tensor, qkv_dtype: torch.dtype = torch.bfloat16, headdim_v: int | None = None,
    cu_seqlens_q: Tensor | None = None, cu_seqlens_k_new: Tensor | None = None, cache_leftpad: Tensor | None = None,
    page_size: int | None = None, max_seqlen_k_new: int = 0, causal: bool = False, window_size: Window = _NO_WINDOW,
    attention_chunk: int = 0, has_softcap: bool = False, num_splits: int = 0, pack_gqa: bool | None = None,
    sm_margin: int = 0,
) -> Tensor:  # fmt: skip
    """How the kernel is to split its work: numbers that mean nothing here."""
    found: Tensor = _kernel("plan", cache_seqlens)
    return found
