"""Kernels of Triton, as its users write them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from kernbench.programs.gpu_steps.program import Step, TimedProgram

FP16, FP32, FP8 = torch.float16, torch.float32, torch.float8_e4m3fn
SHORT = {FP16: "fp16", FP32: "tf32", FP8: "fp8"}


class TiledProduct(NamedTuple):
    """Sizes M, N and K, a tile of them with its warps, and whether the right operand lies in memory as its transpose does."""

    shape: tuple[int, int, int]
    dtype: torch.dtype
    tile: tuple[int, ...]
    turned: bool


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask=mask) + tl.load(y + offsets, mask=mask), mask=mask)


@triton.jit
def softmax_kernel(x, out, stride, n, BLOCK: tl.constexpr):
    row, columns = tl.program_id(0), tl.arange(0, BLOCK)
    mask = columns < n
    values = tl.load(x + row * stride + columns, mask=mask, other=-float("inf")).to(tl.float32)
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * stride + columns, powers / tl.sum(powers, axis=0), mask=mask)


@triton.jit
def norm_kernel(x, weight, bias, out, stride, n, BLOCK: tl.constexpr):
    row, columns = tl.program_id(0), tl.arange(0, BLOCK)
    mask = columns < n
    values = tl.load(x + row * stride + columns, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(values, axis=0) / n
    centred = tl.where(mask, values - mean, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, axis=0) / n + 1e-5)
    result = centred * scale * tl.load(weight + columns, mask=mask) + tl.load(bias + columns, mask=mask)
    tl.store(out + row * stride + columns, result, mask=mask)


@triton.jit
def product_kernel(
    a, b, c, M, N, K, sam, sak, sbk, sbn, scm, scn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    across = tl.cdiv(N, BN)
    per_group = GROUP * across
    first = pid // per_group * GROUP
    high = min(tl.cdiv(M, BM) - first, GROUP)
    row, column = first + pid % per_group % high, pid % per_group // high
    m, n, k = row * BM + tl.arange(0, BM), column * BN + tl.arange(0, BN), tl.arange(0, BK)
    left = a + (m % M)[:, None] * sam + k[None, :] * sak
    right = b + k[:, None] * sbk + (n % N)[None, :] * sbn
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for step in range(tl.cdiv(K, BK)):
        x = tl.load(left, mask=k[None, :] < K - step * BK, other=0.0)
        y = tl.load(right, mask=k[:, None] < K - step * BK, other=0.0)
        total = tl.dot(x, y, total)
        left += BK * sak
        right += BK * sbk
    inside = (m[:, None] < M) & (n[None, :] < N)
    tl.store(c + m[:, None] * scm + n[None, :] * scn, total.to(c.dtype.element_ty), mask=inside)


@triton.jit
def attention_kernel(
    q, k, v, out, scale, head, row, length,
    BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    block, which = tl.program_id(0), tl.program_id(1)
    m, d = block * BM + tl.arange(0, BM), tl.arange(0, D)
    query = tl.load(q + which * head + m[:, None] * row + d[None, :])
    most, total, result = (
        tl.full((BM,), -float("inf"), tl.float32),
        tl.zeros((BM,), tl.float32),
        tl.zeros((BM, D), tl.float32),
    )
    end = (block + 1) * BM if CAUSAL else length
    for start in range(0, end, BN):
        n = start + tl.arange(0, BN)
        keys = tl.load(k + which * head + n[None, :] * row + d[:, None])
        scores = tl.dot(query, keys) * scale
        if CAUSAL:
            scores = tl.where(m[:, None] >= n[None, :], scores, -float("inf"))
        now = tl.maximum(most, tl.max(scores, axis=1))
        powers, kept = tl.exp2(scores - now[:, None]), tl.exp2(most - now)
        total = total * kept + tl.sum(powers, axis=1)
        values = tl.load(v + which * head + n[:, None] * row + d[None, :])
        result = tl.dot(powers.to(values.dtype), values, result * kept[:, None])
        most = now
    tl.store(out + which * head + m[:, None] * row + d[None, :], (result / total[:, None]).to(out.dtype.element_ty))


@triton.jit
def gemv_kernel(w, x, out, N, K, BN: tl.constexpr, BK: tl.constexpr):
    n, total = tl.program_id(0) * BN + tl.arange(0, BN), tl.zeros((BN,), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        total += tl.sum(
            tl.load(w + n[:, None] * K + k[None, :]).to(tl.float32) * tl.load(x + k)[None, :].to(tl.float32), axis=1
        )
    tl.store(out + n, total.to(out.dtype.element_ty))


@triton.jit
def histogram_kernel(x, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out + tl.load(x + offsets, mask=offsets < n, other=0), 1, mask=offsets < n)


@triton.jit
def transpose_kernel(x, out, M, N, BM: tl.constexpr, BN: tl.constexpr):
    m, n = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    tl.store(out + n[:, None] * M + m[None, :], tl.trans(tl.load(x + m[:, None] * N + n[None, :])))


@triton.jit
def int8_kernel(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n, k = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN), tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=tl.int32)
    for start in range(0, K, BK):
        x = tl.load(a + m[:, None] * K + start + k[None, :])
        y = tl.load(b + n[None, :] * K + start + k[:, None])
        total += tl.dot(x, y)
    tl.store(c + m[:, None] * N + n[None, :], total)


def add(n: int) -> Step:
    x, y, out = (torch.rand(n, device="cuda") for _ in range(3))
    return lambda: add_kernel[(triton.cdiv(n, 1024),)](x, y, out, n, BLOCK=1024)


def softmax(rows: int, n: int) -> Step:
    x = torch.randn(rows, n, device="cuda")
    out, block = torch.empty_like(x), triton.next_power_of_2(n)
    return lambda: softmax_kernel[(rows,)](x, out, n, n, BLOCK=block, num_warps=8)


def norm(rows: int, n: int, dtype: torch.dtype) -> Step:
    x, weight, bias = (torch.randn(*shape, n, device="cuda", dtype=dtype) for shape in ((rows,), (), ()))
    out, block = torch.empty_like(x), triton.next_power_of_2(n)
    return lambda: norm_kernel[(rows,)](x, weight, bias, out, n, n, BLOCK=block, num_warps=8)


def product(M: int, N: int, K: int, dtype: torch.dtype, tile: tuple[int, ...], turned: bool) -> Step:
    """``tile``: BM, BN, BK and warps; ``turned``: the right operand lies in memory as its transpose does."""
    a, b = torch.randn(M, K, device="cuda").to(dtype), torch.randn(K, N, device="cuda").to(dtype)
    b = b.t().contiguous().t() if turned else b
    BM, BN, BK, warps = tile
    c = torch.empty(M, N, device="cuda", dtype=torch.float32 if dtype.itemsize == 4 else torch.float16)
    grid = (triton.cdiv(M, BM) * triton.cdiv(N, BN),)
    return lambda: product_kernel[grid](
        a,
        b,
        c,
        M,
        N,
        K,
        *a.stride(),
        *b.stride(),
        *c.stride(),
        BM=BM,
        BN=BN,
        BK=BK,
        GROUP=8,
        num_warps=warps,
        num_stages=3,
    )


@triton.jit
def add_up_kernel(x, out, n, distinct, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out + offsets % distinct, tl.load(x + offsets, mask=offsets < n), mask=offsets < n)


def add_up(n: int, distinct: int, dtype: torch.dtype) -> Step:
    x, out = torch.rand(n, device="cuda").to(dtype), torch.zeros(distinct, device="cuda", dtype=dtype)
    return lambda: add_up_kernel[(triton.cdiv(n, 1024),)](x, out, n, distinct, BLOCK=1024)


def attention(heads: int, length: int, width: int, causal: bool) -> Step:
    q, k, v, out = (torch.randn(heads, length, width, device="cuda", dtype=torch.float16) for _ in range(4))
    scale = width**-0.5 * 1.44269504
    return lambda: attention_kernel[(length // 128, heads)](
        q,
        k,
        v,
        out,
        scale,
        length * width,
        width,
        length,
        BM=128,
        BN=64,
        D=width,
        CAUSAL=causal,
        num_warps=4,
        num_stages=3,
    )


def gemv(N: int, K: int) -> Step:
    w, x = torch.randn(N, K, device="cuda", dtype=torch.float16), torch.randn(K, device="cuda", dtype=torch.float16)
    out = torch.empty(N, device="cuda", dtype=torch.float16)
    return lambda: gemv_kernel[(N // 16,)](w, x, out, N, K, BN=16, BK=512)


def histogram(n: int, bins: int) -> Step:
    x, out = torch.randint(bins, (n,), device="cuda"), torch.zeros(bins, device="cuda", dtype=torch.int32)
    return lambda: histogram_kernel[(triton.cdiv(n, 1024),)](x, out, n, BLOCK=1024)


def transpose(M: int, N: int) -> Step:
    x, out = torch.randn(M, N, device="cuda"), torch.empty(N, M, device="cuda")
    return lambda: transpose_kernel[(M // 64, N // 64)](x, out, M, N, BM=64, BN=64)


def int8(M: int, N: int, K: int) -> Step:
    a, b = (torch.randint(-8, 8, shape, device="cuda", dtype=torch.int8) for shape in ((M, K), (N, K)))
    c = torch.empty(M, N, device="cuda", dtype=torch.int32)
    return lambda: int8_kernel[(M // 128, N // 128)](a, b, c, M, N, K, BM=128, BN=128, BK=64, num_warps=4, num_stages=3)


def _square(size: int, dtype: torch.dtype, *tile: int, turned: bool = False) -> TiledProduct:
    return TiledProduct((size, size, size), dtype, tile, turned)


PRODUCTS = (
    *(_square(size, FP16, 128, 256, 64, 8) for size in (512, 1024, 2048, 4096, 8192)),
    _square(4096, FP16, 64, 64, 32, 4), _square(4096, FP16, 128, 128, 64, 4), _square(4096, FP16, 128, 128, 32, 8),
    _square(4096, FP16, 64, 128, 64, 4), _square(4096, FP16, 64, 64, 64, 4), _square(4096, FP16, 32, 64, 64, 4),
    TiledProduct((16, 4096, 4096), FP16, (16, 64, 128, 4), False),
    _square(2048, FP32, 128, 128, 32, 8), _square(2048, FP32, 128, 128, 32, 8, turned=True),
    _square(4096, FP8, 128, 256, 128, 8), _square(4096, FP8, 128, 128, 64, 4),
    _square(4096, FP8, 128, 256, 128, 8, turned=True), _square(4096, FP8, 128, 128, 128, 4, turned=True),
)  # fmt: skip


def programs() -> Iterator[TimedProgram]:
    for n in (1 << 16, 1 << 22, 1 << 27):
        yield TimedProgram("triton", f"add {n}", partial(add, n))
    for rows, n in ((4096, 512), (4096, 4096), (512, 16384)):
        yield TimedProgram("triton", f"softmax fp32 {rows} x {n}", partial(softmax, rows, n))
    for rows, n in ((4096, 1024), (4096, 8192)):
        yield TimedProgram("triton", f"norm fp16 {rows} x {n}", partial(norm, rows, n, FP16))
    for shape, dtype, tile, turned in PRODUCTS:
        lies = " turned" if turned else ""
        name = (
            f"product {SHORT[dtype]} {'x'.join(map(str, shape))}{lies}, {'x'.join(map(str, tile[:3]))}, {tile[3]} warps"
        )
        yield TimedProgram("triton", name, partial(product, *shape, dtype, tile, turned))
    yield TimedProgram("triton", "product int8 4096, 128 x 128 x 64", partial(int8, 4096, 4096, 4096))
    for distinct in (1, 32, 1024, 1 << 20, 1 << 24):
        for dtype in (torch.int32, FP32):
            name = f"add up {1 << 24} {str(dtype)[6:]} to {distinct}"
            yield TimedProgram("triton", name, partial(add_up, 1 << 24, distinct, dtype))
    for bins in (16, 256, 4096, 65536, 1 << 20):
        yield TimedProgram("triton", f"histogram {1 << 24} of {bins}", partial(histogram, 1 << 24, bins))
    for causal in (False, True):
        for length in (1024, 8192):
            name = f"attention fp16 64 heads, {length} x 128{', causal' if causal else ''}"
            yield TimedProgram("triton", name, partial(attention, 64, length, 128, causal))
    yield TimedProgram("triton", "attention fp16 64 heads, 4096 x 64, causal", partial(attention, 64, 4096, 64, True))
    for size in (4096, 16384):
        yield TimedProgram("triton", f"gemv fp16 {size}", partial(gemv, size, size))
    yield TimedProgram("triton", "transpose fp32 8192", partial(transpose, 8192, 8192))
