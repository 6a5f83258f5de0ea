"""Many small matrix products of different shapes in one launch, through tables of pointers in device memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl


@triton.jit
def grouped_gemm_kernel(
    a_table, b_table, c_table, sizes_ptr, strides_ptr, n_groups, PROGRAMS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """``PROGRAMS`` persistent programs share all tiles of all products, dealt round robin.

    Tables hold one address per product; ``sizes_ptr[g] = (M, N, K)``, ``strides_ptr[g] = (lda, ldb, ldc)``, int32.
    Sizes are multiples of the tile.
    """
    tile = tl.program_id(0)
    end = 0
    for g in range(n_groups):
        m = tl.load(sizes_ptr + g * 3)
        n = tl.load(sizes_ptr + g * 3 + 1)
        k = tl.load(sizes_ptr + g * 3 + 2)
        tiles_n = tl.cdiv(n, BLOCK_N)
        tiles = tl.cdiv(m, BLOCK_M) * tiles_n
        while tile >= end and tile < end + tiles:
            lda = tl.load(strides_ptr + g * 3)
            ldb = tl.load(strides_ptr + g * 3 + 1)
            ldc = tl.load(strides_ptr + g * 3 + 2)
            a_ptr = tl.load(a_table + g).to(tl.pointer_type(tl.float16))
            b_ptr = tl.load(b_table + g).to(tl.pointer_type(tl.float16))
            c_ptr = tl.load(c_table + g).to(tl.pointer_type(tl.float16))
            local = tile - end
            offs_m = (local // tiles_n) * BLOCK_M + tl.arange(0, BLOCK_M)
            offs_n = (local % tiles_n) * BLOCK_N + tl.arange(0, BLOCK_N)
            offs_k = tl.arange(0, BLOCK_K)
            a_ptrs = a_ptr + offs_m[:, None] * lda + offs_k[None, :]
            b_ptrs = b_ptr + offs_k[:, None] * ldb + offs_n[None, :]
            accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
            for _ in range(tl.cdiv(k, BLOCK_K)):
                tl.multiple_of(a_ptrs, [16, 16])
                tl.multiple_of(b_ptrs, [16, 16])
                accumulator += tl.dot(tl.load(a_ptrs), tl.load(b_ptrs))
                a_ptrs += BLOCK_K
                b_ptrs += BLOCK_K * ldb
            tl.store(c_ptr + offs_m[:, None] * ldc + offs_n[None, :], accumulator.to(tl.float16))
            tile += PROGRAMS
        end += tiles


def grouped_gemm(
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], programs: int = 8, tile: tuple[int, int, int] = (32, 32, 32)
) -> list[torch.Tensor]:
    """fp16 products ``a @ b`` of all ``pairs``; every size a multiple of its ``tile`` size."""
    outs = [torch.empty((a.shape[0], b.shape[1]), dtype=a.dtype, device=a.device) for a, b in pairs]
    device = outs[0].device

    def table(rows, dtype):
        return torch.tensor(rows, dtype=dtype, device=device)

    grouped_gemm_kernel[(programs,)](
        table([a.data_ptr() for a, _ in pairs], torch.int64),
        table([b.data_ptr() for _, b in pairs], torch.int64),
        table([c.data_ptr() for c in outs], torch.int64),
        table([(a.shape[0], b.shape[1], a.shape[1]) for a, b in pairs], torch.int32),
        table([(a.stride(0), b.stride(0), c.stride(0)) for (a, b), c in zip(pairs, outs, strict=True)], torch.int32),
        len(pairs),
        PROGRAMS=programs,
        BLOCK_M=tile[0],
        BLOCK_N=tile[1],
        BLOCK_K=tile[2],
    )
    return outs
