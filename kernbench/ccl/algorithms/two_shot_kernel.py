"""Two-shot all-reduce as a Triton kernel: rank r sums part r of all buffers, then every rank reads the sums.

The same algorithm as ``two_shot_pull``, bit for bit, and its time is that schedule's.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from kernbench.ccl.algorithms import two_shot_pull
from kernbench.ccl.algorithms._reduce_kernels import fold_peers, meet_peers

COLLECTIVE = "all_reduce"
TOPOLOGIES = ("all_to_all",)
REDUCTIONS = ("sum", "avg", "product", "min", "max")
BLOCK = 1024

build = two_shot_pull.build


def signal_words(members: int, count: int) -> int:
    """Signal words per rank: one per peer and program."""
    return members * triton.cdiv(count, members * BLOCK)


@triton.jit
def two_shot_kernel(
    input_table,
    output_table,
    signal_table,
    rank,
    count,
    epoch,
    DTYPE: tl.constexpr,
    WIDE: tl.constexpr,
    OP: tl.constexpr,
    WORLD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid (blocks,), one launch per rank; a block is WORLD parts of BLOCK elements. Uses ``epoch`` and ``epoch + 1``."""
    block = tl.program_id(0)
    blocks = tl.num_programs(0)
    meet_peers(signal_table, rank, block, blocks, epoch, WORLD)
    begin = block * WORLD * BLOCK + tl.arange(0, BLOCK)
    out = tl.load(output_table + rank).to(tl.pointer_type(DTYPE))
    offsets = begin + rank * BLOCK
    total = fold_peers(input_table, offsets, offsets < count, DTYPE, WIDE, OP, WORLD)
    tl.store(out + offsets, total.to(DTYPE), mask=offsets < count)
    tl.debug_barrier()
    meet_peers(signal_table, rank, block, blocks, epoch + 1, WORLD)
    for step in range(1, WORLD):
        peer = (rank + step) % WORLD
        offsets = begin + peer * BLOCK
        remote = tl.load(output_table + peer).to(tl.pointer_type(DTYPE))
        tl.store(out + offsets, tl.load(remote + offsets, mask=offsets < count), mask=offsets < count)


def run(call: Any) -> None:
    """Launch this rank's kernel. ``call``: a :class:`kernbench.simulation.launches.kernel_collectives.KernelCall`."""
    two_shot_kernel[(triton.cdiv(call.count, call.world * BLOCK),)](
        call.inputs, call.outputs, call.signals, call.rank, call.count, call.epoch,
        DTYPE=call.dtype, WIDE=call.wide, OP=call.op, WORLD=call.world, BLOCK=BLOCK,
    )  # fmt: skip
