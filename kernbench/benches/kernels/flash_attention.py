"""Attention without the score matrix: online softmax forward, recomputing backward (FlashAttention-2's two passes).

Shapes are ``[batch, heads, length, head_dim]``, contiguous. Scores are kept in base 2 (``exp2``), so the scale carries
``log2(e)``. ``lse`` is ``log2(sum(exp2(score)))`` per query.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

LOG2E = math.log2(math.e)


@triton.jit
def _attend(
    acc, l_i, m_i, q, k_ptr, v_ptr, offs_m, offs_d, low, high, length, scale,
    BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Fold keys ``low..high`` into the running (accumulator, denominator, maximum) of one block of queries."""
    for start in range(low, high, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N)
        inside = offs_n[:, None] < length
        k = tl.load(k_ptr + offs_n[:, None] * HEAD_DIM + offs_d[None, :], mask=inside, other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale
        if MASKED:
            scores = tl.where(offs_m[:, None] >= offs_n[None, :], scores, -1.0e6)
        scores = tl.where(offs_n[None, :] < length, scores, -1.0e6)
        m_new = tl.maximum(m_i, tl.max(scores, 1))
        p = tl.math.exp2(scores - m_new[:, None])
        alpha = tl.math.exp2(m_i - m_new)
        l_i = l_i * alpha + tl.sum(p, 1)
        v = tl.load(v_ptr + offs_n[:, None] * HEAD_DIM + offs_d[None, :], mask=inside, other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
        m_i = m_new
    return acc, l_i, m_i


@triton.jit
def attention_forward_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, length, scale,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Grid (query blocks, batch * heads). Causal: full blocks left of the diagonal, then the diagonal's with a mask."""
    block = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    q_ptr += head * length * HEAD_DIM
    k_ptr += head * length * HEAD_DIM
    v_ptr += head * length * HEAD_DIM
    out_ptr += head * length * HEAD_DIM
    offs_m = block * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, HEAD_DIM)
    rows = offs_m[:, None] * HEAD_DIM + offs_d[None, :]
    q = tl.load(q_ptr + rows, mask=offs_m[:, None] < length, other=0.0)
    m_i = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    l_i = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], dtype=tl.float32)
    if CAUSAL:
        diagonal = block * BLOCK_M
        acc, l_i, m_i = _attend(
            acc, l_i, m_i, q, k_ptr, v_ptr, offs_m, offs_d, 0, diagonal, length, scale, BLOCK_N, HEAD_DIM, False
        )
        acc, l_i, m_i = _attend(
            acc, l_i, m_i, q, k_ptr, v_ptr, offs_m, offs_d, diagonal, min(diagonal + BLOCK_M, length), length, scale,
            BLOCK_N, HEAD_DIM, True,
        )  # fmt: skip
    else:
        acc, l_i, m_i = _attend(
            acc, l_i, m_i, q, k_ptr, v_ptr, offs_m, offs_d, 0, length, length, scale, BLOCK_N, HEAD_DIM, False
        )
    tl.store(lse_ptr + head * length + offs_m, m_i + tl.math.log2(l_i), mask=offs_m < length)
    tl.store(out_ptr + rows, (acc / l_i[:, None]).to(out_ptr.dtype.element_ty), mask=offs_m[:, None] < length)


