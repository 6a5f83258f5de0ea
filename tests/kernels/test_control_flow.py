"""Branches, loops and calls whose path depends on data, differently in every program."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from kernbench.errors import KernbenchError


@triton.jit
def collatz_kernel(x_ptr, steps_ptr, n, LIMIT: tl.constexpr):
    """Number of Collatz steps to 1: a while loop with a different trip count in every program."""
    i = tl.program_id(0)
    x = tl.load(x_ptr + i)
    steps = 0
    while (x != 1) & (steps < LIMIT):
        if x % 2 == 0:
            x = x // 2
        else:
            x = 3 * x + 1
        steps += 1
    tl.store(steps_ptr + i, steps)


def test_while_with_a_trip_count_per_program():
    def collatz(x: int) -> int:
        steps = 0
        while x != 1 and steps < 100:
            x = x // 2 if x % 2 == 0 else 3 * x + 1
            steps += 1
        return steps

    x = torch.arange(1, 65)
    steps = torch.zeros(64, dtype=torch.int32)
    collatz_kernel[(64,)](x, steps, 64, LIMIT=100)
    assert steps.tolist() == [collatz(v) for v in x.tolist()]


@triton.jit
def ragged_sum_kernel(x_ptr, start_ptr, out_ptr, BLOCK: tl.constexpr):
    """Sum of a ragged row: for-loop bounds read from memory."""
    row = tl.program_id(0)
    low = tl.load(start_ptr + row)
    high = tl.load(start_ptr + row + 1)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(low, high, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + columns, mask=columns < high, other=0.0)
    tl.store(out_ptr + row, tl.sum(total))


def test_for_bounds_from_memory(rng):
    lengths = np.array([0, 1, 17, 64, 5, 0, 100, 33])
    starts = np.concatenate([[0], np.cumsum(lengths)])
    x = rng.integers(-50, 50, starts[-1]).astype(np.float32)
    out = torch.full((8,), -1.0)
    ragged_sum_kernel[(8,)](torch.from_numpy(x), torch.from_numpy(starts), out, BLOCK=16)
    assert out.tolist() == [x[a:b].sum() for a, b in itertools.pairwise(starts)]


@triton.jit
def early_return_kernel(x_ptr, out_ptr):
    i = tl.program_id(0)
    x = tl.load(x_ptr + i)
    if x < 0:
        return
    if x == 0:
        tl.store(out_ptr + i, 100)
        return
    tl.store(out_ptr + i, x * 2)


def test_early_return():
    x = torch.tensor([3, -1, 0, 5, -2, 0, 7, 9])
    out = torch.full((8,), -7)
    early_return_kernel[(8,)](x, out)
    assert out.tolist() == [6, -7, 100, 10, -7, 100, 14, 18]


@triton.jit
def nested_kernel(n_ptr, out_ptr):
    """Nested loops whose inner bound is the outer index, with a branch inside and values carried through both."""
    i = tl.program_id(0)
    n = tl.load(n_ptr + i)
    total = 0
    largest = -1
    for outer in range(n):
        for inner in range(outer):
            if (inner + i) % 3 == 0:
                total += inner
            elif inner > largest:
                largest = inner
        total += outer * 100
    tl.store(out_ptr + i * 2, total)
    tl.store(out_ptr + i * 2 + 1, largest)


def test_nested_loops_and_branches():
    def reference(i: int, n: int) -> tuple[int, int]:
        total, largest = 0, -1
        for outer in range(n):
            for inner in range(outer):
                if (inner + i) % 3 == 0:
                    total += inner
                elif inner > largest:
                    largest = inner
            total += outer * 100
        return total, largest

    n = [0, 1, 5, 3, 9, 2, 7, 4]
    out = torch.zeros((8, 2), dtype=torch.int32)
    nested_kernel[(8,)](torch.tensor(n, dtype=torch.int32), out)
    assert [tuple(row) for row in out.tolist()] == [reference(i, k) for i, k in enumerate(n)]


@triton.jit
def static_range_kernel(x_ptr, out_ptr, N: tl.constexpr, POWERS: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    power = x
    for k in tl.static_range(POWERS):
        if k % 2 == 0:
            tl.store(out_ptr + k * N + i, power)
        else:
            tl.store(out_ptr + k * N + i, -power)
        power *= x


def test_static_range_unrolls():
    x = torch.tensor([1.0, 2.0, -3.0, 0.5])
    out = torch.zeros((4, 4))
    static_range_kernel[(1,)](x, out, N=4, POWERS=4)
    assert torch.equal(out, torch.stack([x, -(x**2), x**3, -(x**4)]))


@triton.jit(noinline=True)
def gcd(a, b):
    while b != 0:
        t = a % b
        a = b
        b = t
    return a


@triton.jit(noinline=True)
def three_times_and_below(x):
    return 3 * x, x - 1


@triton.jit
def calls_kernel(a_ptr, b_ptr, gcd_ptr, pair_ptr, N: tl.constexpr):
    i = tl.program_id(0)
    g = gcd(tl.load(a_ptr + i), tl.load(b_ptr + i))
    tl.store(gcd_ptr + i, g)
    j = tl.arange(0, N)
    triple, below = three_times_and_below(g)
    tl.store(pair_ptr + (2 * i) * N + j, triple + j)
    tl.store(pair_ptr + (2 * i + 1) * N + j, below * j)


def test_noinline_calls_with_divergent_loops():
    a, b = [12, 17, 100, 81, 7, 1024], [18, 5, 75, 27, 0, 640]
    greatest = torch.zeros(6, dtype=torch.int64)
    pair = torch.zeros((6, 2, 8), dtype=torch.int64)
    calls_kernel[(6,)](torch.tensor(a), torch.tensor(b), greatest, pair, N=8)
    expected = np.gcd(a, b)
    assert greatest.tolist() == expected.tolist()
    j = np.arange(8)
    np.testing.assert_array_equal(pair.numpy(), [[3 * g + j, (g - 1) * j] for g in expected])


@triton.jit
def grid_kernel(out_ptr, ORDER: tl.constexpr):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    nx, ny, nz = tl.num_programs(0), tl.num_programs(1), tl.num_programs(2)
    index = (z * ny + y) * nx + x
    tl.store(out_ptr + index, x + 10 * y + 100 * z + 1000 * (nx + 10 * ny + 100 * nz))


@pytest.mark.parametrize("grid", [(5,), (3, 4), (2, 3, 4), (1, 1, 6)])
def test_grids_of_one_to_three_dimensions(grid):
    nx, ny, nz = (*grid, 1, 1)[:3]
    out = torch.zeros((nz, ny, nx), dtype=torch.int32)
    grid_kernel[grid](out, ORDER=0)
    z, y, x = np.indices((nz, ny, nx))
    np.testing.assert_array_equal(out.numpy(), x + 10 * y + 100 * z + 1000 * (nx + 10 * ny + 100 * nz))


@triton.jit
def carried_tiles_kernel(x_ptr, out_ptr, n_ptr, N: tl.constexpr):
    """Two tiles swapped every step of a data-dependent loop, and a pointer that advances."""
    i = tl.program_id(0)
    columns = tl.arange(0, N)
    a = tl.load(x_ptr + columns)
    b = a * 0.0
    pointer = x_ptr + columns
    for step in range(tl.load(n_ptr + i)):
        a, b = b, a + step
        pointer += N
        b += tl.load(pointer)
    tl.store(out_ptr + i * 2 * N + columns, a)
    tl.store(out_ptr + (i * 2 + 1) * N + columns, b)


def test_values_swapped_around_a_loop():
    x = torch.arange(6 * 8, dtype=torch.float32).reshape(6, 8)
    counts = [0, 3, 1, 5]
    out = torch.zeros((4, 2, 8))
    carried_tiles_kernel[(4,)](x, out, torch.tensor(counts), N=8)
    for count, got in zip(counts, out, strict=True):
        a, b = x[0], torch.zeros(8)
        for step in range(count):
            a, b = b, a + step + x[step + 1]
        assert torch.equal(got, torch.stack([a, b]))


@triton.jit
def divergent_if_yield_kernel(x_ptr, out_ptr, N: tl.constexpr):
    """Branches that yield tiles of different origin: loaded, constant, affine."""
    i = tl.program_id(0)
    columns = tl.arange(0, N)
    kind = i % 4
    if kind == 0:
        value = tl.load(x_ptr + i * N + columns)
    elif kind == 1:
        value = tl.full([N], 3, tl.int64)
    elif kind == 2:
        value = (columns + i).to(tl.int64)
    else:
        value = tl.load(x_ptr + (i - 1) * N + columns) + columns
    tl.store(out_ptr + i * N + columns, value)


def test_branches_yield_tiles_of_any_kind():
    x = torch.randint(-100, 100, (10, 8))
    out = torch.zeros_like(x)
    divergent_if_yield_kernel[(10,)](x, out, N=8)
    columns = torch.arange(8)
    expected = [[x[i], torch.full((8,), 3), columns + i, x[i - 1] + columns][i % 4] for i in range(10)]
    assert torch.equal(out, torch.stack(expected))


@triton.jit
def reversed_loop_kernel(out_ptr, low, high, STEP: tl.constexpr):
    count = 0
    for i in range(high, low, STEP):
        tl.store(out_ptr + count, i)
        count += 1  # noqa: SIM113


def test_loop_with_negative_step():
    out = torch.full((8,), -1)
    reversed_loop_kernel[(1,)](out, 2, 15, STEP=-3)
    assert out.tolist() == [15, 12, 9, 6, 3, -1, -1, -1]


@triton.jit
def short_circuit_kernel(x_ptr, out_ptr, n):
    i = tl.program_id(0)
    flag = (i < n) and (i % 2 == 0)
    other = (i >= n) or (not flag)
    tl.store(out_ptr + i * 2, flag.to(tl.int32))
    tl.store(out_ptr + i * 2 + 1, other.to(tl.int32))


@pytest.mark.beyond_interpreter("and/or/not on tensors")
def test_and_or_not_on_scalars():
    out = torch.zeros((8, 2), dtype=torch.int32)
    short_circuit_kernel[(8,)](out, out, 5)
    expected = [[int(i < 5 and i % 2 == 0), int(i >= 5 or not (i < 5 and i % 2 == 0))] for i in range(8)]
    assert out.tolist() == expected


@triton.jit
def counted_kernel(out_ptr, start, end, step):
    turns = 0
    for _ in range(start, end, step):
        turns += 1
    tl.store(out_ptr, turns)


def test_a_step_known_at_run_time():
    out = torch.zeros(1, dtype=torch.int32)
    for start, end, step, turns in [(2, 20, 3, 6), (2, 2, 3, 0), (20, 2, 3, 0)]:
        counted_kernel[(1,)](out, start, end, step)
        assert out == turns


@pytest.mark.beyond_interpreter("counts down, as Python does and compiled code does not")
def test_a_step_that_never_reaches_the_end_is_an_error():
    out = torch.zeros(1, dtype=torch.int32)
    counted_kernel[(1,)](out, 20, 2, -3)  # not entered: 20 < 2 is false
    assert out == 0
    with pytest.raises(KernbenchError, match=r"step.* is not positive \(-3\)(.|\n)*test_control_flow\.py"):
        counted_kernel[(1,)](out, 2, 20, -3)


@triton.jit
def chosen_pointer_kernel(a_ptr, b_ptr, c_ptr, flags_ptr, out_ptr, BLOCK: tl.constexpr):
    """A pointer chosen by program id (a select), then one by data (a branch that writes memory, so it stays one)."""
    pid = tl.program_id(0)
    if pid == 0:
        source = a_ptr
    elif pid == 1:
        source = b_ptr
    else:
        source = c_ptr
    if tl.load(flags_ptr + pid) > 0:
        other = a_ptr
        tl.store(flags_ptr + pid, 2)
    else:
        other = b_ptr + 1
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + pid * BLOCK + i, tl.load(source + i) - 100 * tl.load(other + i))


def test_pointers_of_several_arguments_meet():
    """Again with other tensors: what a launch learnt of addresses must not be kept for the next."""
    kept = []
    for _ in range(3):
        a, b, c = (torch.randint(0, 50, (9,)) for _ in range(3))
        kept.append((a, b, c))
        flags, out = torch.tensor([0, 1, 0, 1]), torch.zeros(4, 8, dtype=torch.int64)
        chosen_pointer_kernel[(4,)](a, b, c, flags, out, BLOCK=8)
        other = torch.stack([b[1:], a[:8], b[1:], a[:8]])
        assert torch.equal(out, torch.stack([a[:8], b[:8], c[:8], c[:8]]) - 100 * other)
        assert flags.tolist() == [0, 2, 0, 2]


@triton.jit
def address_kernel(x_ptr, out_ptr):
    tl.store(out_ptr, x_ptr.to(tl.int64))
    tl.store(out_ptr + 1, (x_ptr + 3).to(tl.int64) % 4096)


def test_addresses_as_numbers():
    out = torch.zeros(2, dtype=torch.int64)
    kept = [torch.zeros(1000) for _ in range(3)]
    for x in kept:
        address_kernel[(1,)](x, out)
        assert out.tolist() == [x.data_ptr(), (x.data_ptr() + 12) % 4096]


@triton.jit
def place_of(starts_ptr, x, n):
    """The last of ``n`` ascending starts that is at most ``x``, by halves."""
    low = 0
    high = n
    while low < high:
        middle = (low + high) // 2
        if tl.load(starts_ptr + middle) <= x:
            low = middle + 1
        else:
            high = middle
    return low - 1


@triton.jit
def search_kernel(starts_ptr, out_ptr, n, total, WORKERS: tl.constexpr):
    for task in range(tl.program_id(0), total, WORKERS):
        tl.store(out_ptr + task, place_of(starts_ptr, task // 4, n))


@triton.jit
def two_searches_kernel(starts_ptr, out_ptr, n, x, y):
    first = place_of(starts_ptr, x, n)
    tl.store(out_ptr, first + 10 * place_of(starts_ptr, y + first, n))


def test_a_search_in_memory_is_no_wait():
    """Its last turn in one search and the first, or the second after a write, in the next one may leave the same bounds."""
    starts, out = torch.tensor([0, 3, 5], dtype=torch.int32), torch.full((20,), -7, dtype=torch.int32)
    search_kernel[(3,)](starts, out, 3, 20, 3)
    assert out.tolist() == [0] * 12 + [1] * 8
    two_searches_kernel[(1,)](starts, out, 1, 5, 6)
    assert out[0] == 0


@triton.jit
def searches_in_a_loop_kernel(starts_ptr, out_ptr, turns):
    found = 0
    for x in range(turns):
        found += place_of(starts_ptr, x, 1) + 1
    tl.store(out_ptr, found)


def test_searches_of_one_turn_one_after_the_other():
    starts, out = torch.tensor([0, 3, 5], dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    searches_in_a_loop_kernel[(1,)](starts, out, 6)
    assert out.item() == 6
