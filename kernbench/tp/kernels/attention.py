"""Attention without the score matrix, forward and backward (Dao, *FlashAttention-2*, arXiv 2307.08691).

Shapes are ``[batch, heads, length, head_dim]`` with any strides but the last, which is 1. Keys and values may have fewer
heads: each serves ``heads / key_heads`` consecutive query heads (grouped queries). Any length and any head_dim up to 256.
Scores are kept in base 2, so the scale carries ``log2(e)``; ``lse[b, h, i] = log2(sum_j 2**score[i, j])``.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl

from kernbench.tp.errors import PartitionError
from kernbench.tp.kernels.target import ready

LOG2E = math.log2(math.e)
MAX_HEAD_DIM = 256


@triton.jit
def _rows(base, stride, rows, columns, limit, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """``[rows, BLOCK_D]`` of a matrix ``[limit, HEAD_DIM]`` with row ``stride``; zeros outside."""
    mask = rows[:, None] < limit
    if BLOCK_D != HEAD_DIM:
        mask = mask & (columns[None, :] < HEAD_DIM)
    return tl.load(base + rows[:, None] * stride + columns[None, :], mask=mask, other=0.0)


@triton.jit
def _put_rows(base, stride, rows, columns, limit, values, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """The store that belongs to :func:`_rows`."""
    mask = rows[:, None] < limit
    if BLOCK_D != HEAD_DIM:
        mask = mask & (columns[None, :] < HEAD_DIM)
    tl.store(base + rows[:, None] * stride + columns[None, :], values.to(base.dtype.element_ty), mask=mask)


@triton.jit
def _visible(queries, keys, len_k, shift, CAUSAL: tl.constexpr):
    """Which ``[queries, keys]`` pairs count. Causal: query i sees keys up to ``i + shift``."""
    mask = keys < len_k
    if CAUSAL:
        mask = mask & (keys <= queries + shift)
    return mask


@triton.jit
def _attend(
    acc, norm, top, q, k_base, v_base, stride_ks, stride_vs, queries, columns, low, high, len_k, shift, scale,
    BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Fold keys ``low .. high`` into the running (sum of values, sum of weights, maximum) of one block of queries."""
    for start in range(low, high, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        k = _rows(k_base, stride_ks, keys, columns, len_k, HEAD_DIM, BLOCK_D)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        if MASKED:
            scores = tl.where(_visible(queries[:, None], keys[None, :], len_k, shift, CAUSAL), scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - new_top[:, None])
        rescale = tl.exp2(top - new_top)
        norm = norm * rescale + tl.sum(weights, 1)
        v = _rows(v_base, stride_vs, keys, columns, len_k, HEAD_DIM, BLOCK_D)
        acc = tl.dot(weights.to(v.dtype), v, acc * rescale[:, None], input_precision=PRECISION)
        top = new_top
    return acc, norm, top


@triton.jit
def attention_forward_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr,
    stride_qb, stride_qh, stride_qs, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs,
    stride_ob, stride_oh, stride_os, heads, group, len_q, len_k, scale,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (blocks of queries, batch * heads): first the keys that every query of the block sees, then the others."""
    first = tl.program_id(0) * BLOCK_M
    batch = (tl.program_id(1) // heads).to(tl.int64)
    head = (tl.program_id(1) % heads).to(tl.int64)
    queries = first + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_D)
    q = _rows(q_ptr + batch * stride_qb + head * stride_qh, stride_qs, queries, columns, len_q, HEAD_DIM, BLOCK_D)
    k_base = k_ptr + batch * stride_kb + (head // group) * stride_kh
    v_base = v_ptr + batch * stride_vb + (head // group) * stride_vh
    shift = len_k - len_q
    whole = len_k
    last = len_k
    if CAUSAL:
        whole = min(len_k, first + 1 + shift)
        last = min(len_k, first + BLOCK_M + shift)
    whole = (whole // BLOCK_N) * BLOCK_N

    acc = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    norm = tl.zeros([BLOCK_M], dtype=tl.float32)
    top = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    acc, norm, top = _attend(
        acc, norm, top, q, k_base, v_base, stride_ks, stride_vs, queries, columns, 0, whole, len_k, shift, scale,
        BLOCK_N, HEAD_DIM, BLOCK_D, CAUSAL, False, PRECISION,
    )  # fmt: skip
    acc, norm, top = _attend(
        acc, norm, top, q, k_base, v_base, stride_ks, stride_vs, queries, columns, whole, last, len_k, shift, scale,
        BLOCK_N, HEAD_DIM, BLOCK_D, CAUSAL, True, PRECISION,
    )  # fmt: skip
    lse_row = lse_ptr + tl.program_id(1).to(tl.int64) * len_q
    tl.store(lse_row + queries, top + tl.log2(norm), mask=queries < len_q)
    out_base = out_ptr + batch * stride_ob + head * stride_oh
    _put_rows(out_base, stride_os, queries, columns, len_q, acc / norm[:, None], HEAD_DIM, BLOCK_D)


@triton.jit
def attention_backward_queries_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, dout_ptr, dq_ptr, lse_ptr, delta_ptr,
    stride_qb, stride_qh, stride_qs, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs,
    stride_ob, stride_oh, stride_os, stride_gb, stride_gh, stride_gs, stride_dqb, stride_dqh, stride_dqs,
    heads, group, len_q, len_k, scale, softmax_scale,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (blocks of queries, batch * heads): dQ, and ``delta = sum(out * dout)`` for the kernel below."""
    first = tl.program_id(0) * BLOCK_M
    batch = (tl.program_id(1) // heads).to(tl.int64)
    head = (tl.program_id(1) % heads).to(tl.int64)
    queries = first + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_D)
    q = _rows(q_ptr + batch * stride_qb + head * stride_qh, stride_qs, queries, columns, len_q, HEAD_DIM, BLOCK_D)
    out = _rows(out_ptr + batch * stride_ob + head * stride_oh, stride_os, queries, columns, len_q, HEAD_DIM, BLOCK_D)
    dout = _rows(dout_ptr + batch * stride_gb + head * stride_gh, stride_gs, queries, columns, len_q, HEAD_DIM, BLOCK_D)
    row = tl.program_id(1).to(tl.int64) * len_q
    lse = tl.load(lse_ptr + row + queries, mask=queries < len_q, other=0.0)
    delta = tl.sum(out.to(tl.float32) * dout.to(tl.float32), 1)
    tl.store(delta_ptr + row + queries, delta, mask=queries < len_q)
    k_base = k_ptr + batch * stride_kb + (head // group) * stride_kh
    v_base = v_ptr + batch * stride_vb + (head // group) * stride_vh
    shift = len_k - len_q
    last = len_k
    if CAUSAL:
        last = min(len_k, first + BLOCK_M + shift)
    dq = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    for start in range(0, last, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        k = _rows(k_base, stride_ks, keys, columns, len_k, HEAD_DIM, BLOCK_D)
        v = _rows(v_base, stride_vs, keys, columns, len_k, HEAD_DIM, BLOCK_D)
        weights = tl.exp2(tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale - lse[:, None])
        weights = tl.where(_visible(queries[:, None], keys[None, :], len_k, shift, CAUSAL), weights, 0.0)
        dscores = weights * (tl.dot(dout, tl.trans(v), input_precision=PRECISION) - delta[:, None])
        dq = tl.dot(dscores.to(k.dtype), k, dq, input_precision=PRECISION)
    dq_base = dq_ptr + batch * stride_dqb + head * stride_dqh
    _put_rows(dq_base, stride_dqs, queries, columns, len_q, dq * softmax_scale, HEAD_DIM, BLOCK_D)


@triton.jit
def attention_backward_keys_kernel(
    q_ptr, k_ptr, v_ptr, dout_ptr, dk_ptr, dv_ptr, lse_ptr, delta_ptr,
    stride_qb, stride_qh, stride_qs, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs,
    stride_gb, stride_gh, stride_gs, stride_dkb, stride_dkh, stride_dks, stride_dvb, stride_dvh, stride_dvs,
    key_heads, group, len_q, len_k, scale, softmax_scale,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (blocks of keys, batch * key heads): dK and dV, summed over the query heads that a key head serves."""
    first = tl.program_id(0) * BLOCK_N
    batch = (tl.program_id(1) // key_heads).to(tl.int64)
    key_head = (tl.program_id(1) % key_heads).to(tl.int64)
    keys = first + tl.arange(0, BLOCK_N)
    columns = tl.arange(0, BLOCK_D)
    k = _rows(k_ptr + batch * stride_kb + key_head * stride_kh, stride_ks, keys, columns, len_k, HEAD_DIM, BLOCK_D)
    v = _rows(v_ptr + batch * stride_vb + key_head * stride_vh, stride_vs, keys, columns, len_k, HEAD_DIM, BLOCK_D)
    shift = len_k - len_q
    begin = 0
    if CAUSAL:
        begin = (max(first - shift, 0) // BLOCK_M) * BLOCK_M
    dk = tl.zeros([BLOCK_N, BLOCK_D], dtype=tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_D], dtype=tl.float32)
    for member in range(group):
        head = key_head * group + member
        q_base = q_ptr + batch * stride_qb + head * stride_qh
        dout_base = dout_ptr + batch * stride_gb + head * stride_gh
        row = (batch * key_heads * group + head) * len_q
        for start in range(begin, len_q, BLOCK_M):
            queries = start + tl.arange(0, BLOCK_M)
            q = _rows(q_base, stride_qs, queries, columns, len_q, HEAD_DIM, BLOCK_D)
            dout = _rows(dout_base, stride_gs, queries, columns, len_q, HEAD_DIM, BLOCK_D)
            lse = tl.load(lse_ptr + row + queries, mask=queries < len_q, other=float("inf"))
            delta = tl.load(delta_ptr + row + queries, mask=queries < len_q, other=0.0)
            weights = tl.exp2(tl.dot(k, tl.trans(q), input_precision=PRECISION) * scale - lse[None, :])
            if CAUSAL:
                weights = tl.where(keys[:, None] <= queries[None, :] + shift, weights, 0.0)
            dv = tl.dot(weights.to(dout.dtype), dout, dv, input_precision=PRECISION)
            dscores = weights * (tl.dot(v, tl.trans(dout), input_precision=PRECISION) - delta[None, :])
            dk = tl.dot(dscores.to(q.dtype), q, dk, input_precision=PRECISION)
    dk_base = dk_ptr + batch * stride_dkb + key_head * stride_dkh
    dv_base = dv_ptr + batch * stride_dvb + key_head * stride_dvh
    _put_rows(dk_base, stride_dks, keys, columns, len_k, dk * softmax_scale, HEAD_DIM, BLOCK_D)
    _put_rows(dv_base, stride_dvs, keys, columns, len_k, dv, HEAD_DIM, BLOCK_D)


# -- launching -------------------------------------------------------------------------------------------------------


def _block(length: int, head_dim: int) -> int:
    """Queries or keys of one program: 64, fewer for a short sequence or a wide head (registers)."""
    most = 64 if head_dim <= 128 else 32
    return min(most, max(16, triton.next_power_of_2(length)))


def _options(q: torch.Tensor, k: torch.Tensor, causal: bool) -> dict[str, Any]:
    head_dim = q.size(-1)
    return {
        "HEAD_DIM": head_dim,
        "BLOCK_D": max(16, triton.next_power_of_2(head_dim)),
        "BLOCK_M": _block(q.size(2), head_dim),
        "BLOCK_N": _block(k.size(2), head_dim),
        "CAUSAL": causal,
        "PRECISION": "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee",
    }


def _sequence_first(like: torch.Tensor) -> torch.Tensor:
    """Fresh memory for ``[b, h, s, d]``, laid out ``[s, b, h, d]`` as the layers around it want it."""
    batch, heads, length, head_dim = like.shape
    return like.new_empty((length, batch, heads, head_dim)).permute(1, 2, 0, 3)


def _forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    batch, heads, len_q, _ = q.shape
    out = _sequence_first(q)
    lse = q.new_empty((batch, heads, len_q), dtype=torch.float32)
    options = _options(q, k, causal)
    ready(q)
    attention_forward_kernel[(triton.cdiv(len_q, options["BLOCK_M"]), batch * heads)](
        q, k, v, out, lse, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3],
        heads, heads // k.size(1), len_q, k.size(2), scale * LOG2E, **options,
    )  # fmt: skip
    return out, lse


class _FlashAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float
    ) -> torch.Tensor:
        out, lse = _forward(q, k, v, causal, scale)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.causal, ctx.scale = causal, scale
        return out

    @staticmethod
    def backward(ctx: Any, dout: torch.Tensor) -> Any:
        q, k, v, out, lse = ctx.saved_tensors
        dout = dout if dout.stride(-1) == 1 else dout.contiguous()
        batch, heads, len_q, _ = q.shape
        key_heads, len_k = k.size(1), k.size(2)
        dq, dk, dv = _sequence_first(q), _sequence_first(k), _sequence_first(v)
        delta = torch.empty_like(lse)
        options = _options(q, k, ctx.causal)
        tail = (heads // key_heads, len_q, len_k, ctx.scale * LOG2E, ctx.scale)
        ready(q)
        attention_backward_queries_kernel[(triton.cdiv(len_q, options["BLOCK_M"]), batch * heads)](
            q, k, v, out, dout, dq, lse, delta, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3],
            *dout.stride()[:3], *dq.stride()[:3], heads, *tail, **options,
        )  # fmt: skip
        attention_backward_keys_kernel[(triton.cdiv(len_k, options["BLOCK_N"]), batch * key_heads)](
            q, k, v, dout, dk, dv, lse, delta, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *dout.stride()[:3],
            *dk.stride()[:3], *dv.stride()[:3], key_heads, *tail, **options,
        )  # fmt: skip
        return dq, dk, dv, None, None


def flash_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, scale: float | None = None
) -> torch.Tensor:
    """``softmax(scale * q k^T) v``, differentiable.

    Args:
        q: ``[batch, heads, len_q, head_dim]``, fp32, fp16 or bf16.
        k: ``[batch, key_heads, len_k, head_dim]``; ``heads`` is a multiple of ``key_heads``.
        v: as ``k``.
        causal: query i sees keys up to ``i + len_k - len_q`` (the last query sees all).
        scale: default ``1 / sqrt(head_dim)``.

    Returns:
        ``[batch, heads, len_q, head_dim]``, laid out with the sequence first.
    """
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if q.dim() != 4 or k.shape != v.shape or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise PartitionError(f"flash_attention: expected [batch, heads, length, head_dim] that fit, found {shapes}")
    if q.size(1) % k.size(1) or q.size(3) > MAX_HEAD_DIM or (causal and k.size(2) < q.size(2)):
        raise PartitionError(
            f"flash_attention: heads must be a multiple of key heads, head_dim at most {MAX_HEAD_DIM} and, when causal, "
            f"keys as many as queries or more; found {shapes}"
        )
    q, k, v = (tensor if tensor.stride(-1) == 1 else tensor.contiguous() for tensor in (q, k, v))
    scale = q.size(-1) ** -0.5 if scale is None else scale
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        result: torch.Tensor = _FlashAttention.apply(q, k, v, causal, scale)
        return result
    return _forward(q, k, v, causal, scale)[0]
