"""Attention of one new token per sequence over a long cache of keys and values, split so that it fills the device.

Each program handles a *split* of the cache of one sequence and one key head, for all query heads that the key head serves,
and leaves a partial result with its log-sum-exp; a second kernel merges partial results (Dao et al., *Flash-Decoding*, 2023).
The same merge joins the results of ranks that hold different positions of the cache.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernbench.tp import comm
from kernbench.tp.comm import Group
from kernbench.tp.errors import PartitionError
from kernbench.tp.kernels.attention import LOG2E, MAX_HEAD_DIM
from kernbench.tp.kernels.target import ready, target_device

_BLOCK_KEYS = 64


@triton.jit
def decode_split_kernel(
    q_ptr, k_ptr, v_ptr, lengths_ptr, out_ptr, lse_ptr,
    stride_qb, stride_qh, stride_kb, stride_ks, stride_kh, stride_vb, stride_vs, stride_vh,
    key_heads, group, splits, split_length, scale,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (batch * key_heads, splits). Partial results ``[batch, heads, splits, head_dim]``, lse without the last."""
    batch = (tl.program_id(0) // key_heads).to(tl.int64)
    key_head = (tl.program_id(0) % key_heads).to(tl.int64)
    split = tl.program_id(1)
    members = tl.arange(0, BLOCK_G)
    columns = tl.arange(0, BLOCK_D)
    heads = key_head * group + members
    here = (members[:, None] < group) & (columns[None, :] < HEAD_DIM)
    q = tl.load(q_ptr + batch * stride_qb + heads[:, None] * stride_qh + columns[None, :], mask=here, other=0.0)
    k_base = k_ptr + batch * stride_kb + key_head * stride_kh
    v_base = v_ptr + batch * stride_vb + key_head * stride_vh
    low = split * split_length
    high = min(low + split_length, tl.load(lengths_ptr + batch))

    acc = tl.zeros([BLOCK_G, BLOCK_D], dtype=tl.float32)
    norm = tl.zeros([BLOCK_G], dtype=tl.float32)
    top = tl.full([BLOCK_G], float("-inf"), dtype=tl.float32)
    for start in range(low, high, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        inside = (keys[:, None] < high) & (columns[None, :] < HEAD_DIM)
        k = tl.load(k_base + keys.to(tl.int64)[:, None] * stride_ks + columns[None, :], mask=inside, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        scores = tl.where(keys[None, :] < high, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - new_top[:, None])
        rescale = tl.exp2(top - new_top)
        norm = norm * rescale + tl.sum(weights, 1)
        v = tl.load(v_base + keys.to(tl.int64)[:, None] * stride_vs + columns[None, :], mask=inside, other=0.0)
        acc = tl.dot(weights.to(v.dtype), v, acc * rescale[:, None], input_precision=PRECISION)
        top = new_top
    row = (batch * key_heads * group + heads) * splits + split
    empty = norm == 0.0
    tl.store(lse_ptr + row, tl.where(empty, float("-inf"), top + tl.log2(norm)), mask=members < group)
    tl.store(out_ptr + row[:, None] * HEAD_DIM + columns[None, :], acc / tl.where(empty, 1.0, norm)[:, None], mask=here)


@triton.jit
def merge_kernel(
    part_ptr, part_lse_ptr, out_ptr, lse_ptr, stride_row, stride_part, stride_lse_row, stride_lse_part, parts,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
    """One program per row: the softmax over all keys from softmaxes over disjoint parts of them."""
    row = tl.program_id(0).to(tl.int64)
    numbers = tl.arange(0, BLOCK_P)
    columns = tl.arange(0, BLOCK_D)
    lse = tl.load(
        part_lse_ptr + row * stride_lse_row + numbers * stride_lse_part, mask=numbers < parts, other=float("-inf")
    )
    top = tl.max(lse, 0)
    top = tl.where(top == float("-inf"), 0.0, top)  # no keys at all: the result is zero
    weights = tl.exp2(lse - top)
    norm = tl.sum(weights, 0)
    values = tl.load(
        part_ptr + row * stride_row + numbers[:, None] * stride_part + columns[None, :],
        mask=(numbers[:, None] < parts) & (columns[None, :] < HEAD_DIM),
        other=0.0,
    )
    merged = tl.sum(values * weights[:, None], 0) / tl.where(norm == 0.0, 1.0, norm)
    tl.store(lse_ptr + row, top + tl.log2(norm))
    tl.store(out_ptr + row * HEAD_DIM + columns, merged.to(out_ptr.dtype.element_ty), mask=columns < HEAD_DIM)


def merge_partial_softmax(
    partial: torch.Tensor, lse: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """``[rows, parts, d]`` with base-2 log-sum-exps ``[rows, parts]`` (fp32) -> ``[rows, d]`` in ``dtype`` and ``[rows]``."""
    rows, parts, head_dim = partial.shape
    out = partial.new_empty((rows, head_dim), dtype=dtype)
    merged_lse = lse.new_empty((rows,))
    ready(partial)
    merge_kernel[(rows,)](
        partial, lse, out, merged_lse, partial.stride(0), partial.stride(1), lse.stride(0), lse.stride(1), parts,
        HEAD_DIM=head_dim, BLOCK_D=triton.next_power_of_2(head_dim), BLOCK_P=max(2, triton.next_power_of_2(parts)),
    )  # fmt: skip
    return out, merged_lse


def _splits(sequences: int, length: int, pes: int) -> int:
    """Enough splits for one program per PE, none shorter than a block of keys."""
    return max(1, min(-(-pes // sequences), -(-length // _BLOCK_KEYS)))


def decode_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    lengths: torch.Tensor,
    *,
    scale: float | None = None,
    group: Group | None = None,
) -> torch.Tensor:
    """Attention of one query per sequence and head over the cache; with ``group``, over the caches of all its ranks.

    Args:
        q: ``[batch, heads, head_dim]``, equal on all ranks of the group.
        k_cache: ``[batch, capacity, key_heads, head_dim]``: this rank's positions, in any order.
        v_cache: as ``k_cache``.
        lengths: ``[batch]`` int32: how many positions of this rank's cache are filled, each at most ``capacity``.
        scale: default ``1 / sqrt(head_dim)``.
        group: ranks that share the sequences' positions; None: the cache is whole.

    Returns:
        ``[batch, heads, head_dim]``, equal on all ranks of the group.
    """
    shapes = ", ".join(
        f"{name} {tuple(tensor.shape)}"
        for name, tensor in (("q", q), ("k_cache", k_cache), ("v_cache", v_cache), ("lengths", lengths))
    )
    if (
        q.dim() != 3 or k_cache.dim() != 4 or k_cache.shape != v_cache.shape or q.size(0) != k_cache.size(0)
        or q.size(2) != k_cache.size(3) or q.size(1) % k_cache.size(2) or lengths.shape != q.shape[:1]
        or q.size(2) > MAX_HEAD_DIM
    ):  # fmt: skip
        raise PartitionError(
            "decode_attention: expected q [batch, heads, head_dim], caches [batch, capacity, key_heads, head_dim], "
            f"lengths [batch], heads a multiple of key_heads, head_dim at most {MAX_HEAD_DIM}; found {shapes}"
        )
    batch, heads, head_dim = q.shape
    capacity, key_heads = k_cache.shape[1:3]
    scale = head_dim**-0.5 if scale is None else scale
    splits = _splits(batch * key_heads, capacity, target_device(q).pes)
    split_length = -(-capacity // (splits * _BLOCK_KEYS)) * _BLOCK_KEYS
    partial = q.new_empty((batch * heads, splits, head_dim), dtype=torch.float32)
    lse = q.new_empty((batch * heads, splits), dtype=torch.float32)
    ready(q)
    decode_split_kernel[(batch * key_heads, splits)](
        q, k_cache, v_cache, lengths, partial, lse, *q.stride()[:2], *k_cache.stride()[:3], *v_cache.stride()[:3],
        key_heads, heads // key_heads, splits, split_length, scale * LOG2E,
        HEAD_DIM=head_dim, BLOCK_D=max(16, triton.next_power_of_2(head_dim)),
        BLOCK_G=max(16, triton.next_power_of_2(heads // key_heads)), BLOCK_N=_BLOCK_KEYS,
        PRECISION="tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee",
    )  # fmt: skip
    ranks = 1 if group is None else comm.group_size(group)
    out, lse = merge_partial_softmax(partial, lse, q.dtype if ranks == 1 else torch.float32)
    if ranks > 1:
        mine = torch.cat([out, lse.unsqueeze(1)], dim=1)
        every = mine.new_empty((ranks, *mine.shape))
        comm.all_gather_into_tensor(every.view(-1, mine.size(1)), mine, group=group)
        out, _ = merge_partial_softmax(every[..., :-1].transpose(0, 1), every[..., -1].transpose(0, 1), q.dtype)
    return out.view(batch, heads, head_dim)
