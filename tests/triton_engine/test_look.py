"""What a look at a launch finds of its products of tiles: how operands lie, what waits in shared memory, trips by program."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from kernbench.programs.gpu_steps.triton_kernels import attention_kernel, product_kernel
from kernbench.triton_engine.duration import device_of, estimate
from kernbench.triton_engine.launching import sampled_launches


def looked_at(kernel, grid, *args, **options):
    with sampled_launches(device_of("cuda", "90")) as records:
        kernel[grid](*args, **options)
    (record,) = records
    return record.counts, estimate(record.counts, None, device_of("cuda", "90"), kernel=record.kernel).seconds


def product(dtype, *, left, right, size=512):
    """``left``, ``right``: whether K runs along the operand's rows."""
    a, b = (torch.zeros(size, size).to(dtype) for _ in range(2))
    a, b = a if left else a.t(), b.t() if right else b
    c = torch.zeros(size, size, dtype=torch.float32 if dtype.itemsize == 4 else torch.float16)
    strides = (*a.stride(), *b.stride(), *c.stride())
    return looked_at(
        product_kernel, ((size // 128) ** 2,), a, b, c, size, size, size, *strides, BM=128, BN=128, BK=64, GROUP=8,
        num_warps=4, num_stages=3,
    )  # fmt: skip


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("right", [True, False])
def test_how_operands_lie(left, right):
    counts, _ = product(torch.float16, left=left, right=right)
    (one,) = counts.products
    assert (one.rows, one.columns, one.depth, one.threads, one.precision) == (128, 128, 64, 128, "tf32")
    assert one.along(counts.contiguous) == (left, right)
    assert not one.awaited
    assert counts.products[one] == 16 * 8
    assert counts.waiting == (2 * 64 * 256, 0)


def test_eight_bits_across_k_take_longer_sixteen_do_not():
    fast, slow = (product(torch.float8_e4m3fn, left=True, right=right, size=1024)[1] for right in (True, False))
    assert slow > 2 * fast
    fast, slow = (product(torch.float16, left=True, right=right, size=1024)[1] for right in (True, False))
    assert slow == pytest.approx(fast, rel=0.02)


@triton.jit
def turned_kernel(a, b, c, SIZE: tl.constexpr):
    left = tl.make_tensor_descriptor(a, shape=[SIZE, SIZE], strides=[SIZE, 1], block_shape=[64, 64])
    right = tl.make_tensor_descriptor(b, shape=[SIZE, SIZE], strides=[SIZE, 1], block_shape=[64, 64])
    total = tl.zeros((64, 64), dtype=tl.float32)
    for k in range(0, SIZE, 64):
        x = left.load([tl.program_id(0) * 64, k])
        y = right.load([tl.program_id(1) * 64, k]).T
        total = tl.dot(x, y, total)
    m, n = tl.program_id(0) * 64 + tl.arange(0, 64), tl.program_id(1) * 64 + tl.arange(0, 64)
    tl.store(c + m[:, None] * SIZE + n[None, :], total)


def test_descriptors_and_transposes():
    a, c = torch.zeros(256, 256, dtype=torch.float16), torch.zeros(256, 256)
    counts, _ = looked_at(turned_kernel, (4, 4), a, a, c, SIZE=256)
    (one,) = counts.products
    assert one.along(counts.contiguous) == (True, True)


@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal):
    heads, length, width = 2, 512, 64
    q, k, v, out = (torch.zeros(heads, length, width, dtype=torch.float16) for _ in range(4))
    counts, _ = looked_at(
        attention_kernel, (length // 128, heads), q, k, v, out, 0.1, length * width, width, length,
        BM=128, BN=64, D=width, CAUSAL=causal, num_warps=4, num_stages=3,
    )  # fmt: skip
    assert all(one.awaited for one in counts.products)
    scores, result = sorted(counts.products, key=lambda one: one.index)
    assert scores.loads[0] == result.loads[0] == -1  # loaded before the loop; computed
    assert scores.along(counts.contiguous) == (True, True)
    assert result.along(counts.contiguous)[1] is False
    assert counts.waiting == (2 * 2 * 64 * width, 2 * 128 * width)
    assert counts.turns == ((2, 4, 6, 8) * heads if causal else None)
