"""Shape operations: pure data movement, checked against numpy's indexing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl


@triton.jit
def transpose_kernel(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    tl.store(out_ptr + tl.arange(0, N)[:, None] * M + tl.arange(0, M)[None, :], tl.trans(x))


def test_transpose():
    x = torch.randn(16, 8)
    out = torch.zeros(8, 16)
    transpose_kernel[(1,)](x, out, M=16, N=8)
    assert torch.equal(out, x.T)


@triton.jit
def permute_kernel(x_ptr, out_ptr, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr):
    x = tl.reshape(tl.load(x_ptr + tl.arange(0, A * B * C)), (A, B, C))
    tl.store(out_ptr + tl.arange(0, A * B * C), tl.reshape(tl.permute(x, (2, 0, 1)), (A * B * C,)))
    tl.store(out_ptr + A * B * C + tl.arange(0, A * B * C), tl.ravel(tl.permute(x, 1, 0, 2)))


def test_permute():
    x = torch.arange(2 * 4 * 8)
    out = torch.zeros(2, 64, dtype=torch.int64)
    permute_kernel[(1,)](x, out, A=2, B=4, C=8)
    cube = x.reshape(2, 4, 8)
    assert torch.equal(out[0], cube.permute(2, 0, 1).flatten())
    assert torch.equal(out[1], cube.permute(1, 0, 2).flatten())


@triton.jit
def join_kernel(a_ptr, b_ptr, join_ptr, interleave_ptr, first_ptr, second_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.load(a_ptr + i), tl.load(b_ptr + i)
    joined = tl.join(a, b)
    tl.store(join_ptr + i[:, None] * 2 + tl.arange(0, 2)[None, :], joined)
    tl.store(interleave_ptr + tl.arange(0, 2 * N), tl.interleave(a, b))
    even, odd = tl.split(tl.reshape(tl.load(join_ptr + tl.arange(0, 2 * N)), (N, 2)))
    tl.store(first_ptr + i, even * 1)
    tl.store(second_ptr + i, odd * 1)


def test_join_interleave_split():
    a, b = torch.randint(0, 100, (16,)), torch.randint(0, 100, (16,))
    joined = torch.stack([a, b], 1)
    pair, flat, source = torch.zeros_like(joined), torch.zeros(32, dtype=torch.int64), joined.clone()
    even, odd = torch.zeros_like(a), torch.zeros_like(a)
    join_kernel[(1,)](a, b, pair, flat, even, odd, N=16)
    assert torch.equal(pair, joined)
    assert torch.equal(flat, joined.flatten())

    split_kernel[(1,)](source, even, odd, N=16)
    assert torch.equal(even, a)
    assert torch.equal(odd, b)


@triton.jit
def split_kernel(x_ptr, even_ptr, odd_ptr, N: tl.constexpr):
    even, odd = tl.split(tl.reshape(tl.load(x_ptr + tl.arange(0, 2 * N)), (N, 2)))
    tl.store(even_ptr + tl.arange(0, N), even)
    tl.store(odd_ptr + tl.arange(0, N), odd)


@triton.jit
def unpack_kernel(packed_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    """4-bit values, two per byte, low nibble first: ``[M, N]`` bytes to ``[M, 2 N]`` values."""
    rows, columns = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    packed = tl.load(packed_ptr + rows * N + columns)
    values = tl.interleave(packed & 0xF, packed >> 4)
    tl.store(out_ptr + rows * (2 * N) + tl.arange(0, 2 * N)[None, :], values)


def test_unpacking_nibbles():
    packed = torch.randint(0, 256, (8, 16), dtype=torch.uint8)
    out = torch.zeros((8, 32), dtype=torch.uint8)
    unpack_kernel[(1,)](packed, out, M=8, N=16)
    assert torch.equal(out, torch.stack([packed & 15, packed >> 4], -1).reshape(8, 32))


@triton.jit
def cat_kernel(a_ptr, b_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    both = tl.cat(tl.load(a_ptr + i), tl.load(b_ptr + i), can_reorder=True)
    tl.store(out_ptr + tl.arange(0, 2 * N), tl.sort(both))


def test_cat_holds_both_operands():
    """``can_reorder`` promises the elements, not their order."""
    a, b = torch.randn(16), torch.randn(16)
    out = torch.zeros(32)
    cat_kernel[(1,)](a, b, out, N=16)
    assert torch.equal(out, torch.cat([a, b]).sort().values)


@triton.jit
def broadcast_kernel(a_ptr, b_ptr, out_ptr, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr):
    a = tl.load(a_ptr + tl.arange(0, A))
    b = tl.load(b_ptr + tl.arange(0, B))
    cube = a[:, None, None] * 100 + tl.expand_dims(tl.expand_dims(b, 0), 2) + tl.arange(0, C)
    offsets = (tl.arange(0, A)[:, None, None] * B + tl.arange(0, B)[None, :, None]) * C + tl.arange(0, C)
    tl.store(out_ptr + offsets, cube)
    flat = tl.broadcast_to(tl.full([1], 7, tl.int64), (A,))
    tl.store(out_ptr + A * B * C + tl.arange(0, A), flat)


def test_broadcasting():
    a, b = torch.randint(0, 9, (4,)), torch.randint(0, 9, (8,))
    out = torch.zeros(4 * 8 * 2 + 4, dtype=torch.int64)
    broadcast_kernel[(1,)](a, b, out, A=4, B=8, C=2)
    cube = a[:, None, None] * 100 + b[None, :, None] + torch.arange(2)
    assert torch.equal(out, torch.cat([cube.flatten(), torch.full((4,), 7)]))


@triton.jit
def flip_kernel(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    offsets = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out_ptr + offsets, tl.flip(tl.load(x_ptr + offsets), 1))


def test_flip():
    x = torch.randn(4, 16)
    out = torch.zeros_like(x)
    flip_kernel[(1,)](x, out, M=4, N=16)
    assert torch.equal(out, x.flip(1))


@triton.jit
def swizzle_kernel(out_ptr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, G: tl.constexpr):
    i, j = tl.swizzle2d(tl.program_id(0), tl.program_id(1), ROWS, COLUMNS, G)
    tl.store(out_ptr + tl.program_id(0) * COLUMNS + tl.program_id(1), i * COLUMNS + j)


def test_swizzle_is_a_permutation_in_column_groups():
    out = torch.full((6, 4), -1, dtype=torch.int32)
    swizzle_kernel[(6, 4)](out, ROWS=6, COLUMNS=4, G=2)
    order = out.flatten().tolist()
    assert sorted(order) == list(range(24))
    assert order[:8] == [0, 4, 1, 5, 2, 6, 3, 7]


@triton.jit
def sort_kernel(x_ptr, up_ptr, down_ptr, M: tl.constexpr, N: tl.constexpr):
    offsets = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + offsets)
    tl.store(up_ptr + offsets, tl.sort(x))
    tl.store(down_ptr + offsets, tl.sort(x, descending=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64, torch.float16, torch.uint8])
@pytest.mark.parametrize("shape", [(1, 64), (8, 16)])
def test_sort(dtype, shape):
    x = (torch.rand(shape) * 50).to(dtype)
    up, down = torch.zeros_like(x), torch.zeros_like(x)
    sort_kernel[(1,)](x, up, down, M=shape[0], N=shape[1])
    assert torch.equal(up, x.sort(1).values)
    assert torch.equal(down, x.sort(1, descending=True).values)


@triton.jit
def topk_kernel(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rows = tl.arange(0, M)[:, None]
    x = tl.load(x_ptr + rows * N + tl.arange(0, N)[None, :])
    tl.store(out_ptr + rows * K + tl.arange(0, K)[None, :], tl.topk(x, K))


@pytest.mark.parametrize("k", [1, 4, 16])
def test_topk(k):
    x = torch.randint(-1000, 1000, (4, 32))
    out = torch.zeros((4, k), dtype=torch.int64)
    topk_kernel[(1,)](x, out, M=4, N=32, K=k)
    assert torch.equal(out, x.topk(k, dim=1).values)


@triton.jit
def argsort_kernel(x_ptr, out_ptr, N: tl.constexpr):
    """Sort with the index packed into the low bits of the key."""
    i = tl.arange(0, N)
    key = (tl.load(x_ptr + i).to(tl.int64) << 32) | i
    tl.store(out_ptr + i, tl.sort(key) & 0xFFFFFFFF)


def test_argsort_by_packed_keys():
    x = torch.randint(-50, 50, (64,), dtype=torch.int32)
    out = torch.zeros(64, dtype=torch.int64)
    argsort_kernel[(1,)](x, out, N=64)
    assert torch.equal(out, x.argsort(stable=True))


@triton.jit
def gather_kernel(x_ptr, index_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, AXIS: tl.constexpr):
    columns = tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + tl.arange(0, M)[:, None] * N + columns)
    if AXIS == 0:
        offsets = tl.arange(0, K)[:, None] * N + columns
    else:
        offsets = tl.arange(0, M)[:, None] * K + tl.arange(0, K)[None, :]
    tl.store(out_ptr + offsets, tl.gather(x, tl.load(index_ptr + offsets), AXIS))


@pytest.mark.parametrize("axis", [0, 1])
def test_gather(axis):
    x = torch.randn(8, 16)
    index = torch.randint(0, x.shape[axis], (4, 16) if axis == 0 else (8, 4), dtype=torch.int32)
    out = torch.zeros(index.shape)
    gather_kernel[(1,)](x, index, out, M=8, N=16, K=4, AXIS=axis)
    assert torch.equal(out, x.gather(axis, index.long()))


@triton.jit
def histogram_kernel(x_ptr, out_ptr, masked_ptr, N: tl.constexpr, BINS: tl.constexpr):
    i = tl.arange(0, N)
    base = tl.program_id(0)
    x = tl.load(x_ptr + base * N + i)
    bins = tl.arange(0, BINS)
    tl.store(out_ptr + base * BINS + bins, tl.histogram(x, BINS))
    tl.store(masked_ptr + base * BINS + bins, tl.histogram(x, BINS, mask=i % 2 == 0))


def test_histogram(rng):
    x = rng.integers(0, 16, (3, 128)).astype(np.int32)
    out, masked = torch.zeros(3, 16, dtype=torch.int32), torch.zeros(3, 16, dtype=torch.int32)
    histogram_kernel[(3,)](torch.from_numpy(x), out, masked, N=128, BINS=16)
    np.testing.assert_array_equal(out.numpy(), [np.bincount(row, minlength=16) for row in x])
    np.testing.assert_array_equal(masked.numpy(), [np.bincount(row[::2], minlength=16) for row in x])
