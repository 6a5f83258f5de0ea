"""Matrix products inside kernels: element types, accumulators, batches, precision modes, scaled formats."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from kernbench.benches.kernels.block_scaled_matmul import block_scaled_matmul


@triton.jit
def dot_kernel(
    a_ptr, b_ptr, c_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr, OUT: tl.constexpr
):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(a_ptr + m[:, None] * K + k[None, :])
    b = tl.load(b_ptr + k[:, None] * N + n[None, :])
    c = tl.dot(a, b, input_precision=PRECISION, out_dtype=OUT)
    tl.store(c_ptr + m[:, None] * N + n[None, :], c)


EXACT = [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8]


@pytest.mark.parametrize("dtype", EXACT)
@pytest.mark.beyond_interpreter("bf16 and fp8 operands are raw bits")
def test_products_of_small_integers_are_exact(dtype):
    """Integers that every format holds: any accumulation order gives the same sum."""
    a, b = torch.randint(-4, 5, (32, 64)), torch.randint(-4, 5, (64, 16))
    integer = dtype == torch.int8
    c = torch.zeros(32, 16, dtype=torch.int32 if integer else torch.float32)
    out = tl.int32 if integer else tl.float32
    dot_kernel[(1,)](a.to(dtype), b.to(dtype), c, M=32, N=16, K=64, PRECISION="ieee", OUT=out)
    assert torch.equal(c.long(), a @ b)


def test_int8_products_use_the_whole_range():
    a, b = torch.randint(-128, 128, (32, 64), dtype=torch.int8), torch.randint(-128, 128, (64, 32), dtype=torch.int8)
    c = torch.zeros(32, 32, dtype=torch.int32)
    dot_kernel[(1,)](a, b, c, M=32, N=32, K=64, PRECISION="ieee", OUT=tl.int32)
    assert torch.equal(c.long(), a.long() @ b.long())


@pytest.mark.parametrize(("precision", "tolerance"), [("ieee", 1e-6), ("tf32", 2e-3), ("tf32x3", 1e-5)])
def test_fp32_precision_modes(precision, tolerance):
    a, b = torch.randn(32, 64), torch.randn(64, 32)
    c = torch.zeros(32, 32)
    dot_kernel[(1,)](a, b, c, M=32, N=32, K=64, PRECISION=precision, OUT=tl.float32)
    exact = a.double() @ b.double()
    assert (c - exact).abs().max() <= tolerance * exact.abs().max()


@pytest.mark.beyond_interpreter("computes tf32 products in fp32")
def test_tf32_drops_low_mantissa_bits():
    """1 + 2^-12 is not a tf32 number: one product tells whether operands were narrowed."""
    a = torch.zeros(16, 16)
    a[0, 0] = 1 + 2.0**-12
    b = torch.eye(16)
    c = torch.zeros(16, 16)
    dot_kernel[(1,)](a, b, c, M=16, N=16, K=16, PRECISION="tf32", OUT=tl.float32)
    assert c[0, 0] in (1.0, 1 + 2.0**-12)
    dot_kernel[(1,)](a, b, c, M=16, N=16, K=16, PRECISION="ieee", OUT=tl.float32)
    assert c[0, 0] == 1 + 2.0**-12


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_fp16_accumulator(dtype):
    a, b = torch.randint(-4, 5, (16, 32)), torch.randint(-4, 5, (32, 16))
    c = torch.zeros(16, 16, dtype=dtype)
    out = tl.float16 if dtype == torch.float16 else tl.float32
    dot_kernel[(1,)](a.half(), b.half(), c, M=16, N=16, K=32, PRECISION="ieee", OUT=out)
    assert torch.equal(c.long(), a @ b)


@triton.jit
def batched_kernel(a_ptr, b_ptr, c_ptr, B: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    batch = tl.arange(0, B)[:, None, None]
    m, n = tl.arange(0, M), tl.arange(0, N)
    a = tl.load(a_ptr + (batch * M + m[None, :, None]) * K + tl.arange(0, K)[None, None, :])
    b = tl.load(b_ptr + (batch * K + tl.arange(0, K)[None, :, None]) * N + n[None, None, :])
    c = tl.dot(a, b, input_precision="ieee")
    tl.store(c_ptr + (batch * M + m[None, :, None]) * N + n[None, None, :], c)


def test_batched_dot():
    a, b = torch.randint(-9, 9, (4, 16, 32)).float(), torch.randint(-9, 9, (4, 32, 16)).float()
    c = torch.zeros(4, 16, 16)
    batched_kernel[(1,)](a, b, c, B=4, M=16, N=16, K=32)
    assert torch.equal(c, a @ b)


@triton.jit
def chained_kernel(a_ptr, b_ptr, c_ptr, out_ptr, start, N: tl.constexpr):
    offsets = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    a, b, c = tl.load(a_ptr + offsets), tl.load(b_ptr + offsets), tl.load(c_ptr + offsets)
    acc = tl.full((N, N), 1.0, tl.float32) * start
    acc = tl.dot(a, tl.trans(b), acc, input_precision="ieee")
    tl.store(out_ptr + offsets, tl.dot(acc, c, input_precision="ieee", max_num_imprecise_acc=0))


def test_dot_of_a_dot_and_an_accumulator():
    a, b, c = (torch.randint(-3, 4, (16, 16)).float() for _ in range(3))
    out = torch.zeros(16, 16)
    chained_kernel[(1,)](a, b, c, out, 2.0, N=16)
    assert torch.equal(out, (a @ b.T + 2) @ c)


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
"""Values of the 4-bit float of the OCP Microscaling specification, by code."""


def decode(x: torch.Tensor, scale: torch.Tensor, kind: str) -> torch.Tensor:
    """MX bytes and e8m0 scales to float64."""
    if kind == "e2m1":
        values = E2M1[torch.stack([x & 15, x >> 4], -1).flatten(1).long()]
    else:
        values = x.view({"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}[kind]).float()
    return values.double() * torch.exp2(scale.double() - 127).repeat_interleave(32, 1)


def mx_operand(rows: int, k: int, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Random finite bytes of the format, ``[rows, k]`` or packed, and their scales ``[rows, k / 32]``."""
    if kind == "e2m1":
        x = torch.randint(0, 256, (rows, k // 2), dtype=torch.uint8)
    else:
        limit = 0x7E if kind == "e4m3" else 0x7B
        x = torch.randint(0, limit, (rows, k), dtype=torch.uint8) | (
            torch.randint(0, 2, (rows, k), dtype=torch.uint8) << 7
        )
    return x, torch.randint(120, 134, (rows, k // 32), dtype=torch.uint8)


@pytest.mark.beyond_interpreter("cannot be called with formats as constexpr")
@pytest.mark.parametrize(
    "formats", [("e4m3", "e4m3"), ("e5m2", "e4m3"), ("e2m1", "e2m1"), ("e4m3", "e2m1")], ids="-".join
)
def test_block_scaled_product(formats):
    (a, a_scale), (b, b_scale) = mx_operand(48, 128, formats[0]), mx_operand(40, 128, formats[1])
    c = block_scaled_matmul(a, a_scale, b, b_scale, formats=formats)
    left, right = decode(a, a_scale, formats[0]), decode(b, b_scale, formats[1])
    magnitude = left.abs() @ right.abs().T
    assert ((c - left @ right.T).abs() <= 1e-5 * magnitude).all()


@triton.jit
def one_sided_scale_kernel(a_ptr, b_ptr, scale_ptr, c_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(a_ptr + m[:, None] * K + k[None, :])
    b = tl.load(b_ptr + n[None, :] * K + k[:, None])
    scale = tl.load(scale_ptr + n[:, None] * (K // 32) + tl.arange(0, K // 32)[None, :])
    c = tl.dot_scaled(a, None, "bf16", b, scale, "e4m3")
    tl.store(c_ptr + m[:, None] * N + n[None, :], c)


@pytest.mark.beyond_interpreter("cannot be called with formats as constexpr")
def test_bf16_times_scaled_weights():
    a = torch.randn(16, 64).bfloat16()
    b, scale = mx_operand(32, 64, "e4m3")
    c = torch.zeros(16, 32)
    one_sided_scale_kernel[(1,)](a, b, scale, c, M=16, N=32, K=64)
    right = decode(b, scale, "e4m3")
    magnitude = a.double().abs() @ right.abs().T
    assert ((c - a.double() @ right.T).abs() <= 2e-3 * magnitude).all()
