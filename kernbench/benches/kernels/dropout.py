"""Dropout whose mask is never stored: a counter-based generator (Philox 4x32-10) makes it again from the seed."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def dropout_kernel(x_ptr, out_ptr, n, p, seed, BLOCK: tl.constexpr):
    """``out = x / (1 - p)`` where ``rand(seed, index) > p``, else zero."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    keep = tl.rand(seed, offsets) > p
    tl.store(out_ptr + offsets, tl.where(keep, x / (1 - p), 0.0), mask=mask)


@triton.jit
def random_kernel(uniform_ptr, normal_ptr, integer_ptr, four_ptr, n, seed, BLOCK: tl.constexpr):
    """Every generator of the language on one counter."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(uniform_ptr + offsets, tl.rand(seed, offsets), mask=mask)
    tl.store(normal_ptr + offsets, tl.randn(seed, offsets), mask=mask)
    tl.store(integer_ptr + offsets, tl.randint(seed, offsets), mask=mask)
    a, b, c, d = tl.randint4x(seed, offsets)
    tl.store(four_ptr + 0 * n + offsets, a, mask=mask)
    tl.store(four_ptr + 1 * n + offsets, b, mask=mask)
    tl.store(four_ptr + 2 * n + offsets, c, mask=mask)
    tl.store(four_ptr + 3 * n + offsets, d, mask=mask)


def dropout(x: torch.Tensor, p: float, seed: int, block: int = 512) -> torch.Tensor:
    """Dropout with probability ``p``; the same seed gives the same mask on every machine."""
    out = torch.empty_like(x)
    dropout_kernel[(triton.cdiv(x.numel(), block),)](x, out, x.numel(), p, seed, BLOCK=block)
    return out


def random_streams(
    n: int, seed: int, block: int = 128
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """``n`` uniform [0, 1), normal, int32 draws, and the four words of each Philox block as int32 ``[4, n]``."""
    uniform, normal = torch.empty(n), torch.empty(n)
    integer, four = torch.empty(n, dtype=torch.int32), torch.empty((4, n), dtype=torch.int32)
    random_kernel[(triton.cdiv(n, block),)](uniform, normal, integer, four, n, seed, BLOCK=block)
    return uniform, normal, integer, four
