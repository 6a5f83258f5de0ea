"""Atomic operations: every kind, masked, with the old values returned, over colliding addresses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl


@triton.jit
def atomic_kernel(
    index_ptr, x_ptr, add_ptr, max_ptr, min_ptr, and_ptr, or_ptr, xor_ptr, n, BLOCK: tl.constexpr, BITWISE: tl.constexpr
):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    slot = tl.load(index_ptr + i, mask=mask, other=0)
    x = tl.load(x_ptr + i, mask=mask, other=0)
    tl.atomic_add(add_ptr + slot, x, mask=mask)
    tl.atomic_max(max_ptr + slot, x, mask=mask)
    tl.atomic_min(min_ptr + slot, x, mask=mask)
    if BITWISE:
        tl.atomic_and(and_ptr + slot, x, mask=mask)
        tl.atomic_or(or_ptr + slot, x, mask=mask)
        tl.atomic_xor(xor_ptr + slot, x, mask=mask)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "uint64", "float32"])
def test_read_modify_write_with_collisions(rng, dtype):
    n, slots = 200, 7
    low = 0 if dtype.startswith("u") else -1000
    index, x = rng.integers(0, slots, n), rng.integers(low, 1000, n).astype(dtype)
    start = rng.integers(low, 1000, slots).astype(dtype)
    ufuncs = [np.add, np.maximum, np.minimum] + (
        [] if dtype == "float32" else [np.bitwise_and, np.bitwise_or, np.bitwise_xor]
    )
    outs = [torch.from_numpy(start.copy()) for _ in range(6)]
    atomic_kernel[(4,)](torch.from_numpy(index), torch.from_numpy(x), *outs, n, BLOCK=64, BITWISE=dtype != "float32")
    for ufunc, out in zip(ufuncs, outs, strict=False):
        expected = start.copy()
        ufunc.at(expected, index, x)
        np.testing.assert_array_equal(out.numpy(), expected, err_msg=ufunc.__name__)


@triton.jit
def float_add_kernel(out_ptr, x_ptr, old_ptr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    old = tl.atomic_add(out_ptr + i % 4, tl.load(x_ptr + i))
    tl.store(old_ptr + i, old)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.beyond_interpreter("no bf16 atomics")
def test_float_add(dtype):
    x = torch.randint(0, 8, (64,)).to(dtype)
    out, old = torch.zeros(4, dtype=dtype), torch.full((64,), -1.0).to(dtype)
    float_add_kernel[(2,)](out, x, old, BLOCK=32)
    assert torch.equal(out, x.reshape(-1, 4).sum(0))
    # whatever the order, the old values and the additions form a chain from zero to the sum
    for k in range(4):
        additions = dict.fromkeys(old[k::4].tolist(), None)
        assert min(additions) == 0
        assert max((old[k::4] + x[k::4]).tolist()) == out[k]


@triton.jit
def ticket_kernel(counter_ptr, ticket_ptr, BLOCK: tl.constexpr):
    """Every element of every program takes a ticket; odd elements are masked off."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ticket = tl.atomic_add(counter_ptr + tl.zeros([BLOCK], tl.int32), 1, mask=i % 2 == 0)
    tl.store(ticket_ptr + i, ticket, mask=i % 2 == 0)


def test_old_values_are_distinct_tickets():
    counter, tickets = torch.zeros(1, dtype=torch.int32), torch.full((128,), -1, dtype=torch.int32)
    ticket_kernel[(4,)](counter, tickets, BLOCK=32)
    assert counter.item() == 64
    assert sorted(tickets[::2].tolist()) == list(range(64))
    assert (tickets[1::2] == -1).all()


@triton.jit
def exchange_kernel(slot_ptr, out_ptr):
    i = tl.program_id(0)
    tl.store(out_ptr + i, tl.atomic_xchg(slot_ptr, i + 1, sem="acq_rel", scope="sys"))


def test_exchange_chains_every_program_once():
    slot, out = torch.zeros(1, dtype=torch.int32), torch.full((16,), -1, dtype=torch.int32)
    exchange_kernel[(16,)](slot, out)
    assert sorted([*out.tolist(), slot.item()]) == list(range(17))


@triton.jit
def cas_kernel(slots_ptr, expected_ptr, old_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    old = tl.atomic_cas(
        slots_ptr + i, tl.load(expected_ptr + i), (i * 10).to(slots_ptr.dtype.element_ty), sem="relaxed", scope="gpu"
    )
    tl.store(old_ptr + i, old)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_compare_and_swap_of_a_tile(dtype):
    slots, expected = torch.randint(0, 3, (32,), dtype=dtype), torch.randint(0, 3, (32,), dtype=dtype)
    before, old = slots.clone(), torch.zeros_like(slots)
    cas_kernel[(1,)](slots, expected, old, BLOCK=32)
    assert torch.equal(old, before)
    assert torch.equal(slots, torch.where(before == expected, torch.arange(32, dtype=dtype) * 10, before))


@triton.jit
def winner_kernel(slot_ptr, won_ptr):
    i = tl.program_id(0)
    won = tl.atomic_cas(slot_ptr, -1, i) == -1
    tl.store(won_ptr + i, won.to(tl.int32))


def test_one_program_wins_a_contested_slot():
    slot, won = torch.full((1,), -1, dtype=torch.int32), torch.zeros(32, dtype=torch.int32)
    winner_kernel[(32,)](slot, won)
    assert won.sum() == 1
    assert won.argmax() == slot.item()


@triton.jit
def scalar_float_max_kernel(out_ptr, x_ptr):
    x = tl.load(x_ptr + tl.program_id(0))
    tl.atomic_max(out_ptr, x)
    tl.atomic_min(out_ptr + 1, x)


def test_float_max_and_min_of_any_sign():
    x = torch.tensor([-3.5, 2.25, -0.0, 0.0, -7.0, 1e-20, 6.5, -1e-20])
    out = torch.tensor([-100.0, 100.0])
    scalar_float_max_kernel[(8,)](out, x)
    assert out.tolist() == [6.5, -7.0]


@triton.jit
def histogram_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0)
    tl.atomic_add(out_ptr + x, 1, mask=i < n, sem="relaxed", scope="cta")


def test_histogram_by_atomics(rng):
    x = rng.integers(0, 10, 1000)
    out = torch.zeros(10, dtype=torch.int64)
    histogram_kernel[(8,)](torch.from_numpy(x), out, 1000, BLOCK=128)
    np.testing.assert_array_equal(out.numpy(), np.bincount(x, minlength=10))


@triton.jit
def split_k_kernel(a_ptr, b_ptr, c_ptr, K, M: tl.constexpr, N: tl.constexpr, BLOCK_K: tl.constexpr):
    """Programs share one output tile: each adds its slice of K."""
    rows, columns = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    k = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    product = tl.dot(
        tl.load(a_ptr + rows * K + k[None, :]), tl.load(b_ptr + k[:, None] * N + columns), input_precision="ieee"
    )
    tl.atomic_add(c_ptr + rows * N + columns, product, sem="relaxed")


def test_split_k_matmul():
    a, b = torch.randint(-4, 5, (16, 128)).float(), torch.randint(-4, 5, (128, 16)).float()
    c = torch.zeros(16, 16)
    split_k_kernel[(4,)](a, b, c, 128, M=16, N=16, BLOCK_K=32)
    assert torch.equal(c, a @ b)
