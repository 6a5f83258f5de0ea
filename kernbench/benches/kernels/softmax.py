"""Row softmax in one pass over memory, two ways of giving rows to programs."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def softmax_row_kernel(x_ptr, out_ptr, x_stride, out_stride, n_cols, BLOCK: tl.constexpr):
    """One program per row."""
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < n_cols
    x = tl.load(x_ptr + row * x_stride + columns, mask=mask, other=-float("inf")).to(tl.float32)
    numerator = tl.exp(x - tl.max(x, axis=0))
    y = numerator / tl.sum(numerator, axis=0)
    tl.store(out_ptr + row * out_stride + columns, y, mask=mask)


@triton.jit
def softmax_persistent_kernel(
    x_ptr, out_ptr, x_stride, out_stride, n_rows, n_cols, BLOCK: tl.constexpr, STAGES: tl.constexpr
):
    """Fewer programs than rows: each strides over the rows, with software-pipelined loads."""
    for row in tl.range(tl.program_id(0), n_rows, tl.num_programs(0), num_stages=STAGES):
        columns = tl.arange(0, BLOCK)
        mask = columns < n_cols
        x = tl.load(x_ptr + row * x_stride + columns, mask=mask, other=-float("inf")).to(tl.float32)
        numerator = tl.exp(x - tl.max(x, axis=0))
        y = numerator / tl.sum(numerator, axis=0)
        tl.store(out_ptr + row * out_stride + columns, y, mask=mask)


def softmax(x: torch.Tensor, programs: int | None = None) -> torch.Tensor:
    """Softmax over the last axis of a matrix; ``programs`` chooses the persistent kernel with that many programs."""
    n_rows, n_cols = x.shape
    out = torch.empty_like(x)
    block = triton.next_power_of_2(n_cols)
    if programs is None:
        softmax_row_kernel[(n_rows,)](x, out, x.stride(0), out.stride(0), n_cols, BLOCK=block)
    else:
        softmax_persistent_kernel[(min(programs, n_rows),)](
            x, out, x.stride(0), out.stride(0), n_rows, n_cols, BLOCK=block, STAGES=2
        )
    return out
