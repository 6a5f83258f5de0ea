"""Ways of reaching memory: masks, strides, pointer tables, block pointers, tensor descriptors."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from triton.tools.ragged_tma import create_ragged_descriptor, load_ragged, store_ragged
from triton.tools.tensor_descriptor import TensorDescriptor

from tests.triton_fixtures import ROUNDING


@triton.jit
def masked_kernel(x_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    x = tl.load(x_ptr + i, mask=(i < n) & (i % 3 != 0), other=-5)
    tl.store(out_ptr + i, x * 2, mask=i % 2 == 0)


def test_masked_load_and_store():
    x, out = torch.arange(50), torch.full((64,), 9)
    masked_kernel[(2,)](x, out, 50, N=32)
    i = torch.arange(64)
    loaded = torch.where((i < 50) & (i % 3 != 0), i, -5)
    assert torch.equal(out, torch.where(i % 2 == 0, loaded * 2, 9))


@triton.jit
def strided_kernel(x_ptr, out_ptr, stride_m, stride_n, M: tl.constexpr, N: tl.constexpr):
    rows, columns = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    tl.store(out_ptr + rows * N + columns, tl.load(x_ptr + rows * stride_m + columns * stride_n))


@pytest.mark.parametrize("view", ["transposed", "stepped", "expanded", "offset"])
def test_strides(view):
    base = torch.randn(64, 64)
    x = {
        "transposed": base[:16, :8].T[:8, :8],
        "stepped": base[::4, ::8][:8, :8],
        "expanded": base[0, :8].expand(8, 8),
        "offset": base[13:21, 5:13],
    }[view]
    out = torch.zeros(8, 8)
    strided_kernel[(1,)](x, out, x.stride(0), x.stride(1), M=8, N=8)
    assert torch.equal(out, x)


@triton.jit
def backwards_kernel(x_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + (n - 1) - i, mask=i < n), mask=i < n)


def test_negative_stride():
    x, out = torch.arange(50), torch.zeros(50, dtype=torch.int64)
    backwards_kernel[(4,)](x, out, 50, N=16)
    assert torch.equal(out, x.flip(0))


@triton.jit
def row_gather_kernel(x_ptr, index_ptr, out_ptr, columns, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    source = tl.load(index_ptr + rows)
    j = tl.arange(0, BLOCK_N)
    x = tl.load(x_ptr + source[:, None] * columns + j[None, :], mask=j[None, :] < columns, other=0)
    tl.store(out_ptr + rows[:, None] * columns + j[None, :], x, mask=j[None, :] < columns)


def test_embedding_like_gather():
    table, index = torch.randn(100, 20), torch.randint(0, 100, (32,))
    out = torch.zeros(32, 20)
    row_gather_kernel[(4,)](table, index, out, 20, BLOCK_M=8, BLOCK_N=32)
    assert torch.equal(out, table[index])


@triton.jit
def pointer_table_kernel(table_ptr, out_ptr, N: tl.constexpr):
    i = tl.program_id(0)
    source = tl.load(table_ptr + i).to(tl.pointer_type(tl.float32))
    tl.store(out_ptr + i * N + tl.arange(0, N), tl.load(source + tl.arange(0, N)))


def test_table_of_pointers():
    rows = [torch.randn(16) for _ in range(5)]
    table, out = torch.tensor([r.data_ptr() for r in rows]), torch.zeros(5, 16)
    pointer_table_kernel[(5,)](table, out, N=16)
    assert torch.equal(out, torch.stack(rows))


@triton.jit
def pointer_difference_kernel(x_ptr, out_ptr):
    here = (x_ptr + 5).to(tl.int64)
    tl.store(out_ptr, here - x_ptr.to(tl.int64))
    tl.store(out_ptr + 1, tl.load(here.to(tl.pointer_type(tl.float64))).to(tl.int64))


def test_pointers_as_integers():
    x, out = torch.arange(8, dtype=torch.float64) * 3, torch.zeros(2, dtype=torch.int64)
    pointer_difference_kernel[(1,)](x, out)
    assert out.tolist() == [40, 15]


@triton.jit
def byte_view_kernel(x_ptr, out_ptr, N: tl.constexpr):
    """fp32 memory read as bytes and as int32, through pointers of another type."""
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr.to(tl.pointer_type(tl.int32)) + i))
    tl.store(out_ptr + N + i, tl.load(x_ptr.to(tl.pointer_type(tl.uint8)) + i * 4 + 3).to(tl.int32))


def test_pointers_of_another_type():
    x, out = torch.randn(16), torch.zeros(32, dtype=torch.int32)
    byte_view_kernel[(1,)](x, out, N=16)
    assert torch.equal(out[:16], x.view(torch.int32))
    assert torch.equal(out[16:], x.view(torch.uint8).reshape(16, 4)[:, 3].int())


@triton.jit
def in_place_kernel(x_ptr, n, N: tl.constexpr, STEPS: tl.constexpr):
    """A program reads again what it wrote before."""
    i = tl.program_id(0) * N + tl.arange(0, N)
    for _ in range(STEPS):
        tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n) * 2 + 1, mask=i < n)


def test_reading_back_own_stores():
    x = torch.arange(50)
    in_place_kernel[(4,)](x, 50, N=16, STEPS=3)
    assert torch.equal(x, torch.arange(50) * 8 + 7)


@triton.jit
def bool_kernel(x_ptr, flag_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    flag = tl.load(flag_ptr + i)
    tl.store(out_ptr + i, tl.where(flag, tl.load(x_ptr + i, mask=flag, other=0), -1))
    tl.store(flag_ptr + i, flag == 0)


def test_bool_memory():
    x, flag, out = torch.arange(16), torch.rand(16) > 0.5, torch.zeros(16, dtype=torch.int64)
    before = flag.clone()
    bool_kernel[(1,)](x, flag, out, N=16)
    assert torch.equal(out, torch.where(before, x, -1))
    assert torch.equal(flag, ~before)


if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 8):  # block pointers are gone after Triton 3.7

    @triton.jit
    def block_pointer_kernel(a_ptr, b_ptr, c_ptr, M, N, K, BLOCK: tl.constexpr):
        """Matrix product through block pointers, checked at every edge; ``b`` is read as a transposed block."""
        row, column = tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK
        a = tl.make_block_ptr(a_ptr, (M, K), (K, 1), (row, 0), (BLOCK, BLOCK), (1, 0))
        b = tl.make_block_ptr(b_ptr, (K, N), (1, K), (0, column), (BLOCK, BLOCK), (0, 1))
        c = tl.make_block_ptr(c_ptr, (M, N), (N, 1), (row, column), (BLOCK, BLOCK), (1, 0))
        total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
        for _ in range(0, K, BLOCK):
            left = tl.load(a, boundary_check=(0, 1), padding_option="zero")
            right = tl.load(b, boundary_check=(0, 1), padding_option="zero")
            total += tl.dot(left, right, input_precision="ieee")
            a = tl.advance(a, (0, BLOCK))
            b = tl.advance(b, (BLOCK, 0))
        tl.store(c, total, boundary_check=(0, 1))

    @pytest.mark.parametrize("shape", [(32, 32, 32), (40, 24, 50)])
    def test_block_pointers(shape):
        m, n, k = shape
        a, b = torch.randint(-8, 8, (m, k)).float(), torch.randint(-8, 8, (n, k)).float()
        c = torch.zeros(m, n)
        block_pointer_kernel[(triton.cdiv(m, 16), triton.cdiv(n, 16))](a, b, c, m, n, k, BLOCK=16)
        assert torch.equal(c, a @ b.T)

    @triton.jit
    def nan_padding_kernel(x_ptr, out_ptr, n, N: tl.constexpr):
        block = tl.make_block_ptr(x_ptr, (n,), (1,), (4,), (N,), (0,))
        tl.store(out_ptr + tl.arange(0, N), tl.load(block, boundary_check=(0,), padding_option="nan"))

    def test_block_pointer_nan_padding():
        x, out = torch.arange(10, dtype=torch.float32), torch.zeros(16)
        nan_padding_kernel[(1,)](x, out, 10, N=16)
        assert torch.equal(out[:6], x[4:])
        assert out[6:].isnan().all()


@triton.jit
def descriptor_copy_kernel(source, target, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    row, column = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N
    target.store([row, column], source.load([row, column]) * 2)


@pytest.mark.parametrize("shape", [(32, 32), (20, 24)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32])
def test_host_descriptors_clip_at_the_edges(shape, dtype):
    x = torch.randint(0, 100, shape).to(dtype)
    out = torch.zeros(shape[0] + 4, shape[1], dtype=dtype)
    source, target = TensorDescriptor.from_tensor(x, [16, 16]), TensorDescriptor.from_tensor(out[: shape[0]], [16, 16])
    descriptor_copy_kernel[(2, 2)](source, target, BLOCK_M=16, BLOCK_N=16)
    assert torch.equal(out[: shape[0]], x * 2)
    assert (out[shape[0] :] == 0).all()


def _to_tf32(x: torch.Tensor) -> torch.Tensor:
    """By arithmetic: the multiple of the last of 10 bits that is nearest, an even one where two are."""
    exact = x.double()
    step = torch.exp2(exact.abs().log2().floor() - 10)
    return torch.where(x.isfinite() & (x != 0), (exact / step).round() * step, exact).float()


@triton.jit
def gather_kernel(source, out_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + i[:, None] * BLOCK + i[None, :], source.gather(i, 0))


@ROUNDING
def test_a_host_descriptor_that_rounds_to_tf32():
    """One compiled kernel reads rounded and unrounded numbers, as its descriptor says."""
    x = torch.randn(16, 16) * torch.exp2(torch.randint(-30, 30, (16, 16)).float())
    x.view(torch.int32)[0, 4:8] = torch.tensor(
        [0x3F801000, 0x3F803000, -0x407FF001, -0x407F9000]
    )  # ties, and their neighbours
    x[0, :4] = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0])
    expected = _to_tf32(x)
    assert not torch.equal(expected.nan_to_num(), x.nan_to_num())
    for rounds in (True, False, True):
        out = torch.zeros(16, 16)
        source = TensorDescriptor.from_tensor(x, [16, 16], round_f32_to_tf32=rounds)
        descriptor_copy_kernel[(1, 1)](source, TensorDescriptor.from_tensor(out, [16, 16]), BLOCK_M=16, BLOCK_N=16)
        torch.testing.assert_close(out, (expected if rounds else x) * 2, rtol=0, atol=0, equal_nan=True)
        source = TensorDescriptor.from_tensor(x, [1, 16], round_f32_to_tf32=rounds)
        gather_kernel[(1,)](source, out, BLOCK=16)
        torch.testing.assert_close(out, expected if rounds else x, rtol=0, atol=0, equal_nan=True)


@triton.jit
def chosen_descriptor_kernel(a_ptr, b_ptr, out_ptr, which, M, N, BLOCK: tl.constexpr, PER_PROGRAM: tl.constexpr):
    a = tl.make_tensor_descriptor(a_ptr, shape=[M, M], strides=[M, 1], block_shape=[BLOCK, BLOCK])
    b = tl.make_tensor_descriptor(b_ptr, shape=[N, N], strides=[N, 1], block_shape=[BLOCK, BLOCK])
    chosen = a
    if (tl.program_id(0) if PER_PROGRAM else which) % 2 == 1:
        chosen = b
    row = tl.arange(0, BLOCK)
    tl.store(out_ptr + (tl.program_id(0) * BLOCK + row[:, None]) * BLOCK + row[None, :], chosen.load([0, 0]))


@pytest.mark.parametrize("per_program", [False, True])
def test_one_of_two_descriptors(per_program):
    """Of tensors with other shapes and strides, so that all of the descriptor is chosen."""
    a, b = torch.randn(12, 12), torch.randn(20, 20)
    padded = torch.zeros(16, 16)
    padded[:12, :12] = a
    for which in (0, 1):
        out = torch.zeros(3, 16, 16)
        chosen_descriptor_kernel[(3,)](a, b, out, which, 12, 20, BLOCK=16, PER_PROGRAM=per_program)
        for program in range(3):
            second = (program if per_program else which) % 2
            assert torch.equal(out[program], b[:16, :16] if second else padded)


@triton.jit
def descriptor_pad_kernel(x_ptr, out_ptr, M, N, row, column, BLOCK: tl.constexpr):
    descriptor = tl.make_tensor_descriptor(x_ptr, shape=[M, N], strides=[N, 1], block_shape=[BLOCK, BLOCK])
    tile = descriptor.load([row, column])
    tl.store(out_ptr + tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :], tile)


@pytest.fixture
def _workspace():
    triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8))


@pytest.mark.usefixtures("_workspace")
@pytest.mark.parametrize(("row", "column"), [(0, 0), (12, 20), (-3, -4), (16, 0), (-20, 0)])
def test_descriptor_loads_zero_outside(row, column):
    x = torch.randn(20, 24)
    out = torch.full((16, 16), 5.0)
    descriptor_pad_kernel[(1,)](x, out, 20, 24, row, column, BLOCK=16)
    padded = torch.zeros(20 + 64, 24 + 64)
    padded[32:52, 32:56] = x
    assert torch.equal(out, padded[32 + row : 48 + row, 32 + column : 48 + column])


@triton.jit
def descriptor_rank3_kernel(x_ptr, out_ptr, A, B, C, BA: tl.constexpr, BB: tl.constexpr, BC: tl.constexpr):
    source = tl.make_tensor_descriptor(x_ptr, shape=[A, B, C], strides=[B * C, C, 1], block_shape=[BA, BB, BC])
    target = tl.make_tensor_descriptor(out_ptr, shape=[A, B, C], strides=[B * C, C, 1], block_shape=[BA, BB, BC])
    a = tl.program_id(0) * BA
    for b in range(0, B, BB):
        target.store([a, b, 0], source.load([a, b, 0]) + 1)


@pytest.mark.usefixtures("_workspace")
def test_descriptor_of_rank_three():
    x = torch.randn(5, 6, 16)
    out = torch.zeros_like(x)
    descriptor_rank3_kernel[(3,)](x, out, 5, 6, 16, BA=2, BB=4, BC=16)
    assert torch.equal(out, x + 1)


@triton.jit
def descriptor_gather_kernel(x_ptr, index_ptr, out_ptr, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    rows = tl.load(index_ptr + tl.arange(0, BLOCK_M))
    source = tl.make_tensor_descriptor(x_ptr, shape=[M, N], strides=[N, 1], block_shape=[1, BLOCK_N])
    target = tl.make_tensor_descriptor(out_ptr, shape=[M, N], strides=[N, 1], block_shape=[1, BLOCK_N])
    tile = source.gather(rows, 8)
    target.scatter(tile * 10, rows, 8)


@pytest.mark.usefixtures("_workspace")
@pytest.mark.beyond_interpreter("gather and scatter are slow and differ")
def test_descriptor_gather_and_scatter():
    x, out = torch.randint(0, 100, (40, 32), dtype=torch.int32), torch.zeros((40, 32), dtype=torch.int32)
    rows = torch.randperm(40)[:16].to(torch.int32)
    descriptor_gather_kernel[(1,)](x, rows, out, 40, 32, BLOCK_M=16, BLOCK_N=16)
    expected = torch.zeros_like(x)
    expected[rows.long(), 8:24] = x[rows.long(), 8:24] * 10
    assert torch.equal(out, expected)


@triton.jit
def descriptor_reduce_kernel(x_ptr, sum_ptr, max_ptr, M, N, BLOCK: tl.constexpr):
    rows, columns = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    x = tl.load(x_ptr + (tl.program_id(0) * BLOCK + rows) * BLOCK + columns)
    total = tl.make_tensor_descriptor(sum_ptr, shape=[M, N], strides=[N, 1], block_shape=[BLOCK, BLOCK])
    largest = tl.make_tensor_descriptor(max_ptr, shape=[M, N], strides=[N, 1], block_shape=[BLOCK, BLOCK])
    total.atomic_add([0, 0], x)
    largest.atomic_max([0, 0], x)


@pytest.mark.usefixtures("_workspace")
@pytest.mark.beyond_interpreter("no descriptor reductions")
def test_descriptor_reductions_clip_too():
    x = torch.randint(-100, 100, (4, 16, 16), dtype=torch.int32)
    total, largest = torch.zeros(12, 8, dtype=torch.int32), torch.full((12, 8), -1000, dtype=torch.int32)
    descriptor_reduce_kernel[(4,)](x, total, largest, 12, 8, BLOCK=16)
    assert torch.equal(total, x.sum(0)[:12, :8].int())
    assert torch.equal(largest, x.amax(0)[:12, :8])


@triton.jit
def strided_descriptor_kernel(x_ptr, strides_ptr, out_ptr, N: tl.constexpr):
    """A descriptor whose row stride every program reads from memory."""
    pid = tl.program_id(0)
    stride = tl.load(strides_ptr + pid)
    block = tl.make_tensor_descriptor(x_ptr, [5, N - 2], [stride, 1], [4, N]).load([2, 0])
    i, j = tl.arange(0, 4)[:, None], tl.arange(0, N)[None, :]
    tl.store(out_ptr + (pid * 4 + i) * N + j, block)


def test_descriptor_strides_of_a_program():
    x, strides = torch.arange(400.0), torch.tensor([16, 32, 20])
    out = torch.full((3, 4, 16), -1.0)
    strided_descriptor_kernel[(3,)](x, strides, out, N=16)
    for got, stride in zip(out, strides.tolist(), strict=True):
        expected = torch.zeros(4, 16)
        expected[:3, :14] = x.as_strided((3, 14), (stride, 1), 2 * stride)
        assert torch.equal(got, expected)


@triton.jit
def either_descriptor_kernel(x_ptr, y_ptr, which_ptr, out_ptr, N: tl.constexpr):
    """Each program chooses one of two descriptors by a value that it reads."""
    pid = tl.program_id(0)
    if tl.load(which_ptr + pid) > 0:
        chosen = tl.make_tensor_descriptor(x_ptr, [N, N], [N, 1], [4, N])
    else:
        chosen = tl.make_tensor_descriptor(y_ptr, [N, N], [N, 1], [4, N])
    i, j = tl.arange(0, 4)[:, None], tl.arange(0, N)[None, :]
    tl.store(out_ptr + (pid * 4 + i) * N + j, chosen.load([4, 0]))


@pytest.mark.usefixtures("_workspace")
@pytest.mark.parametrize("which", [[1], [0], [1, 0, 0, 1]])
def test_a_descriptor_is_chosen(which):
    x, y, out = torch.randn(16, 16), torch.randn(16, 16), torch.full((len(which), 4, 16), -1.0)
    either_descriptor_kernel[(len(which),)](x, y, torch.tensor(which), out, N=16)
    for got, first in zip(out, which, strict=True):
        assert torch.equal(got, (x if first else y)[4:8])


@triton.jit
def ragged_double_kernel(source, target, first_ptr, size_ptr, BLOCK_M: tl.constexpr, N: tl.constexpr):
    """One batch per program: rows ``first`` to ``first + size``, and not one more."""
    first, size = tl.load(first_ptr + tl.program_id(0)), tl.load(size_ptr + tl.program_id(0))
    for row in range(0, size, BLOCK_M):
        x = load_ragged(source, first, size, [row, 0], ragged_dim=0)
        store_ragged(target, first, size, [row, 0], x * 2, ragged_dim=0)


def test_ragged_descriptors():
    """Their offsets wrap around at 64 bits, by design."""
    size = torch.tensor([5, 0, 17, 8, 1], dtype=torch.int32)
    first = torch.cumsum(size, 0, dtype=torch.int32) - size
    source, target = torch.randn(40, 32), torch.zeros(40, 32)
    block = [8, 32]
    ragged_double_kernel[(5,)](
        create_ragged_descriptor(source, block), create_ragged_descriptor(target, block), first, size, BLOCK_M=8, N=32
    )  # fmt: skip
    assert torch.equal(target[:31], 2 * source[:31])
    assert not target[31:].any()
