"""Functions of elements that branch, return early, loop and assert, in reductions, scans and ``tl.map_elementwise``."""

from __future__ import annotations

import math

import pytest
import torch
import triton
import triton.language as tl

from kernbench.errors import KernbenchError

ROWS, COLUMNS = 3, 16


@triton.jit
def order(x, y):
    if x < y:
        return -1
    elif x == y:
        return 0
    else:
        return 1


@triton.jit
def steps_to_one(n):
    count = 0
    if n > 0:  # below, the loop would not end
        while n != 1:
            n = tl.where(n % 2 == 0, n // 2, 3 * n + 1)
            count += 1
    return count


@triton.jit(noinline=True)
def share(n):
    if n == 0:
        return n
    total = n * 0
    for k in range(n):
        if k % 2 == 1:
            total += k
    if total > 6:
        return 100 // n
    return total


@triton.jit
def elements(x_ptr, y_ptr, order_ptr, steps_ptr, share_ptr, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    x, y = tl.load(x_ptr + at), tl.load(y_ptr + tl.arange(0, N))
    tl.store(order_ptr + at, tl.map_elementwise(order, x, y))
    tl.store(steps_ptr + at, tl.map_elementwise(steps_to_one, x))
    tl.store(share_ptr + at, tl.map_elementwise(share, x))


def steps(n):
    count = 0
    while n > 0 and n != 1:
        n, count = n // 2 if n % 2 == 0 else 3 * n + 1, count + 1
    return count


def shared(n):
    total = sum(range(1, n, 2))
    return 100 // n if total > 6 else total


@pytest.mark.parametrize("programs", [1, ROWS])
def test_functions_of_elements_that_return_early(rng, programs):
    x = torch.from_numpy(rng.integers(-5, 9, (programs, COLUMNS)))
    y = torch.from_numpy(rng.integers(-5, 9, COLUMNS))
    outs = [torch.full_like(x, 99) for _ in range(3)]
    elements[(programs,)](x, y, *outs, N=COLUMNS)
    assert torch.equal(outs[0], (x > y).long() - (x < y).long())
    assert outs[1].tolist() == [[steps(n) for n in row] for row in x.tolist()]
    assert outs[2].tolist() == [[shared(n) for n in row] for row in x.tolist()]


@triton.jit
def divisor(a, b):
    if b != 0:
        tl.device_assert(a % b < b, "remainder")
        while b != 0:
            tl.device_assert(b != 0, "still going")
            rest = a % b
            a = b
            b = rest
    return a


@triton.jit
def larger(a, b):
    if a > b:
        return a
    return b


@triton.jit(debug=True)
def rows(x_ptr, divisors_ptr, largest_ptr, N: tl.constexpr):
    row = tl.program_id(0)
    x = tl.load(x_ptr + row * N + tl.arange(0, N))
    tl.store(divisors_ptr + row, tl.reduce(x, 0, divisor))
    tl.store(largest_ptr + row * N + tl.arange(0, N), tl.associative_scan(x, 0, larger))


@pytest.mark.parametrize("programs", [1, ROWS])
def test_an_assertion_is_of_the_elements_that_come_by_it(rng, programs):
    x = torch.from_numpy(6 * rng.integers(0, 9, (programs, COLUMNS)))
    divisors, largest = torch.zeros(programs, dtype=torch.int64), torch.zeros_like(x)
    rows[(programs,)](x, divisors, largest, N=COLUMNS)
    assert divisors.tolist() == [math.gcd(*row) for row in x.tolist()]
    assert torch.equal(largest, x.cummax(1).values)


@triton.jit
def sum_below(a, b):
    tl.device_assert(a + b < 100, "too large")
    return a + b


@triton.jit(debug=True)
def sums(x_ptr, out_ptr, N: tl.constexpr):
    row = tl.program_id(0)
    tl.store(out_ptr + row, tl.reduce(tl.load(x_ptr + row * N + tl.arange(0, N)), 0, sum_below))


@pytest.mark.parametrize("programs", [1, ROWS])
def test_an_assertion_of_a_combine_function_fails_with_its_program(programs):
    x, out = torch.ones(programs, COLUMNS, dtype=torch.int32), torch.zeros(programs, dtype=torch.int32)
    sums[(programs,)](x, out, N=COLUMNS)
    assert out.tolist() == [COLUMNS] * programs
    x[programs - 1, 5] = 200
    with pytest.raises(KernbenchError, match=rf"device_assert failed: too large\n *pid \({programs - 1}, 0, 0\)"):
        sums[(programs,)](x, out, N=COLUMNS)


@triton.jit
def shown(a, b):
    tl.device_print("a", a)
    return a + b


@triton.jit
def prints(x_ptr, out_ptr, N: tl.constexpr):
    tl.store(out_ptr, tl.reduce(tl.load(x_ptr + tl.arange(0, N)), 0, shown))


def test_printing_in_a_combine_function_is_refused_with_its_line():
    with pytest.raises(
        NotImplementedError, match=r"tt.print in a combine function\n *at .*test_combine_functions.py:\d+"
    ):
        prints[(1,)](torch.ones(COLUMNS), torch.zeros(1), N=COLUMNS)
