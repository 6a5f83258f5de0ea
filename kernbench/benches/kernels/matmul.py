"""Tiled matrix product with grouped program order, any shape and strides, and an activation in the epilogue."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def leaky_relu(x):
    return tl.where(x >= 0, x, 0.01 * x)


@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    ACTIVATION: tl.constexpr, INPUT_PRECISION: tl.constexpr,
):  # fmt: skip
    """``c[M, N] = activation(a[M, K] @ b[K, N])``, accumulated in fp32.

    Programs that run together share rows of ``a`` and columns of ``b``: ``GROUP_M`` rows of tiles are walked column by
    column. Row and column offsets wrap around (``% M``), so only the K edge and the store need masks.
    """
    pid = tl.program_id(axis=0)
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    tiles_per_group = GROUP_M * tiles_n
    first_m = (pid // tiles_per_group) * GROUP_M
    group_rows = min(tiles_m - first_m, GROUP_M)
    pid_m = first_m + (pid % tiles_per_group) % group_rows
    pid_n = (pid % tiles_per_group) // group_rows

    offs_m = (pid_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    offs_n = (pid_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak
    b_ptrs = b_ptr + offs_k[:, None] * stride_bk + offs_n[None, :] * stride_bn
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(tl.cdiv(K, BLOCK_K)):
        a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k * BLOCK_K, other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k * BLOCK_K, other=0.0)
        accumulator = tl.dot(a, b, accumulator, input_precision=INPUT_PRECISION)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    if ACTIVATION == "leaky_relu":
        accumulator = leaky_relu(accumulator)
    c = accumulator.to(c_ptr.dtype.element_ty)

    offs_m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = (offs_m[:, None] < M) & (offs_n[None, :] < N)
    tl.store(c_ptr + offs_m[:, None] * stride_cm + offs_n[None, :] * stride_cn, c, mask=mask)


def _launch(kernel, a: torch.Tensor, b: torch.Tensor, out_dtype, **options) -> torch.Tensor:
    (m, k), (_, n) = a.shape, b.shape
    c = torch.empty((m, n), dtype=out_dtype or a.dtype, device=a.device)

    def grid(meta):
        return (triton.cdiv(m, meta["BLOCK_M"]) * triton.cdiv(n, meta["BLOCK_N"]),)

    kernel[grid](a, b, c, m, n, k, *a.stride(), *b.stride(), *c.stride(), **options)
    return c


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    tile: tuple[int, int, int] = (64, 64, 32),
    group_m: int = 8,
    activation: str = "",
    input_precision: str = "ieee",
    out_dtype: torch.dtype | None = None,
    **options,
) -> torch.Tensor:
    """``a[M, K] @ b[K, N]`` with ``tile`` = (M, N, K) sizes; ``options`` go to the launch (``num_warps``, ...)."""
    block_m, block_n, block_k = tile
    return _launch(
        matmul_kernel, a, b, out_dtype, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, GROUP_M=group_m,
        ACTIVATION=activation, INPUT_PRECISION=input_precision, **options,
    )  # fmt: skip


def _config(m: int, n: int, k: int, warps: int) -> triton.Config:
    return triton.Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP_M": 8}, num_warps=warps, num_stages=3)


autotuned_kernel = triton.autotune(
    configs=[_config(32, 32, 32, 4), _config(64, 64, 32, 4), _config(128, 64, 32, 8)], key=["M", "N", "K"]
)(matmul_kernel)


def matmul_autotuned(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The same product with the tile chosen by Triton's autotuner, once per (M, N, K)."""
    return _launch(autotuned_kernel, a, b, None, ACTIVATION="", INPUT_PRECISION="ieee")
