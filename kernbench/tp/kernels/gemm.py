"""The matrix product of the layers: one Triton kernel for the forward and for both gradients.

``C[M, N] = activation(A[M, K] @ B[K, N] + bias[N])`` for any shape and any strides, so the three products of a linear
layer, ``X W^T``, ``dY W`` and ``dY^T X``, are the same kernel with other strides. Sums are in fp32; fp32 operands are
multiplied exactly (``ieee``) unless ``torch.backends.cuda.matmul.allow_tf32`` says otherwise.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernbench.tp.errors import PartitionError
from kernbench.tp.kernels.activations import activate, activation_grad_kernel, check_activation
from kernbench.tp.kernels.target import ready, target_device
from kernbench.tp.kernels.tiles import choose_tile

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_ELEMENTWISE_BLOCK = 1024


@triton.jit
def gemm_kernel(
    a_ptr, b_ptr, c_ptr, bias_ptr, pre_ptr, M, N, K,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, EVEN_K: tl.constexpr,
    HAS_BIAS: tl.constexpr, ACTIVATION: tl.constexpr, SAVE_PRE: tl.constexpr, INPUT_PRECISION: tl.constexpr,
):  # fmt: skip
    """One program per tile of C. Programs that run together share rows of A and columns of B: ``GROUP_M`` rows of tiles
    are walked column by column. With ``SAVE_PRE`` what the activation is applied to goes to ``pre_ptr``, laid out as C.
    """
    pid = tl.program_id(0)
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    tiles_per_group = GROUP_M * tiles_n
    first_m = (pid // tiles_per_group) * GROUP_M
    group_rows = min(tiles_m - first_m, GROUP_M)
    row = (first_m + (pid % tiles_per_group) % group_rows) * BLOCK_M
    column = ((pid % tiles_per_group) // group_rows) * BLOCK_N

    rows = row + tl.arange(0, BLOCK_M)
    columns = column + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    # the tile's corner in 64 bits, offsets inside the tile in 32
    a_ptrs = (
        a_ptr + row.to(tl.int64) * stride_am + (tl.arange(0, BLOCK_M)[:, None] * stride_am + inner[None, :] * stride_ak)
    )
    b_ptrs = (
        b_ptr
        + column.to(tl.int64) * stride_bn
        + (inner[:, None] * stride_bk + tl.arange(0, BLOCK_N)[None, :] * stride_bn)
    )
    a_mask = rows[:, None] < M
    b_mask = columns[None, :] < N
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        if EVEN_K:
            a = tl.load(a_ptrs, mask=a_mask, other=0.0)
            b = tl.load(b_ptrs, mask=b_mask, other=0.0)
        else:
            a = tl.load(a_ptrs, mask=a_mask & (inner[None, :] < K - k), other=0.0)
            b = tl.load(b_ptrs, mask=b_mask & (inner[:, None] < K - k), other=0.0)
        total = tl.dot(a, b, total, input_precision=INPUT_PRECISION)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk

    if HAS_BIAS:
        total += tl.load(bias_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)[None, :]
    mask = (rows[:, None] < M) & (columns[None, :] < N)
    corner = row.to(tl.int64) * stride_cm + column.to(tl.int64) * stride_cn
    offsets = corner + (tl.arange(0, BLOCK_M)[:, None] * stride_cm + tl.arange(0, BLOCK_N)[None, :] * stride_cn)
    if SAVE_PRE:
        tl.store(pre_ptr + offsets, total.to(pre_ptr.dtype.element_ty), mask=mask)
    total = activate(total, ACTIVATION)
    tl.store(c_ptr + offsets, total.to(c_ptr.dtype.element_ty), mask=mask)


def gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    pre_activation: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """``activation(a @ b + bias)`` by the Triton kernel.

    Args:
        a: ``[M, K]``, any strides; fp32, fp16 or bf16.
        b: ``[K, N]``, any strides, same dtype.
        bias: ``[N]``.
        activation: one of :data:`~kernbench.tp.kernels.activations.ACTIVATIONS`.
        pre_activation: ``[M, N]`` with the strides of the result; receives ``a @ b + bias``.
        out: ``[M, N]``, where the result goes; default: fresh memory of ``a``'s dtype.

    Raises:
        PartitionError: shapes do not fit, or a dtype is not supported.
    """
    _check(a, b, bias)
    (rows, inner), columns = a.shape, b.shape[1]
    c = a.new_empty((rows, columns)) if out is None else out
    if pre_activation is not None and (pre_activation.shape != c.shape or pre_activation.stride() != c.stride()):
        raise PartitionError(f"gemm: pre_activation is {tuple(pre_activation.shape)}, the result {tuple(c.shape)}")
    if rows == 0 or columns == 0:
        return c
    device = target_device(a)
    tile = choose_tile(rows, columns, inner, a.dtype, device)
    ready(a)
    grid = (triton.cdiv(rows, tile.m) * triton.cdiv(columns, tile.n),)
    gemm_kernel[grid](
        a, b, c, c if bias is None else bias, c if pre_activation is None else pre_activation, rows, columns, inner,
        *a.stride(), *b.stride(), *c.stride(),
        BLOCK_M=tile.m, BLOCK_N=tile.n, BLOCK_K=tile.k, GROUP_M=tile.group, EVEN_K=inner % tile.k == 0,
        HAS_BIAS=bias is not None, ACTIVATION=check_activation(activation), SAVE_PRE=pre_activation is not None,
        INPUT_PRECISION="tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee",
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return c


def _check(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None) -> None:
    shapes = f"a {tuple(a.shape)} {a.dtype}, b {tuple(b.shape)} {b.dtype}" + (
        "" if bias is None else f", bias {tuple(bias.shape)}"
    )
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0] or (bias is not None and bias.shape != b.shape[1:]):
        raise PartitionError(f"gemm: expected a [M, K], b [K, N], bias [N]; found {shapes}")
    if a.dtype != b.dtype or a.dtype not in DTYPES:
        raise PartitionError(f"gemm: expected one dtype of {', '.join(map(str, DTYPES))}; found {shapes}")


def activation_grad(grad: torch.Tensor, pre_activation: torch.Tensor, activation: str) -> torch.Tensor:
    """``grad * activation'(pre_activation)``, elementwise; both contiguous, same shape."""
    out = torch.empty_like(grad)
    ready(grad)
    activation_grad_kernel[(triton.cdiv(grad.numel(), _ELEMENTWISE_BLOCK),)](
        grad, pre_activation, out, grad.numel(), BLOCK=_ELEMENTWISE_BLOCK, ACTIVATION=check_activation(activation)
    )
    return out
