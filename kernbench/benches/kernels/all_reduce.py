"""Sum over ranks inside a kernel: peers' buffers and flags reached through tables of pointers.

On hardware each rank launches its own kernel. Here a rank is one index of the grid's first axis, so one launch holds
all ranks and they must make progress together: a rank spins on flags that the others raise. Flags hold the number of
the round, so that they need no reset between launches.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _barrier(flag_table, rank, block, blocks, round_number, WORLD: tl.constexpr):
    """Raise this rank's flag at every peer, then wait until every peer has raised its flag here.

    ``flag_table[r]`` is the address of rank ``r``'s int32 flags ``[WORLD, blocks]``.
    """
    for peer in range(WORLD):
        remote = tl.load(flag_table + peer).to(tl.pointer_type(tl.int32))
        tl.atomic_xchg(remote + rank * blocks + block, round_number, sem="release", scope="sys")
    own = tl.load(flag_table + rank).to(tl.pointer_type(tl.int32))
    for peer in range(WORLD):
        while tl.atomic_add(own + peer * blocks + block, 0, sem="acquire", scope="sys") < round_number:
            pass


@triton.jit
def one_shot_all_reduce_kernel(
    in_table, out_table, flag_table, n, round_number, WORLD: tl.constexpr, BLOCK: tl.constexpr
):
    """Grid (ranks, blocks): every rank reads the same block of every peer and adds in rank order."""
    rank = tl.program_id(0)
    block = tl.program_id(1)
    _barrier(flag_table, rank, block, tl.num_programs(1), round_number, WORLD)
    offsets = block * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for peer in range(WORLD):
        remote = tl.load(in_table + peer).to(tl.pointer_type(tl.float32))
        total += tl.load(remote + offsets, mask=mask, other=0.0)
    out = tl.load(out_table + rank).to(tl.pointer_type(tl.float32))
    tl.store(out + offsets, total, mask=mask)


@triton.jit
def two_shot_all_reduce_kernel(
    in_table, out_table, flag_table, n, round_number, WORLD: tl.constexpr, BLOCK: tl.constexpr
):
    """Grid (ranks, blocks). Rank ``r`` sums chunk ``r`` of each block into its own output, waits, then copies the rest.

    A block is ``WORLD`` chunks of ``BLOCK`` elements. Uses rounds ``round_number`` and ``round_number + 1``.
    """
    rank = tl.program_id(0)
    block = tl.program_id(1)
    blocks = tl.num_programs(1)
    _barrier(flag_table, rank, block, blocks, round_number, WORLD)
    base = block * WORLD * BLOCK + tl.arange(0, BLOCK)
    out = tl.load(out_table + rank).to(tl.pointer_type(tl.float32))
    offsets = base + rank * BLOCK
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for peer in range(WORLD):
        remote = tl.load(in_table + peer).to(tl.pointer_type(tl.float32))
        total += tl.load(remote + offsets, mask=offsets < n, other=0.0)
    tl.store(out + offsets, total, mask=offsets < n)
    tl.debug_barrier()
    _barrier(flag_table, rank, block, blocks, round_number + 1, WORLD)
    for step in range(1, WORLD):
        peer = (rank + step) % WORLD
        offsets = base + peer * BLOCK
        remote = tl.load(out_table + peer).to(tl.pointer_type(tl.float32))
        tl.store(out + offsets, tl.load(remote + offsets, mask=offsets < n), mask=offsets < n)


class AllReduce:
    """Buffers, flags and pointer tables of ``world`` ranks with ``n`` fp32 elements each; :meth:`run` repeats."""

    def __init__(self, world: int, n: int, block: int = 128) -> None:
        self.world, self.n, self.block = world, n, block
        self.inputs = [torch.zeros(n) for _ in range(world)]
        self.outputs = [torch.zeros(n) for _ in range(world)]
        self.flags = [torch.zeros((world, triton.cdiv(n, block)), dtype=torch.int32) for _ in range(world)]
        self.round = 1

    def run(self, two_shot: bool = False) -> list[torch.Tensor]:
        """Each rank's output: the sum of all inputs, in rank order, equal on all ranks bit for bit."""
        tables = [torch.tensor([t.data_ptr() for t in ts]) for ts in (self.inputs, self.outputs, self.flags)]
        kernel, per_block = (
            (two_shot_all_reduce_kernel, self.world * self.block)
            if two_shot
            else (one_shot_all_reduce_kernel, self.block)
        )
        grid = (self.world, triton.cdiv(self.n, per_block))
        kernel[grid](*tables, self.n, self.round, WORLD=self.world, BLOCK=self.block)
        self.round += 2
        return self.outputs
