"""Results that are computed straight into memory: where they overlap what they are computed from, where they only partly
cover the tile, and loads of lanes at irregular addresses."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl


@triton.jit
def shift_kernel(x_ptr, out_ptr, distance, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + i + distance, tl.load(x_ptr + i, mask=i < n, other=0.0) * 2.0, mask=i < n)


@pytest.mark.parametrize("n", [64, 50])
@pytest.mark.parametrize("distance", [0, 1, 3, 63])
def test_a_program_reads_its_tile_before_it_writes_over_it(distance: int, n: int):
    x = torch.randn(160)
    want = x.clone()
    want[distance : distance + n] = x[:n] * 2
    shift_kernel[(1,)](x, x, distance, n, BLOCK=64)
    assert torch.equal(x, want)


@triton.jit
def in_place_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x, y = tl.load(x_ptr + i, mask=i < n), tl.load(y_ptr + i, mask=i < n)
    tl.store(x_ptr + i, x + y, mask=i < n)
    tl.store(y_ptr + i, x - y, mask=i < n)


@pytest.mark.parametrize("n", [1024, 1000])
def test_sums_in_place(n: int):
    x, y = torch.randn(1024), torch.randn(1024)
    want = torch.cat((x[:n] + y[:n], x[n:])), torch.cat((x[:n] - y[:n], y[n:]))
    in_place_kernel[(8,)](x, y, n, BLOCK=128)
    assert torch.equal(x, want[0])
    assert torch.equal(y, want[1])


@triton.jit
def transpose_kernel(x_ptr, out_ptr, N: tl.constexpr):
    rows, columns = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    tl.store(out_ptr + columns * N + rows, tl.load(x_ptr + rows * N + columns) + 1.0)


def test_transposed_in_place():
    x = torch.randn(32, 32)
    want = x.T + 1
    transpose_kernel[(1,)](x, x, N=32)
    assert torch.equal(x, want)


@triton.jit
def last_kernel(x_ptr, out_ptr, cast_ptr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * BLOCK + i)
    tl.store(out_ptr + i, x * 2.0)
    tl.store(cast_ptr + i[:, None] * 0 + tl.program_id(1) + i[None, :] * 2, (x[None, :] + 0.5).to(tl.float16))


@pytest.mark.beyond_interpreter("writes of several programs to one address")
def test_of_programs_at_one_address_the_last_wins():
    x, out, cast = torch.randn(5, 16), torch.zeros(16), torch.zeros(32, dtype=torch.float16)
    last_kernel[(5, 2)](x, out, cast, BLOCK=16)
    assert torch.equal(out, x[4] * 2)
    assert torch.equal(cast, (x[4] + 0.5).half().repeat_interleave(2))


@triton.jit
def spread_kernel(x_ptr, out_ptr, value, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + tl.program_id(0) * BLOCK + i, tl.load(x_ptr + i) + value)


def test_one_value_stored_by_many_programs():
    x, out = torch.randn(16), torch.zeros(7, 16)
    spread_kernel[(7,)](x, out, 0.25, BLOCK=16)
    assert torch.equal(out, (x + 0.25).expand(7, 16))


@triton.jit
def rows_kernel(x_ptr, rows_ptr, out_ptr, stride, columns, BLOCK_M: tl.constexpr, BLOCK: tl.constexpr):
    """Program p copies ``BLOCK_M`` rows from row ``rows[p]`` on, some columns of them."""
    first = tl.load(rows_ptr + tl.program_id(0))
    m, i = tl.arange(0, BLOCK_M)[:, None], tl.arange(0, BLOCK)[None, :]
    tile = tl.load(x_ptr + (first + m) * stride + (columns - 1 - i), mask=i < columns, other=-1.0)
    tl.store(out_ptr + tl.program_id(0) * BLOCK_M * BLOCK + m * BLOCK + i, tile)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8, torch.float64])
@pytest.mark.parametrize("columns", [32, 20])
def test_lanes_at_irregular_addresses(columns: int, dtype: torch.dtype):
    x = (torch.randn(100, 40) * 20).to(dtype)
    rows = torch.tensor([17, 3, 90, 3, 41, 0, 96, 55, 54])
    out = torch.zeros(9, 4, 32, dtype=dtype)
    rows_kernel[(9,)](x, rows, out, 40, columns, BLOCK_M=4, BLOCK=32)
    for p, row in enumerate(rows.tolist()):
        want = torch.full((4, 32), -1, dtype=dtype)
        want[:, :columns] = x[row : row + 4, :columns].flip(1)
        assert torch.equal(out[p], want)


@triton.jit
def table_kernel(table_ptr, out_ptr, BLOCK: tl.constexpr):
    source = tl.load(table_ptr + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + tl.program_id(0) * BLOCK + i, tl.load(source + i))


@pytest.mark.beyond_interpreter("pointers in memory")
def test_lanes_in_several_allocations():
    tensors = [torch.randn(64) for _ in range(3)]
    order = [(2, 5), (0, 0), (1, 30), (2, 48), (0, 7), (1, 30)]
    table = torch.tensor([tensors[t].data_ptr() + 4 * at for t, at in order])
    out = torch.zeros(6, 16)
    table_kernel[(6,)](table, out, BLOCK=16)
    assert torch.equal(out, torch.stack([tensors[t][at : at + 16] for t, at in order]))
