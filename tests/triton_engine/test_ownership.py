"""Memory is computed over when it has no other reader: not where a value has another name."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

N = 64


@triton.jit
def chosen_kernel(x_ptr, kept_ptr, next_ptr, n, BLOCK: tl.constexpr):
    """The mask holds everywhere, so ``kept`` is ``doubled``, which dies before it."""
    offsets = tl.arange(0, BLOCK)
    doubled = tl.load(x_ptr + offsets) * 2.0
    kept = tl.where(offsets < n, doubled, 0.0)
    after = doubled + 1.0
    tl.store(kept_ptr + offsets, kept * 4.0)
    tl.store(next_ptr + offsets, after)


@triton.jit
def viewed_kernel(x_ptr, kept_ptr, next_ptr, n, BLOCK: tl.constexpr):
    """``kept`` are the bits of ``doubled``."""
    offsets = tl.arange(0, BLOCK)
    doubled = tl.load(x_ptr + offsets) * 2.0
    kept = doubled.to(tl.int32, bitcast=True)
    after = doubled + 1.0
    tl.store(kept_ptr + offsets, (kept ^ 0).to(tl.float32, bitcast=True) * 4.0)
    tl.store(next_ptr + offsets, after)


@pytest.mark.parametrize("kernel", [chosen_kernel, viewed_kernel])
def test_a_value_with_another_name_is_not_computed_over(kernel) -> None:
    x = torch.arange(N, dtype=torch.float32)
    kept, after = torch.empty(N), torch.empty(N)
    kernel[(1,)](x, kept, after, N, BLOCK=N)
    assert torch.equal(kept, x * 8)
    assert torch.equal(after, x * 2 + 1)
