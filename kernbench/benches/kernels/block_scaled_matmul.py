"""Matrix product of microscaling (MX) operands: 8- or 4-bit floats with one e8m0 scale per 32 elements along K."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

SCALE_BLOCK = 32
"""Elements that share one scale (OCP Microscaling Formats specification 1.0, section 5.2)."""


@triton.jit
def block_scaled_matmul_kernel(
    a_ptr, a_scale_ptr, b_ptr, b_scale_ptr, c_ptr, M, N, K,
    A_FORMAT: tl.constexpr, B_FORMAT: tl.constexpr, A_PACK: tl.constexpr, B_PACK: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """``c[M, N] = (a * a_scale) @ (b * b_scale)^T``; ``a[M, K / A_PACK]``, ``b[N, K / B_PACK]`` bytes, K a multiple of
    ``BLOCK_K``, scales ``[M, K / 32]`` and ``[N, K / 32]``. A pack of 2 is two e2m1 values per byte, low nibble first.
    """
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_ka = tl.arange(0, BLOCK_K // A_PACK)
    offs_kb = tl.arange(0, BLOCK_K // B_PACK)
    offs_ks = tl.arange(0, BLOCK_K // 32)
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        a_offsets = rows[:, None] * (K // A_PACK) + k // A_PACK + offs_ka[None, :]
        b_offsets = columns[None, :] * (K // B_PACK) + k // B_PACK + offs_kb[:, None]
        a = tl.load(a_ptr + a_offsets, mask=rows[:, None] < M)
        b = tl.load(b_ptr + b_offsets, mask=columns[None, :] < N)
        a_scale = tl.load(a_scale_ptr + rows[:, None] * (K // 32) + k // 32 + offs_ks[None, :], mask=rows[:, None] < M)
        b_scale = tl.load(
            b_scale_ptr + columns[:, None] * (K // 32) + k // 32 + offs_ks[None, :], mask=columns[:, None] < N
        )
        accumulator = tl.dot_scaled(a, a_scale, A_FORMAT, b, b_scale, B_FORMAT, accumulator)
    mask = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(c_ptr + rows[:, None] * N + columns[None, :], accumulator, mask=mask)


def block_scaled_matmul(
    a: torch.Tensor,
    a_scale: torch.Tensor,
    b: torch.Tensor,
    b_scale: torch.Tensor,
    *,
    formats: tuple[str, str] = ("e4m3", "e4m3"),
    tile: tuple[int, int, int] = (32, 32, 64),
) -> torch.Tensor:
    """fp32 ``[M, N]`` of MX operands ``a[M, K]``, ``b[N, K]`` in ``formats`` (``e4m3``, ``e5m2``, packed ``e2m1``)."""
    packs = [2 if f == "e2m1" else 1 for f in formats]
    m, n, k = a.shape[0], b.shape[0], a.shape[1] * packs[0]
    c = torch.empty((m, n), dtype=torch.float32, device=a.device)
    block_scaled_matmul_kernel[(triton.cdiv(m, tile[0]), triton.cdiv(n, tile[1]))](
        a, a_scale, b, b_scale, c, m, n, k, *formats, *packs, BLOCK_M=tile[0], BLOCK_N=tile[1], BLOCK_K=tile[2]
    )
    return c
