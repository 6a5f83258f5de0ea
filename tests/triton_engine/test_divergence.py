"""Lanes that part and meet again, share addresses, and read what they overwrite: against plain Python."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl


@triton.jit
def nested_loops_kernel(x_ptr, out_ptr, N: tl.constexpr):
    """Trip counts and branches that differ between programs, at every level; programs along y write the same row."""
    pid = tl.program_id(0)
    i = tl.arange(0, N)
    acc = tl.zeros((N,), tl.float32)
    for a in range(pid % 3):
        j = 0
        while j < a + pid:
            v = tl.load(x_ptr + j * N + i)
            if (pid + j) % 2 == 0:
                acc += v
            j += 1
        if tl.sum(acc, 0) > 1e9:
            acc = acc * 0
    tl.store(out_ptr + pid * N + i, acc)


@pytest.mark.parametrize("grid", [(3,), (6, 4), (5, 2, 3)])
def test_nested_loops(grid):
    x = torch.randn(20, 16)
    out = torch.full((6, 16), -1.0)
    nested_loops_kernel[grid](x, out, N=16)
    expected = torch.full((6, 16), -1.0)
    for p in range(grid[0]):
        expected[p] = 0
        for a in range(p % 3):
            for j in range(a + p):
                if (p + j) % 2 == 0:
                    expected[p] += x[j]
    torch.testing.assert_close(out, expected)


@triton.jit
def swap_kernel(x_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.load(x_ptr + i), tl.load(x_ptr + N + i)
    tl.store(x_ptr + i, b)
    tl.store(x_ptr + N + i, a)


@triton.jit
def shift_kernel(x_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(x_ptr + 1 + i, tl.load(x_ptr + i))


def test_loads_are_taken_before_stores():
    x = torch.arange(32.0)
    swap_kernel[(1,)](x, N=16)
    assert x.tolist() == [*map(float, range(16, 32)), *map(float, range(16))]
    y = torch.arange(65.0)
    shift_kernel[(1,)](y, N=64)
    assert y[1:].tolist() == list(map(float, range(64)))


@triton.jit
def transpose_kernel(x_ptr, out_ptr, stride, n, m, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    j = tl.program_id(1) * B + tl.arange(0, B)
    mask = (i[:, None] < n) & (j[None, :] < m)
    tile = tl.load(x_ptr + i[:, None] + j[None, :] * stride, mask=mask, other=-1.0)
    tl.store(out_ptr + i[:, None] * m + j[None, :], tile, mask=mask)


@pytest.mark.parametrize(("n", "m"), [(50, 70), (33, 1), (32, 64), (1, 65)])
def test_tails_in_both_dimensions(n, m):
    x = torch.randn(m, n)
    out = torch.zeros(n, m)
    transpose_kernel[(triton.cdiv(n, 32), triton.cdiv(m, 32))](x, out, n, n, m, B=32)
    assert torch.equal(out, x.T)


@triton.jit
def last_wins_kernel(out_ptr):
    tl.store(out_ptr, tl.program_id(0))
    tl.store(out_ptr + 1 + tl.program_id(0) // 4, tl.program_id(0))


def test_of_programs_that_write_one_address_the_last_wins():
    out = torch.zeros(4, dtype=torch.int32)
    last_wins_kernel[(12,)](out)
    assert out.tolist() == [11, 3, 7, 11]
