"""Kernels for the tests of precompilation: one with a build flag, two made by a factory, one autotuned."""

import triton
import triton.language as tl

import kernbench


@kernbench.precompile.space(
    axes={"dtype": ["fp16", "fp32"], "WORLD": [2, 4], "PUSH": [True, False]},
    arguments={"x_ptr": "*{dtype}", "out_ptr": "*{dtype}", "n": "i32:16", "BLOCK": 128},
    where=["WORLD == 2 or dtype == 'fp16'"],
)
@triton.jit
def reduce_kernel(x_ptr, out_ptr, n, WORLD: tl.constexpr, PUSH: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for rank in tl.static_range(WORLD):
        source = x_ptr + rank * n
        if PUSH:
            total += tl.load(source + at, mask=at < n).to(tl.float32)
        else:
            total += tl.load(source + at, mask=at < n, volatile=True).to(tl.float32)
    tl.store(out_ptr + at, total, mask=at < n)


def make_copy(push):
    PUSH = tl.constexpr(push)

    @kernbench.precompile.space(arguments={"x_ptr": "*fp32", "out_ptr": "*fp32", "BLOCK": 64})
    @triton.jit
    def copy_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        if PUSH:
            tl.store(out_ptr + at, tl.load(x_ptr + at))
        else:
            tl.store(out_ptr + at, tl.load(x_ptr + at, volatile=True))

    return copy_kernel


push_copy, pull_copy = make_copy(True), make_copy(False)


@triton.autotune([triton.Config({"BLOCK": 64}, num_warps=2), triton.Config({"BLOCK": 128})], key=["n"])
@triton.jit
def scale_kernel(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, 2 * tl.load(x_ptr + at, mask=at < n), mask=at < n)


@triton.jit
def modes_kernel(x_ptr, MODE: tl.constexpr):
    if MODE == 1:
        tl.store(x_ptr, 1.0)
    else:
        tl.store(x_ptr, 2.0)


@triton.jit
def wrong_kernel(x_ptr, BLOCK: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, BLOCK), 0.0)  # BLOCK must be a power of two
