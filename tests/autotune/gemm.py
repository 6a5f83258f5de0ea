"""A plain GEMM with an autotuner, for the tests of ranking."""

import triton
import triton.language as tl

CONFIGS = [
    triton.Config({"BM": bm, "BN": bn, "BK": bk}, num_warps=warps, num_stages=stages)
    for bm, bn, bk, warps, stages in [
        (16, 16, 32, 4, 2),
        (32, 32, 32, 4, 3),
        (64, 64, 32, 4, 3),
        (128, 128, 64, 8, 3),
        (256, 256, 128, 8, 4),
    ]
]


@triton.autotune(CONFIGS, key=["M", "N", "K"])
@triton.jit
def gemm(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    depth = tl.arange(0, BK)
    a = a_ptr + rows[:, None] * K + depth[None, :]
    b = b_ptr + depth[:, None] * N + columns[None, :]
    total = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, BK):
        inside = rows[:, None] < M
        total = tl.dot(tl.load(a, mask=inside, other=0.0), tl.load(b), total)
        a += BK
        b += BK * N
    tl.store(c_ptr + rows[:, None] * N + columns[None, :], total.to(c_ptr.dtype.element_ty), mask=rows[:, None] < M)
