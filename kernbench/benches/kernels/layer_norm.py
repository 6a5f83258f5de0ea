"""Layer normalisation forward and backward.

The backward pass needs sums over rows (``dw``, ``db``). Programs add their row into one of a few shared partial sums
under a spin lock (``atomic_cas`` to take, ``atomic_xchg`` to release), then a second kernel adds the partial sums: the
classical test of whether an executor lets one program wait for another.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def layer_norm_forward_kernel(
    x_ptr, y_ptr, w_ptr, b_ptr, mean_ptr, rstd_ptr, row_stride, n_cols, eps, BLOCK: tl.constexpr
):
    """One program per row; the row is walked in ``BLOCK`` columns, three times (mean, variance, output)."""
    row = tl.program_id(0)
    x_ptr += row * row_stride
    y_ptr += row * row_stride
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, n_cols, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + columns, mask=columns < n_cols, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / n_cols
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, n_cols, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + columns, mask=columns < n_cols, other=0.0).to(tl.float32)
        centred = tl.where(columns < n_cols, x - mean, 0.0)
        squares += centred * centred
    rstd = 1 / tl.sqrt(tl.sum(squares, axis=0) / n_cols + eps)
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)
    for start in range(0, n_cols, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        mask = columns < n_cols
        w = tl.load(w_ptr + columns, mask=mask)
        b = tl.load(b_ptr + columns, mask=mask)
        x = tl.load(x_ptr + columns, mask=mask, other=0.0).to(tl.float32)
        tl.store(y_ptr + columns, (x - mean) * rstd * w + b, mask=mask)


@triton.jit
def layer_norm_backward_kernel(
    dx_ptr, dy_ptr, dw_part_ptr, db_part_ptr, x_ptr, w_ptr, mean_ptr, rstd_ptr, lock_ptr, row_stride, n_cols,
    GROUPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """``dx`` of one row, and its share of ``dw`` and ``db`` added to partial sum ``row % GROUPS`` under its lock.

    ``lock_ptr[0:GROUPS]`` are the locks, ``lock_ptr[GROUPS:]`` say whether a partial sum has been written yet.
    """
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < n_cols
    x = tl.load(x_ptr + row * row_stride + columns, mask=mask, other=0).to(tl.float32)
    dy = tl.load(dy_ptr + row * row_stride + columns, mask=mask, other=0).to(tl.float32)
    w = tl.load(w_ptr + columns, mask=mask).to(tl.float32)
    mean = tl.load(mean_ptr + row)
    rstd = tl.load(rstd_ptr + row)
    x_hat = tl.where(mask, (x - mean) * rstd, 0.0)
    wdy = tl.where(mask, w * dy, 0.0)
    c1 = tl.sum(x_hat * wdy, axis=0) / n_cols
    c2 = tl.sum(wdy, axis=0) / n_cols
    tl.store(dx_ptr + row * row_stride + columns, (wdy - (x_hat * c1 + c2)) * rstd, mask=mask)

    partial_dw = (dy * x_hat).to(w_ptr.dtype.element_ty)
    partial_db = dy.to(w_ptr.dtype.element_ty)
    group = row % GROUPS
    lock = lock_ptr + group
    written = lock_ptr + GROUPS + group
    dw_ptrs = dw_part_ptr + group * n_cols + columns
    db_ptrs = db_part_ptr + group * n_cols + columns
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    if tl.load(written) == 0:
        tl.atomic_xchg(written, 1)
    else:
        partial_dw += tl.load(dw_ptrs, mask=mask)
        partial_db += tl.load(db_ptrs, mask=mask)
    tl.store(dw_ptrs, partial_dw, mask=mask)
    tl.store(db_ptrs, partial_db, mask=mask)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@triton.jit
def layer_norm_reduce_kernel(
    dw_part_ptr, db_part_ptr, dw_ptr, db_ptr, n_parts, n_cols, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """Sum of the partial sums ``[n_parts, n_cols]`` over their rows."""
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    dw = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    db = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, n_parts, BLOCK_M):
        rows = start + tl.arange(0, BLOCK_M)
        mask = (rows[:, None] < n_parts) & (columns[None, :] < n_cols)
        offsets = rows[:, None] * n_cols + columns[None, :]
        dw += tl.load(dw_part_ptr + offsets, mask=mask, other=0.0)
        db += tl.load(db_part_ptr + offsets, mask=mask, other=0.0)
    tl.store(dw_ptr + columns, tl.sum(dw, axis=0), mask=columns < n_cols)
    tl.store(db_ptr + columns, tl.sum(db, axis=0), mask=columns < n_cols)


class LayerNorm(torch.autograd.Function):
    """Differentiable layer norm over the last axis of ``x[rows, columns]``."""

    @staticmethod
    def forward(ctx, x, weight, bias, eps=1e-5, block=256, groups=8):
        rows, columns = x.shape
        y = torch.empty_like(x)
        mean = torch.empty(rows, dtype=torch.float32, device=x.device)
        rstd = torch.empty_like(mean)
        layer_norm_forward_kernel[(rows,)](x, y, weight, bias, mean, rstd, x.stride(0), columns, eps, BLOCK=block)
        ctx.save_for_backward(x, weight, mean, rstd)
        ctx.groups = min(groups, rows)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, weight, mean, rstd = ctx.saved_tensors
        rows, columns = x.shape
        dx = torch.empty_like(x)
        dy = dy.contiguous()
        locks = torch.zeros(2 * ctx.groups, dtype=torch.int32, device=x.device)
        partial_dw = torch.zeros((ctx.groups, columns), dtype=weight.dtype, device=x.device)
        partial_db = torch.zeros_like(partial_dw)
        layer_norm_backward_kernel[(rows,)](
            dx, dy, partial_dw, partial_db, x, weight, mean, rstd, locks, x.stride(0), columns,
            GROUPS=ctx.groups, BLOCK=triton.next_power_of_2(columns),
        )  # fmt: skip
        dw, db = torch.empty_like(weight), torch.empty_like(weight)
        layer_norm_reduce_kernel[(triton.cdiv(columns, 64),)](
            partial_dw, partial_db, dw, db, ctx.groups, columns, BLOCK_M=16, BLOCK_N=64
        )
        return dx, dw, db, None, None, None


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    """Layer norm of ``x[rows, columns]``, differentiable in ``x``, ``weight`` and ``bias``."""
    return LayerNorm.apply(x, weight, bias, eps)
