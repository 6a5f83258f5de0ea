"""Programs that wait for each other: locks, flags, barriers, pipelines. A wrong schedule hangs or loses updates."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from kernbench.benches.kernels.all_reduce import AllReduce

pytestmark = pytest.mark.beyond_interpreter("runs one program after the other: a wait never ends")


@triton.jit
def locked_counter_kernel(lock_ptr, counter_ptr, seen_ptr, ROUNDS: tl.constexpr):
    """A critical section of plain loads and stores, entered ``ROUNDS`` times by every program."""
    for _ in range(ROUNDS):
        while tl.atomic_cas(lock_ptr, 0, 1, sem="acquire") != 0:
            pass
        value = tl.load(counter_ptr, volatile=True)
        tl.store(counter_ptr, value + 1)
        tl.store(seen_ptr + value, tl.program_id(0))
        tl.debug_barrier()
        tl.atomic_xchg(lock_ptr, 0, sem="release")


def test_spin_lock_excludes():
    lock, counter, seen = (torch.zeros(n, dtype=torch.int32) for n in (1, 1, 24))
    locked_counter_kernel[(8,)](lock, counter, seen, ROUNDS=3)
    assert counter.item() == 24
    assert torch.bincount(seen).tolist() == [3] * 8


@triton.jit
def chain_kernel(flag_ptr, data_ptr, N: tl.constexpr, REVERSED: tl.constexpr):
    """Program ``i`` waits for its neighbour, then extends its row; the last may come first in program order."""
    i = tl.program_id(0)
    last = tl.num_programs(0) - 1
    position = last - i if REVERSED else i
    columns = tl.arange(0, N)
    if position > 0:
        while tl.load(flag_ptr + position - 1, volatile=True) == 0:
            pass
        row = tl.load(data_ptr + (position - 1) * N + columns) * 2 + 1
    else:
        row = columns.to(tl.int64)
    tl.store(data_ptr + position * N + columns, row)
    tl.debug_barrier()
    tl.atomic_xchg(flag_ptr + position, 1, sem="release")


@pytest.mark.parametrize("reverse", [False, True])
def test_chain_of_producers_and_consumers(reverse):
    flags, data = torch.zeros(6, dtype=torch.int32), torch.zeros((6, 8), dtype=torch.int64)
    chain_kernel[(6,)](flags, data, N=8, REVERSED=reverse)
    expected = [torch.arange(8)]
    for _ in range(5):
        expected.append(expected[-1] * 2 + 1)
    assert torch.equal(data, torch.stack(expected))


@triton.jit
def grid_barrier_kernel(counter_ptr, x_ptr, out_ptr, N: tl.constexpr, STEPS: tl.constexpr):
    """A grid-wide barrier between steps: every program reads what its neighbour wrote in the step before."""
    i, n = tl.program_id(0), tl.num_programs(0)
    columns = tl.arange(0, N)
    for step in range(STEPS):
        source = x_ptr + (step % 2) * n * N
        target = x_ptr + ((step + 1) % 2) * n * N
        tl.store(target + i * N + columns, tl.load(source + ((i + 1) % n) * N + columns) + 1)
        tl.atomic_add(counter_ptr, 1, sem="acq_rel")
        while tl.atomic_add(counter_ptr, 0, sem="acquire") < (step + 1) * n:
            pass
    tl.store(out_ptr + i * N + columns, tl.load(x_ptr + (STEPS % 2) * n * N + i * N + columns))


def test_grid_barrier():
    x, out = torch.zeros((2, 7, 16), dtype=torch.int32), torch.zeros((7, 16), dtype=torch.int32)
    x[0] = torch.arange(7)[:, None]
    grid_barrier_kernel[(7,)](torch.zeros(1, dtype=torch.int32), x, out, N=16, STEPS=5)
    assert torch.equal(out[:, 3], (torch.arange(7) + 5) % 7 + 5)


@triton.jit
def last_block_kernel(x_ptr, partial_ptr, counter_ptr, out_ptr, n, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr):
    """The last program to arrive adds the partial sums: no waiting, but the order of arrival matters."""
    i = tl.program_id(0)
    offsets = i * BLOCK + tl.arange(0, BLOCK)
    tl.store(partial_ptr + i, tl.sum(tl.load(x_ptr + offsets, mask=offsets < n, other=0)))
    if tl.atomic_add(counter_ptr, 1, sem="acq_rel") == PROGRAMS - 1:
        tl.store(out_ptr, tl.sum(tl.load(partial_ptr + tl.arange(0, PROGRAMS))))


def test_last_program_finishes():
    x = torch.randint(-100, 100, (1000,))
    out = torch.zeros(1, dtype=torch.int64)
    last_block_kernel[(16,)](
        x, torch.zeros(16, dtype=torch.int64), torch.zeros(1, dtype=torch.int32), out, 1000, BLOCK=64, PROGRAMS=16
    )
    assert out.item() == x.sum()


@triton.jit
def lookback_scan_kernel(x_ptr, out_ptr, state_ptr, n, BLOCK: tl.constexpr):
    """Single-pass prefix sum: each program waits for its predecessor's inclusive total, packed with a ready bit."""
    ticket = tl.program_id(0)
    offsets = ticket * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n, other=0)
    local = tl.cumsum(x, 0)
    prefix = tl.zeros([], dtype=tl.int64)
    if ticket > 0:
        state = tl.atomic_add(state_ptr + ticket - 1, 0, sem="acquire")
        while state & 1 == 0:
            state = tl.atomic_add(state_ptr + ticket - 1, 0, sem="acquire")
        prefix = state >> 1
    tl.atomic_xchg(state_ptr + ticket, ((prefix + tl.sum(x)) << 1) | 1, sem="release")
    tl.store(out_ptr + offsets, local + prefix, mask=offsets < n)


def test_decoupled_lookback_prefix_sum():
    x = torch.randint(-50, 50, (500,))
    out = torch.zeros_like(x)
    lookback_scan_kernel[(8,)](x, out, torch.zeros(8, dtype=torch.int64), 500, BLOCK=64)
    assert torch.equal(out, x.cumsum(0))


@pytest.mark.parametrize("two_shot", [False, True])
@pytest.mark.parametrize("world", [2, 5])
def test_all_reduce_through_pointer_tables(world, two_shot):
    n = 1000
    reduction = AllReduce(world, n)
    for _ in range(2):  # the second round finds the flags of the first
        for buffer in reduction.inputs:
            buffer.copy_(torch.randn(n))
        outputs = reduction.run(two_shot)
        expected = torch.zeros(n)
        for buffer in reduction.inputs:
            expected += buffer
        for out in outputs:
            assert torch.equal(out, expected)


@triton.jit
def never_kernel(flag_ptr, out_ptr):
    while tl.load(flag_ptr + 1, volatile=True) == 0:
        pass
    tl.store(out_ptr, 1)


def test_a_wait_that_nobody_ends_is_reported():
    from kernbench.errors import DeadlockError

    with pytest.raises(DeadlockError, match="never_kernel"):
        never_kernel[(2,)](torch.zeros(4, dtype=torch.int32), torch.zeros(1))
