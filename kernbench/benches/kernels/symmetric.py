"""Communication kernels over symmetric memory: one-shot and two-shot all-reduce, gemm and reduce-scatter in one.

``buffers`` and ``signals`` are the device tables of a handle of ``torch.distributed._symmetric_memory``: where the buffer of
each rank, and its signal pad, is.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _meet(signals, rank: tl.constexpr, world: tl.constexpr):
    """Programs of one number wait for each other on all ranks: what one has done before, all see behind it."""
    tl.debug_barrier()
    word = tl.program_id(0) * world
    for peer in range(world):
        there = tl.load(signals.to(tl.pointer_type(tl.uint64)) + peer).to(tl.pointer_type(tl.int32)) + word + rank
        while tl.atomic_cas(there, 0, 1, sem="release", scope="sys") != 0:
            pass
    here = tl.load(signals.to(tl.pointer_type(tl.uint64)) + rank).to(tl.pointer_type(tl.int32)) + word
    for peer in range(world):
        while tl.atomic_cas(here + peer, 1, 0, sem="acquire", scope="sys") != 1:
            pass
    tl.debug_barrier()


@triton.jit
def _buffer(buffers, rank):
    return tl.load(buffers.to(tl.pointer_type(tl.uint64)) + rank).to(tl.pointer_type(tl.float32))


@triton.jit
def one_shot_kernel(buffers, signals, out, rank: tl.constexpr, world: tl.constexpr, BLOCK: tl.constexpr):
    """``out`` fp32 [programs * BLOCK]: the sum of all buffers, which each rank reads whole."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    _meet(signals, rank, world)
    total = tl.zeros((BLOCK,), tl.float32)
    for peer in range(world):
        total += tl.load(_buffer(buffers, peer) + at)
    tl.store(out + at, total)
    _meet(signals, rank, world)


@triton.jit
def two_shot_kernel(buffers, signals, rank: tl.constexpr, world: tl.constexpr, BLOCK: tl.constexpr):
    """In place, buffers fp32 [programs * world * BLOCK]: each rank sums its part, and writes it to all."""
    at = (tl.program_id(0) * world + rank) * BLOCK + tl.arange(0, BLOCK)
    _meet(signals, rank, world)
    total = tl.zeros((BLOCK,), tl.float32)
    for peer in range(world):
        total += tl.load(_buffer(buffers, peer) + at)
    for peer in range(world):
        tl.store(_buffer(buffers, peer) + at, total)
    _meet(signals, rank, world)


@triton.jit
def gemm_reduce_scatter_kernel(
    a, b, buffers, signals, out, K, rank: tl.constexpr, world: tl.constexpr, BLOCK: tl.constexpr
):
    """``a @ b``, fp32 [world * BLOCK, K] and [K, programs * BLOCK], summed over ranks; rank r gets rows r * BLOCK and on.

    They come to ``out`` [BLOCK, programs * BLOCK]; buffers are [world * BLOCK, programs * BLOCK].
    """
    columns = tl.num_programs(0) * BLOCK
    rows, cols, inner = tl.arange(0, BLOCK), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, BLOCK)
    mine = _buffer(buffers, rank)
    for part in range(world):
        total = tl.zeros((BLOCK, BLOCK), tl.float32)
        for k in range(0, K, BLOCK):
            left = tl.load(a + (part * BLOCK + rows)[:, None] * K + k + inner[None, :])
            total += tl.dot(left, tl.load(b + (k + inner)[:, None] * columns + cols[None, :]))
        tl.store(mine + (part * BLOCK + rows)[:, None] * columns + cols[None, :], total)
    _meet(signals, rank, world)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for peer in range(world):
        total += tl.load(_buffer(buffers, peer) + (rank * BLOCK + rows)[:, None] * columns + cols[None, :])
    tl.store(out + rows[:, None] * columns + cols[None, :], total)
    _meet(signals, rank, world)


@triton.jit
def gather_kernel(x, index, out, BLOCK: tl.constexpr):
    """``out = x[index]``, fp32 and int64 [programs * BLOCK]."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + tl.load(index + at)))
