"""Kernels that the tests of the engine share."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def scale_kernel(x_ptr, out_ptr, n, factor, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) * factor, mask=mask)


@triton.jit
def swizzled_matmul_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr
):
    pid = tl.program_id(0)
    rows, columns = tl.cdiv(M, BM), tl.cdiv(N, BN)
    first = pid // (GROUP * columns) * GROUP
    size = min(rows - first, GROUP)
    m = first + (pid % (GROUP * columns)) % size
    n = (pid % (GROUP * columns)) // size
    i, j, k = m * BM + tl.arange(0, BM), n * BN + tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        a = tl.load(a_ptr + i[:, None] * K + (start + k)[None, :])
        b = tl.load(b_ptr + (start + k)[:, None] * N + j[None, :])
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + i[:, None] * N + j[None, :], acc)


@triton.jit(do_not_specialize=["rank"])
def barrier_kernel(flags_ptr, peers_ptr, out_ptr, rank, world):
    """Tell every peer, wait for every peer, write the rank."""
    for peer in range(world):
        remote = tl.load(peers_ptr + peer).to(tl.pointer_type(tl.int32))
        tl.atomic_xchg(remote + rank, 1, sem="release", scope="sys")
    for peer in range(world):
        while tl.load(flags_ptr + peer, volatile=True) != 1:
            pass
    tl.store(out_ptr, rank)


@triton.jit
def either_kernel(a_ptr, b_ptr, flags_ptr, out_ptr, BLOCK: tl.constexpr):
    """A pointer to one of two arguments, by data; the store keeps the branch from becoming a select."""
    pid = tl.program_id(0)
    if tl.load(flags_ptr + pid) > 0:
        source = a_ptr
        tl.store(flags_ptr + pid, 2)
    else:
        source = b_ptr
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + pid * BLOCK + i, tl.load(source + i))
