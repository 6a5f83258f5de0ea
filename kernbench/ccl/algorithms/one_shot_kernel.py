"""One-shot all-reduce as a Triton kernel: every rank reads all of every peer's buffer and adds up.

The same algorithm as ``one_shot_pull``, bit for bit, and its time is that schedule's. On hardware the same source runs over
symmetric memory: a table of the peers' buffers, a table of their signal words.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from kernbench.ccl.algorithms import one_shot_pull
from kernbench.ccl.algorithms._reduce_kernels import fold_peers, meet_peers

COLLECTIVE = "all_reduce"
TOPOLOGIES = ("all_to_all",)
REDUCTIONS = ("sum", "avg", "product", "min", "max")
BLOCK = 1024

build = one_shot_pull.build


def signal_words(members: int, count: int) -> int:
    """Signal words per rank: one per peer and program."""
    return members * triton.cdiv(count, BLOCK)


@triton.jit
def one_shot_kernel(
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
    """Grid (blocks,), one launch per rank."""
    block = tl.program_id(0)
    meet_peers(signal_table, rank, block, tl.num_programs(0), epoch, WORLD)
    offsets = block * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    total = fold_peers(input_table, offsets, mask, DTYPE, WIDE, OP, WORLD)
    out = tl.load(output_table + rank).to(tl.pointer_type(DTYPE))
    tl.store(out + offsets, total.to(DTYPE), mask=mask)


def run(call: Any) -> None:
    """Launch this rank's kernel. ``call``: a :class:`kernbench.simulation.launches.kernel_collectives.KernelCall`."""
    one_shot_kernel[(triton.cdiv(call.count, BLOCK),)](
        call.inputs, call.outputs, call.signals, call.rank, call.count, call.epoch,
        DTYPE=call.dtype, WIDE=call.wide, OP=call.op, WORLD=call.world, BLOCK=BLOCK,
    )  # fmt: skip
