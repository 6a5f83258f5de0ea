"""Loads whose rows lie at irregular places: embeddings, pages, tables of pointers, with every kind of mask."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from kernbench import MemoryAccessError


@triton.jit
def gather_rows_kernel(
    table_ptr, index_ptr, out_ptr, n, d, stride,
    N: tl.constexpr, D: tl.constexpr, MASK: tl.constexpr, TRANSPOSED: tl.constexpr, SUMMED: tl.constexpr,
    OTHER: tl.constexpr = 7.0,
):  # fmt: skip
    row = tl.program_id(0) * N + tl.arange(0, N)
    column = tl.arange(0, D)
    index = tl.load(index_ptr + row, mask=row < n, other=0)
    if TRANSPOSED:
        index, row, column = index[None, :], row[None, :], column[:, None]
    else:
        index, row, column = index[:, None], row[:, None], column[None, :]
    if SUMMED:  # one integer sum: nothing tells rows from columns but its numbers
        pointer = table_ptr + (index * stride + column)
    else:
        pointer = table_ptr + index * stride + column
    if MASK == "rows":
        x = tl.load(pointer, mask=row < n, other=OTHER)
    elif MASK == "both":
        x = tl.load(pointer, mask=(row < n) & (column < d), other=OTHER)
    elif MASK == "odd":
        x = tl.load(pointer, mask=(row + column) % 3 == 1, other=OTHER)
    else:
        x = tl.load(pointer)
    tl.store(out_ptr + row * D + column, x, mask=row < n)


@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("mask", ["none", "rows", "both", "odd"])
def test_rows_of_a_table(mask, transposed, summed):
    n, d, N, D = 60, 40, 16, 64
    table = torch.randn(101, D)
    index = torch.randint(0, 100, (n,))
    out = torch.zeros(n, D)
    gather_rows_kernel[(4,)](table, index, out, n, d, D, N=N, D=D, MASK=mask, TRANSPOSED=transposed, SUMMED=summed)
    row, column = torch.arange(n)[:, None], torch.arange(D)[None, :]
    kept = {"both": column < d, "odd": (row + column) % 3 == 1}.get(mask, torch.tensor(True))
    assert torch.equal(out, torch.where(kept, table[index], 7.0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8, torch.float8_e4m3fn])
def test_rows_shorter_than_the_tile_end_with_the_tensor(dtype):
    """The last row's masked columns lie outside of the tensor."""
    d, D, n = 20, 32, 32
    table = (torch.randn(50, d) * 4).to(dtype)
    index = torch.randint(0, 50, (n,))
    index[5] = 49
    out = torch.zeros(n, D, dtype=dtype)
    other = 7.0 if dtype.is_floating_point else 7
    gather_rows_kernel[(2,)](
        table, index, out, n, d, d, N=16, D=D, MASK="both", TRANSPOSED=False, SUMMED=False, OTHER=other
    )  # fmt: skip
    assert torch.equal(out[:, :d].float(), table[index].float())
    assert (out[:, d:].float() == 7).all()


@pytest.mark.beyond_interpreter("does not check bounds")
def test_a_row_outside_is_named():
    table, out = torch.randn(50, 32), torch.zeros(16, 32)
    index = torch.randint(0, 50, (16,))
    index[3] = 50
    with pytest.raises(MemoryAccessError, match="table_ptr"):
        gather_rows_kernel[(1,)](
            table, index, out, 16, 32, 32, N=16, D=32, MASK="none", TRANSPOSED=False, SUMMED=True
        )  # fmt: skip


@triton.jit
def rows_of_pages_kernel(pages_ptr, out_ptr, N: tl.constexpr, D: tl.constexpr):
    i = tl.arange(0, N)
    page = tl.load(pages_ptr + i).to(tl.pointer_type(tl.float32))
    j = tl.arange(0, D)
    tl.store(out_ptr + i[:, None] * D + j[None, :], tl.load(page[:, None] + j[None, :]))


@pytest.mark.beyond_interpreter("does not follow addresses in memory")
@pytest.mark.parametrize("tensors", [1, 3])
def test_rows_at_addresses(tensors):
    """A table of addresses into one tensor, and into several."""
    pools = [torch.randn(8, 32) for _ in range(tensors)]
    rows = [pools[k % tensors][(3 * k) % 8] for k in range(16)]
    pages = torch.tensor([r.data_ptr() for r in rows])
    out = torch.zeros(16, 32)
    rows_of_pages_kernel[(1,)](pages, out, N=16, D=32)
    assert torch.equal(out, torch.stack(rows))


@triton.jit
def scatter_rows_kernel(source_ptr, index_ptr, table_ptr, n, d, N: tl.constexpr, D: tl.constexpr, MASK: tl.constexpr):
    row = tl.program_id(0) * N + tl.arange(0, N)
    column = tl.arange(0, D)
    index = tl.load(index_ptr + row, mask=row < n, other=0)
    x = tl.load(source_ptr + row[:, None] * D + column[None, :], mask=row[:, None] < n)
    pointer = table_ptr + (index[:, None] * D + column[None, :])
    if MASK == "rows":
        tl.store(pointer, x, mask=row[:, None] < n)
    elif MASK == "both":
        tl.store(pointer, x, mask=(row[:, None] < n) & (column[None, :] < d))
    else:
        tl.store(pointer, x, mask=(row[:, None] < n) & ((row[:, None] + column[None, :]) % 3 == 1))


@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mask", ["rows", "both", "odd"])
def test_rows_are_stored(mask, dtype, repeated):
    """Where a row comes twice the last one stays."""
    n, d, D = 60, 20, 32
    source, table = torch.randn(64, D).to(dtype), torch.randn(100, D).to(dtype)
    index = torch.randint(0, 30, (n,)) if repeated else torch.randperm(100)[:n]
    expected = table.clone()
    row, column = torch.arange(n)[:, None], torch.arange(D)[None, :]
    kept = {"rows": row >= 0, "both": column < d, "odd": (row + column) % 3 == 1}[mask].expand(n, D)
    for r in range(n):
        expected[index[r]] = torch.where(kept[r], source[r], expected[index[r]])
    scatter_rows_kernel[(4,)](source, index, table, n, d, N=16, D=D, MASK=mask)
    assert torch.equal(table, expected)


@pytest.mark.beyond_interpreter("does not check bounds")
def test_a_row_stored_outside_is_named():
    source, table = torch.randn(16, 32), torch.randn(50, 32)
    index = torch.randperm(50)[:16]
    index[3] = 50
    with pytest.raises(MemoryAccessError, match="table_ptr"):
        scatter_rows_kernel[(1,)](source, index, table, 16, 32, N=16, D=32, MASK="rows")
