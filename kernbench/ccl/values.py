"""What a schedule does to values.

Three ways to the same bits, chosen by shape and size (a test holds them against each other):

- *round by round*, literally as the schedule says: always possible;
- *chains in blocks*, when the schedule folds members one after the other into each cell (a ring does): a block that
  stays in cache is folded over all members and written to all of them, so every input is read once and every output
  written once, which is what memory allows;
- *chains stacked*, for small buffers: all cells advance one member at a time in one operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch

from kernbench.ccl.reduce_op import ReduceOp
from kernbench.ccl.schedule import IntArray, Schedule

BLOCK_BYTES = 1024 * 1024
"""Size of the accumulator that is folded at a time; it should stay in the last private cache."""

STACK_BYTES = 4 * 1024 * 1024
"""Buffers of all members together up to which stacking is the quicker way."""

STACK_CELL_BYTES = 4096
"""Average cell size up to which stacking is the quicker way whatever the total: below, a call costs more than its work."""


def run_all_reduce(
    schedule: Schedule, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], op: ReduceOp
) -> None:
    """All-reduce ``inputs`` (``members`` tensors ``[count]``, one dtype) into ``outputs``; they may be the same tensors.

    The order of reduction is the schedule's, so results are reproducible to the bit.
    """
    count = inputs[0].numel()
    if count == 0:
        return
    members = schedule.members
    if members == 1:
        if outputs[0] is not inputs[0]:
            outputs[0].copy_(inputs[0])
        op.finish(outputs[0], 1)
        return
    chains = schedule.final_chains
    if chains is None:
        run_rounds(schedule, inputs, outputs, op)
        return
    total = count * inputs[0].element_size() * members
    if total <= STACK_BYTES or total <= STACK_CELL_BYTES * members * schedule.cells:
        run_stacked(schedule, inputs, outputs, op)
    else:
        run_blocks(schedule, chains, inputs, outputs, op)


def run_rounds(
    schedule: Schedule, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], op: ReduceOp
) -> None:
    """Every transfer of every round, one by one."""
    bounds = schedule.cell_bounds(inputs[0].numel()).tolist()
    for source, target in zip(inputs, outputs, strict=True):
        if target is not source:
            target.copy_(source)
    columns = list(
        zip(
            schedule.src.tolist(), schedule.dst.tolist(), schedule.cell.tolist(), schedule.to_cell.tolist(),
            schedule.reduces.tolist(), strict=True,
        )
    )  # fmt: skip
    for begin, end in zip(schedule.rounds[:-1].tolist(), schedule.rounds[1:].tolist(), strict=True):
        rows = columns[begin:end]
        # everything that a round sends is read before anything is written
        sent = [outputs[src][bounds[cell] : bounds[cell + 1]].clone() for src, _, cell, _, _ in rows]
        for arriving, (_, dst, _, cell, reduces) in zip(sent, rows, strict=True):
            local = outputs[dst][bounds[cell] : bounds[cell + 1]]
            if reduces:
                op.combine(arriving, local, local)
            else:
                local.copy_(arriving)
    for target in outputs:
        op.finish(target, schedule.members)


def run_blocks(
    schedule: Schedule,
    chains: IntArray,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    op: ReduceOp,
) -> None:
    """Fold cache-sized blocks over the members, and write each to every output while it is in cache."""
    bounds = schedule.cell_bounds(inputs[0].numel()).tolist()
    block = max(1, BLOCK_BYTES // inputs[0].element_size())
    accumulator = torch.empty(block, dtype=inputs[0].dtype)
    for cell, order in enumerate(chains.tolist()):
        for begin in range(bounds[cell], bounds[cell + 1], block):
            rows = slice(begin, min(begin + block, bounds[cell + 1]))
            total = accumulator[: rows.stop - rows.start]
            op.combine(inputs[order[0]][rows], inputs[order[1]][rows], total)
            for member in order[2:]:
                op.combine(total, inputs[member][rows], total)
            op.finish(total, schedule.members)
            for output in outputs:
                output[rows].copy_(total)


def run_stacked(
    schedule: Schedule,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    op: ReduceOp,
) -> None:
    """Fold all cells at once, one member of each chain after the other."""
    count = inputs[0].numel()
    members, cells = schedule.members, schedule.cells
    index = _stack_index(schedule, count)
    stacked = torch.stack(list(inputs))
    if index.pad is not None:
        stacked = stacked[:, index.pad]
    stacked = stacked.view(members * cells, -(-count // cells))
    total, *others = stacked[index.rows].unbind(0)
    for part in others:
        op.combine(total, part, total)
    op.finish(total, members)
    result = total.view(-1) if index.keep is None else total[index.keep]
    for output in outputs:
        output.copy_(result)


class _StackIndex(NamedTuple):
    """Where the parts of a stacked reduction are.

    Attributes:
        pad: ``[cells, length]`` element that stands at each place, None if all cells are equally long.
        keep: ``[cells, length]`` whether that place is of the buffer, not of the padding.
        rows: ``[members, cells]``: row of the k-th member's part in each cell's chain.
    """

    pad: torch.Tensor | None
    keep: torch.Tensor | None
    rows: torch.Tensor


@lru_cache(maxsize=64)
def _stack_index(schedule: Schedule, count: int) -> _StackIndex:
    chains, cells = schedule.final_chains, schedule.cells
    assert chains is not None
    rows = torch.from_numpy(np.ascontiguousarray(chains.T) * cells + np.arange(cells))
    if count % cells == 0:
        return _StackIndex(None, None, rows)
    length = -(-count // cells)  # cells of two lengths: the short ones are padded, so that they form a matrix
    bounds = schedule.cell_bounds(count)
    lengths = np.diff(bounds)[:, None]
    pad = torch.from_numpy(bounds[:-1, None] + np.minimum(np.arange(length), lengths - 1).clip(0))
    return _StackIndex(pad.clamp_(max=count - 1), torch.from_numpy(np.arange(length) < lengths), rows)
