"""Matrix product by a few persistent programs, through tensor descriptors (made on the host or in the kernel)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def _tile_position(tile, tiles_m, tiles_per_group, GROUP_M: tl.constexpr):
    first_m = (tile // tiles_per_group) * GROUP_M
    rows = min(tiles_m - first_m, GROUP_M)
    return first_m + (tile % tiles_per_group) % rows, (tile % tiles_per_group) // rows


@triton.jit
def _persistent_loop(
    a_desc, b_desc, c_desc, M, N, K, out_dtype: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """Tiles ``program_id, program_id + num_programs, ...``: descriptors clip at the edges, so no masks are needed."""
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    steps = tl.cdiv(K, BLOCK_K)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=True):
        pid_m, pid_n = _tile_position(tile, tiles_m, GROUP_M * tiles_n, GROUP_M)
        row, column = pid_m * BLOCK_M, pid_n * BLOCK_N
        accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for step in range(steps):
            a = a_desc.load([row, step * BLOCK_K])
            b = b_desc.load([column, step * BLOCK_K])
            accumulator = tl.dot(a, b.T, accumulator)
        c_desc.store([row, column], accumulator.to(out_dtype))


@triton.jit
def host_descriptor_kernel(
    a_desc, b_desc, c_desc, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """``c[M, N] = a[M, K] @ b[N, K]^T`` with descriptors passed as arguments."""
    _persistent_loop(a_desc, b_desc, c_desc, M, N, K, c_desc.dtype, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M)


@triton.jit
def device_descriptor_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """The same with descriptors made in the kernel, in workspace from ``triton.set_allocator``."""
    a_desc = tl.make_tensor_descriptor(a_ptr, shape=[M, K], strides=[K, 1], block_shape=[BLOCK_M, BLOCK_K])
    b_desc = tl.make_tensor_descriptor(b_ptr, shape=[N, K], strides=[K, 1], block_shape=[BLOCK_N, BLOCK_K])
    c_desc = tl.make_tensor_descriptor(c_ptr, shape=[M, N], strides=[N, 1], block_shape=[BLOCK_M, BLOCK_N])
    _persistent_loop(a_desc, b_desc, c_desc, M, N, K, c_ptr.dtype.element_ty, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M)


def persistent_matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    programs: int = 4,
    tile: tuple[int, int, int] = (32, 32, 32),
    descriptors: str = "host",
) -> torch.Tensor:
    """``a[M, K] @ b[N, K]^T``; ``descriptors`` = ``"host"`` or ``"device"``. Rows are multiples of 16 bytes."""
    (m, k), n = a.shape, b.shape[0]
    block_m, block_n, block_k = tile
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    meta = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "GROUP_M": 4}
    if descriptors == "host":
        host_descriptor_kernel[(programs,)](
            TensorDescriptor.from_tensor(a, [block_m, block_k]),
            TensorDescriptor.from_tensor(b, [block_n, block_k]),
            TensorDescriptor.from_tensor(c, [block_m, block_n]),
            m, n, k, **meta,
        )  # fmt: skip
    else:
        triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device=a.device))
        device_descriptor_kernel[(programs,)](a, b, c, m, n, k, **meta)
    return c
