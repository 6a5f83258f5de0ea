"""Device functions of the all-reduce kernels: tables of peers' buffers, signal words, sums in rank order."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def meet_peers(signal_table, rank, block, blocks, epoch, WORLD: tl.constexpr):
    """Raise this rank's signal at every peer, then wait until every peer has raised its own here.

    ``signal_table[r]`` is the address of rank r's int32 words ``[WORLD, blocks]``. Words hold the number of the call
    (``epoch``), which only grows: they are never reset.
    """
    for peer in range(WORLD):
        remote = tl.load(signal_table + peer).to(tl.pointer_type(tl.int32))
        tl.atomic_xchg(remote + rank * blocks + block, epoch, sem="release", scope="sys")
    own = tl.load(signal_table + rank).to(tl.pointer_type(tl.int32))
    for peer in range(WORLD):
        while tl.atomic_add(own + peer * blocks + block, 0, sem="acquire", scope="sys") < epoch:
            pass


@triton.jit
def combine(left, right, OP: tl.constexpr):
    """One step of the reduction."""
    if OP == "sum":
        return left + right
    elif OP == "product":
        return left * right
    elif OP == "min":
        return tl.minimum(left, right)
    else:
        return tl.maximum(left, right)


@triton.jit
def fold_peers(table, offsets, mask, DTYPE: tl.constexpr, WIDE: tl.constexpr, OP: tl.constexpr, WORLD: tl.constexpr):
    """The same elements of every peer's buffer, folded in the order of the ranks, in WIDE."""
    first = tl.load(table).to(tl.pointer_type(DTYPE))
    total = tl.load(first + offsets, mask=mask, other=0).to(WIDE)
    for peer in range(1, WORLD):
        remote = tl.load(table + peer).to(tl.pointer_type(DTYPE))
        total = combine(total, tl.load(remote + offsets, mask=mask, other=0).to(WIDE), OP)
    return total