@triton.jit
def attention_delta_kernel(out_ptr, dout_ptr, delta_ptr, rows, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr):
    """``delta[row] = sum(out[row] * dout[row])``: what the softmax's Jacobian subtracts."""
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    offsets = offs_m[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    out = tl.load(out_ptr + offsets, mask=offs_m[:, None] < rows, other=0.0).to(tl.float32)
    dout = tl.load(dout_ptr + offsets, mask=offs_m[:, None] < rows, other=0.0).to(tl.float32)
    tl.store(delta_ptr + offs_m, tl.sum(out * dout, axis=1), mask=offs_m < rows)


@triton.jit
def attention_backward_kernel(
    q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, delta_ptr, dq_ptr, dk_ptr, dv_ptr, length, scale, softmax_scale,
    HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Grid (blocks, batch * heads): each program makes ``dk, dv`` of its block of keys, then ``dq`` of its queries."""
    block = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    base = head * length * HEAD_DIM
    lse_ptr += head * length
    delta_ptr += head * length
    offs_d = tl.arange(0, HEAD_DIM)[None, :]
    own = block * BLOCK + tl.arange(0, BLOCK)
    own_mask = own[:, None] < length
    own_offsets = base + own[:, None] * HEAD_DIM + offs_d
    k = tl.load(k_ptr + own_offsets, mask=own_mask, other=0.0)
    v = tl.load(v_ptr + own_offsets, mask=own_mask, other=0.0)
    dk = tl.zeros([BLOCK, HEAD_DIM], dtype=tl.float32)
    dv = tl.zeros([BLOCK, HEAD_DIM], dtype=tl.float32)
    first = block * BLOCK if CAUSAL else 0
    for start in range(first, length, BLOCK):
        offs_m = start + tl.arange(0, BLOCK)
        mask = offs_m < length
        offsets = base + offs_m[:, None] * HEAD_DIM + offs_d
        q = tl.load(q_ptr + offsets, mask=mask[:, None], other=0.0)
        dout = tl.load(dout_ptr + offsets, mask=mask[:, None], other=0.0)
        lse = tl.load(lse_ptr + offs_m, mask=mask, other=float("inf"))
        delta = tl.load(delta_ptr + offs_m, mask=mask, other=0.0)
        p_t = tl.math.exp2(tl.dot(k, tl.trans(q)) * scale - lse[None, :])
        if CAUSAL:
            p_t = tl.where(offs_m[None, :] >= own[:, None], p_t, 0.0)
        dv += tl.dot(p_t.to(dout.dtype), dout)
        ds_t = p_t * (tl.dot(v, tl.trans(dout)) - delta[None, :])
        dk += tl.dot(ds_t.to(q.dtype), q)
    tl.store(dk_ptr + own_offsets, (dk * softmax_scale).to(dk_ptr.dtype.element_ty), mask=own_mask)
    tl.store(dv_ptr + own_offsets, dv.to(dv_ptr.dtype.element_ty), mask=own_mask)

    q = tl.load(q_ptr + own_offsets, mask=own_mask, other=0.0)
    dout = tl.load(dout_ptr + own_offsets, mask=own_mask, other=0.0)
    lse = tl.load(lse_ptr + own, mask=own < length, other=float("inf"))
    delta = tl.load(delta_ptr + own, mask=own < length, other=0.0)
    dq = tl.zeros([BLOCK, HEAD_DIM], dtype=tl.float32)
    last = min((block + 1) * BLOCK, length) if CAUSAL else length
    for start in range(0, last, BLOCK):
        offs_n = start + tl.arange(0, BLOCK)
        inside = offs_n[:, None] < length
        offsets = base + offs_n[:, None] * HEAD_DIM + offs_d
        k = tl.load(k_ptr + offsets, mask=inside, other=0.0)
        v = tl.load(v_ptr + offsets, mask=inside, other=0.0)
        p = tl.math.exp2(tl.dot(q, tl.trans(k)) * scale - lse[:, None])
        if CAUSAL:
            p = tl.where(own[:, None] >= offs_n[None, :], p, 0.0)
        p = tl.where(offs_n[None, :] < length, p, 0.0)
        ds = p * (tl.dot(dout, tl.trans(v)) - delta[:, None])
        dq += tl.dot(ds.to(k.dtype), k)
    tl.store(dq_ptr + own_offsets, (dq * softmax_scale).to(dq_ptr.dtype.element_ty), mask=own_mask)


class Attention(torch.autograd.Function):
    """Differentiable attention on ``[batch, heads, length, head_dim]``."""

    @staticmethod
    def forward(ctx, q, k, v, causal, block_m, block_n):
        batch, heads, length, head_dim = q.shape
        out = torch.empty_like(q)
        lse = torch.empty((batch, heads, length), dtype=torch.float32, device=q.device)
        softmax_scale = head_dim**-0.5
        attention_forward_kernel[(triton.cdiv(length, block_m), batch * heads)](
            q, k, v, out, lse, length, softmax_scale * LOG2E,
            HEAD_DIM=head_dim, BLOCK_M=block_m, BLOCK_N=block_n, CAUSAL=causal,
        )  # fmt: skip
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.causal, ctx.block, ctx.softmax_scale = causal, block_n, softmax_scale
        return out

    @staticmethod
    def backward(ctx, dout):
        q, k, v, out, lse = ctx.saved_tensors
        batch, heads, length, head_dim = q.shape
        dout = dout.contiguous()
        delta = torch.empty_like(lse)
        rows = batch * heads * length
        attention_delta_kernel[(triton.cdiv(rows, 64),)](out, dout, delta, rows, HEAD_DIM=head_dim, BLOCK_M=64)
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        attention_backward_kernel[(triton.cdiv(length, ctx.block), batch * heads)](
            q, k, v, dout, lse, delta, dq, dk, dv, length, ctx.softmax_scale * LOG2E, ctx.softmax_scale,
            HEAD_DIM=head_dim, BLOCK=ctx.block, CAUSAL=ctx.causal,
        )  # fmt: skip
        return dq, dk, dv, None, None, None


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    tile: tuple[int, int] = (64, 32),
) -> torch.Tensor:
    """Scaled dot-product attention; ``tile`` = (queries, keys) per step, the first a multiple of the second."""
    return Attention.apply(q, k, v, causal, *tile)
