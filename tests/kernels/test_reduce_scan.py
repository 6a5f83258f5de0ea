"""Reductions and scans: built in and with the user's own combine function, over one and several operands."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
import triton
import triton.language as tl


@triton.jit
def reduce_kernel(
    x_ptr, sum_ptr, max_ptr, min_ptr, argmax_ptr, argmin_ptr, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr
):
    rows, columns = tl.arange(0, M), tl.arange(0, N)
    x = tl.load(x_ptr + rows[:, None] * N + columns[None, :])
    out = columns if AXIS == 0 else rows
    tl.store(sum_ptr + out, tl.sum(x, axis=AXIS))
    tl.store(max_ptr + out, tl.max(x, axis=AXIS))
    tl.store(min_ptr + out, tl.min(x, axis=AXIS))
    tl.store(argmax_ptr + out, tl.argmax(x, axis=AXIS))
    tl.store(argmin_ptr + out, tl.argmin(x, axis=AXIS))


@pytest.mark.parametrize("dtype", ["float32", "int32", "int64", "uint32", "int8", "float16"])
@pytest.mark.parametrize("axis", [0, 1])
def test_reductions(rng, dtype, axis):
    # few different values: ties must go to the lowest index
    x = rng.integers(0 if dtype.startswith("u") else -4, 5, (16, 32)).astype(dtype)
    n = x.shape[1 - axis]
    kind = getattr(torch, dtype)
    total, largest, smallest = (torch.zeros(n, dtype=torch.int64 if dtype == "int8" else kind) for _ in range(3))
    argmax, argmin = (torch.zeros(n, dtype=torch.int32) for _ in range(2))
    reduce_kernel[(1,)](torch.from_numpy(x), total, largest, smallest, argmax, argmin, M=16, N=32, AXIS=axis)
    np.testing.assert_array_equal(total.numpy(), x.sum(axis, dtype=total.numpy().dtype))
    np.testing.assert_array_equal(largest.numpy(), x.max(axis))
    np.testing.assert_array_equal(smallest.numpy(), x.min(axis))
    np.testing.assert_array_equal(argmax.numpy(), x.argmax(axis))
    np.testing.assert_array_equal(argmin.numpy(), x.argmin(axis))


@triton.jit
def full_reduce_kernel(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    offsets = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + offsets)
    tl.store(out_ptr, tl.sum(x))
    tl.store(out_ptr + 1, tl.max(x))
    tl.store(out_ptr + 2, tl.xor_sum(x, axis=None))
    tl.store(out_ptr + 3, tl.sum(tl.sum(x, axis=0, keep_dims=True)))
    tl.store(out_ptr + 4, tl.sum(x - tl.max(x, axis=1, keep_dims=True)))
    tl.store(out_ptr + 5, tl.reduce_or(x, axis=1).to(tl.int64).sum(0))


def test_reductions_over_everything_and_kept_dimensions(rng):
    x = rng.integers(-1000, 1000, (8, 16))
    out = torch.zeros(6, dtype=torch.int64)
    full_reduce_kernel[(1,)](torch.from_numpy(x), out, M=8, N=16)
    expected = [
        x.sum(), x.max(), np.bitwise_xor.reduce(x, axis=None), x.sum(), (x - x.max(1, keepdims=True)).sum(),
        np.bitwise_or.reduce(x, axis=1).sum(),
    ]  # fmt: skip
    assert out.tolist() == expected


@triton.jit
def nan_reduce_kernel(x_ptr, out_ptr, index_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + tl.program_id(0) * N + i)
    value, index = tl.max(x, axis=0, return_indices=True)
    tl.store(out_ptr + tl.program_id(0) * 2, value)
    tl.store(index_ptr + tl.program_id(0) * 2, index)
    value, index = tl.min(x, axis=0, return_indices=True, return_indices_tie_break_left=False)
    tl.store(out_ptr + tl.program_id(0) * 2 + 1, value)
    tl.store(index_ptr + tl.program_id(0) * 2 + 1, index)


def test_max_with_indices():
    x = torch.randn(6, 32)
    out, index = torch.zeros(6, 2), torch.zeros(6, 2, dtype=torch.int32)
    nan_reduce_kernel[(6,)](x, out, index, N=32)
    assert torch.equal(out, torch.stack([x.max(1).values, x.min(1).values], 1))
    assert torch.equal(index.long(), torch.stack([x.argmax(1), x.argmin(1)], 1))


@triton.jit
def _welford(mean_a, m2_a, count_a, mean_b, m2_b, count_b):
    delta = mean_b - mean_a
    count = count_a + count_b
    ratio = tl.where(count == 0.0, 0.0, count_b / count)
    return mean_a + delta * ratio, m2_a + m2_b + delta * delta * count_a * ratio, count


@triton.jit
def welford_kernel(x_ptr, mean_ptr, variance_ptr, n, N: tl.constexpr):
    row, columns = tl.program_id(0), tl.arange(0, N)
    mask = columns < n
    x = tl.load(x_ptr + row * n + columns, mask=mask, other=0.0)
    mean, m2, count = tl.reduce((x, tl.zeros_like(x), mask.to(tl.float32)), 0, _welford)
    tl.store(mean_ptr + row, mean)
    tl.store(variance_ptr + row, m2 / count)


def test_reduce_with_three_operands_and_the_users_combine():
    x = torch.randn(5, 50) * 3 + 100
    mean, variance = torch.zeros(5), torch.zeros(5)
    welford_kernel[(5,)](x, mean, variance, 50, N=64)
    torch.testing.assert_close(mean, x.double().mean(1).float())
    torch.testing.assert_close(variance, x.double().var(1, unbiased=False).float(), rtol=1e-4, atol=1e-4)


@triton.jit
def _product(a, b):
    return a * b


@triton.jit
def _first_nonzero(a, b):
    return tl.where(a != 0, a, b)


@triton.jit
def custom_reduce_kernel(x_ptr, product_ptr, first_ptr, M: tl.constexpr, N: tl.constexpr):
    rows, columns = tl.arange(0, M), tl.arange(0, N)
    x = tl.load(x_ptr + rows[:, None] * N + columns[None, :])
    tl.store(product_ptr + rows, tl.reduce(x, 1, _product))
    tl.store(first_ptr + columns, tl.reduce(x, 0, _first_nonzero))


def test_reduce_in_order(rng):
    """Combine functions are associative, not commutative: the order along the axis must be kept."""
    x = rng.integers(-3, 4, (16, 8)) * rng.integers(0, 2, (16, 8))
    product, first = torch.zeros(16, dtype=torch.int64), torch.zeros(8, dtype=torch.int64)
    custom_reduce_kernel[(1,)](torch.from_numpy(x), product, first, M=16, N=8)
    np.testing.assert_array_equal(product.numpy(), x.prod(1))
    assert first.tolist() == [next((v for v in column if v), 0) for column in x.T]


@triton.jit
def cum_kernel(
    x_ptr, sum_ptr, product_ptr, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr, REVERSE: tl.constexpr
):
    offsets = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + offsets)
    tl.store(sum_ptr + offsets, tl.cumsum(x, AXIS, reverse=REVERSE))
    tl.store(product_ptr + offsets, tl.cumprod(x, AXIS, reverse=REVERSE))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("reverse", [False, True])
def test_cumulative_sum_and_product(rng, axis, reverse):
    x = rng.integers(-2, 3, (8, 16))
    total, product = torch.zeros((8, 16), dtype=torch.int64), torch.zeros((8, 16), dtype=torch.int64)
    cum_kernel[(1,)](torch.from_numpy(x), total, product, M=8, N=16, AXIS=axis, REVERSE=reverse)
    flip = (lambda v: np.flip(v, axis)) if reverse else (lambda v: v)
    np.testing.assert_array_equal(total.numpy(), flip(flip(x).cumsum(axis)))
    np.testing.assert_array_equal(product.numpy(), flip(flip(x).cumprod(axis)))


@triton.jit
def _linear_recurrence(a1, b1, a2, b2):
    return a1 * a2, b1 * a2 + b2


@triton.jit
def scan_kernel(a_ptr, b_ptr, h_ptr, N: tl.constexpr):
    """``h[t] = a[t] * h[t - 1] + b[t]`` as an associative scan of pairs."""
    i = tl.program_id(0) * N + tl.arange(0, N)
    _, h = tl.associative_scan((tl.load(a_ptr + i), tl.load(b_ptr + i)), 0, _linear_recurrence)
    tl.store(h_ptr + i, h)


@pytest.mark.parametrize("n", [1, 2, 16, 128])
def test_scan_of_pairs(n):
    a, b = torch.rand(3, n, dtype=torch.float64), torch.randn(3, n, dtype=torch.float64)
    h = torch.zeros_like(a)
    scan_kernel[(3,)](a, b, h, N=n)
    expected, state = torch.zeros_like(a), torch.zeros(3, dtype=torch.float64)
    for t in range(n):
        state = a[:, t] * state + b[:, t]
        expected[:, t] = state
    torch.testing.assert_close(h, expected)


@triton.jit
def _sum_before_last(sum_a, last_a, sum_b, last_b):
    return sum_a + last_a + sum_b, last_b


@triton.jit
def exclusive_kernel(x_ptr, out_ptr, N: tl.constexpr):
    """Exclusive sum: the first operand is the same constant in every program."""
    i = tl.program_id(0) * N + tl.arange(0, N)
    x = tl.load(x_ptr + i)
    total, _ = tl.associative_scan((tl.zeros_like(x), x), 0, _sum_before_last)
    tl.store(out_ptr + i, total)


def test_scan_with_a_constant_operand():
    x = torch.randint(-9, 9, (3, 16))
    out = torch.zeros_like(x)
    exclusive_kernel[(3,)](x, out, N=16)
    assert torch.equal(out, x.cumsum(1) - x)


@triton.jit
def _running_max(value_a, index_a, value_b, index_b):
    take = value_b > value_a
    return tl.where(take, value_b, value_a), tl.where(take, index_b, index_a)


@triton.jit
def cummax_kernel(x_ptr, value_ptr, index_ptr, M: tl.constexpr, N: tl.constexpr):
    rows, columns = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + rows * N + columns)
    index = tl.broadcast_to(columns, (M, N))
    value, index = tl.associative_scan((x, index), 1, _running_max)
    tl.store(value_ptr + rows * N + columns, value)
    tl.store(index_ptr + rows * N + columns, index)


def test_scan_with_operands_of_two_types():
    x = torch.randn(8, 32)
    value, index = torch.zeros(8, 32), torch.zeros((8, 32), dtype=torch.int32)
    cummax_kernel[(1,)](x, value, index, M=8, N=32)
    expected = x.cummax(1)
    assert torch.equal(value, expected.values)
    assert torch.equal(index.long(), expected.indices)


@triton.jit
def three_d_kernel(x_ptr, out_ptr, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr):
    a, b, c = tl.arange(0, A)[:, None, None], tl.arange(0, B)[None, :, None], tl.arange(0, C)[None, None, :]
    x = tl.load(x_ptr + (a * B + b) * C + c)
    middle = tl.sum(x, axis=1)
    tl.store(out_ptr + tl.arange(0, A)[:, None] * C + tl.arange(0, C)[None, :], middle)


def test_reduction_over_a_middle_axis():
    x = torch.randint(0, 100, (4, 8, 16))
    out = torch.zeros((4, 16), dtype=torch.int64)
    three_d_kernel[(1,)](x, out, A=4, B=8, C=16)
    assert torch.equal(out, x.sum(1))


@triton.jit
def low_precision_sum_kernel(x_ptr, out_ptr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    tl.store(out_ptr, tl.sum(x.to(tl.float32)))
    tl.store(out_ptr + 1, tl.sum(x, dtype=tl.float32))
    tl.store(out_ptr + 2, tl.sum((x > 0).to(tl.int1)).to(tl.float32))


def test_sum_widens_as_the_language_says():
    x = torch.randn(256).half()
    out = torch.zeros(3)
    low_precision_sum_kernel[(1,)](x, out, N=256)
    torch.testing.assert_close(out[:2], x.float().sum().expand(2), rtol=1e-5, atol=1e-5)
    assert out[2] == (x > 0).sum()


@triton.jit
def gcd(a, b):
    while b != 0:
        a, b = b, a % b
    return a


@triton.jit
def gcd_kernel(x_ptr, out_ptr, scan_ptr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    tl.store(out_ptr, tl.reduce(x, 0, gcd))
    tl.store(scan_ptr + tl.arange(0, N), tl.associative_scan(x, 0, gcd))


@pytest.mark.beyond_interpreter("cannot branch on a tile in a combine function")
def test_a_combine_function_may_loop():
    x = torch.randint(1, 5000, (32,)) * 12
    out, scan = torch.zeros(1, dtype=torch.int64), torch.zeros_like(x)
    gcd_kernel[(1,)](x, out, scan, N=32)
    running = list(itertools.accumulate(x.tolist(), math.gcd))
    assert out == running[-1]
    assert scan.tolist() == running


@triton.jit
def triangle(x):
    total = 0
    for i in range(x & 7):
        total += i
    return total


@triton.jit
def triangle_kernel(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.map_elementwise(triangle, tl.load(x_ptr + i)))


@pytest.mark.beyond_interpreter("cannot branch on a tile in a combine function")
def test_an_elementwise_function_may_loop():
    x = torch.arange(64, dtype=torch.int32)
    out = torch.zeros_like(x)
    triangle_kernel[(1,)](x, out, N=64)
    assert out.tolist() == [sum(range(v & 7)) for v in range(64)]
