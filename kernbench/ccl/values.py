"""What a schedule does to values.

Ways to the same bits, chosen by shape and size (tests hold them against the schedule run round by round):

- *expressions*, whatever the shape (trees, halving and doubling): each partial sum is computed once;
- *chains in blocks*, when the schedule folds members one after the other into each chunk (a ring does): a block that
  stays in cache is folded over all members and written to all of them, so every input is read once and every output
  written once, which is what memory allows;
- *chains stacked*, for small buffers: all chunks advance one member at a time in one operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import torch

from kernbench.ccl.expressions import Expressions, Step, combine_steps, expressions
from kernbench.ccl.reduce_op import PREMULTIPLIED_AVERAGE, Reduction
from kernbench.ccl.schedule import IntArray, Schedule

BLOCK_BYTES = 1024 * 1024
"""Size of the accumulator that is folded at a time; it should stay in the last private cache."""

STACK_BYTES = 4 * 1024 * 1024
"""Buffers of all members together up to which stacking is the quicker way."""

KEPT_BYTES = 64 * 1024
"""Buffers of all members together up to which the memory of a stacked reduction is kept for the next one."""

STACK_CHUNK_BYTES = 4096
"""Average chunk size up to which stacking is the quicker way whatever the total: below, a call costs more than its work."""


def run_all_reduce(
    schedule: Schedule, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], op: Reduction
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
        op.finish(outputs[0], 1)  # and NCCL's average multiplies by one
        return
    chains = schedule.final_chains
    if chains is None:
        run_expressions(schedule, inputs, outputs, op)
        return
    total = count * inputs[0].element_size() * members
    if total <= STACK_BYTES or total <= STACK_CHUNK_BYTES * members * schedule.chunks:
        run_stacked(schedule, inputs, outputs, op)
    else:
        run_blocks(schedule, chains, inputs, outputs, op)


def run_expressions(
    schedule: Schedule, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], op: Reduction
) -> None:
    """Any shape: every partial sum once, block by block, as the schedule's expressions say."""
    found = expressions(schedule)
    bounds = schedule.chunk_bounds(inputs[0].numel()).tolist()
    block = max(1, BLOCK_BYTES // inputs[0].element_size())
    for chunk, (steps, targets) in enumerate(_chunk_programs(schedule)):
        for begin in range(bounds[chunk], bounds[chunk + 1], block):
            rows = slice(begin, min(begin + block, bounds[chunk + 1]))
            value = combine_steps(steps, partial(_input_rows, inputs, found, rows, op), op)
            results = []
            for node, members in targets:
                total = value(node).clone()  # it may be an input, or the value of another node
                op.finish(total, schedule.members)
                results.append((total, members))
            for total, members in results:
                for member in members:
                    outputs[member][rows].copy_(total)


def _input_rows(
    inputs: Sequence[torch.Tensor], found: Expressions, rows: slice, op: Reduction, leaf: int
) -> torch.Tensor:
    return op.contribution(inputs[found.leaf(leaf)[0]][rows], len(inputs))


@lru_cache(maxsize=64)
def _chunk_programs(schedule: Schedule) -> list[tuple[list[Step], list[tuple[int, list[int]]]]]:
    """For each work chunk: its steps, and who ends with which node. Raises ValueError if that is no all-reduce."""
    found = expressions(schedule)
    programs = []
    for chunk in range(schedule.chunks):
        holders: dict[int, list[int]] = {}
        for member, node in enumerate(found.final[:, chunk].tolist()):
            holders.setdefault(node, []).append(member)
        for node in holders:
            if not found.folds_everybody(node, chunk):
                raise ValueError(
                    f"{schedule.name}: chunk {chunk} ends with {found.order(holders[node][0], chunk)} on member "
                    f"{holders[node][0]}, which does not fold every member exactly once"
                )
        programs.append((found.steps(list(holders)), list(holders.items())))
    return programs


def run_blocks(
    schedule: Schedule,
    chains: IntArray,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    op: Reduction,
) -> None:
    """Fold cache-sized blocks over the members, and write each to every output while it is in cache."""
    bounds = schedule.chunk_bounds(inputs[0].numel()).tolist()
    block = max(1, BLOCK_BYTES // inputs[0].element_size())
    accumulator = torch.empty(block, dtype=inputs[0].dtype)
    members = schedule.members
    for chunk, order in enumerate(chains.tolist()):
        for begin in range(bounds[chunk], bounds[chunk + 1], block):
            rows = slice(begin, min(begin + block, bounds[chunk + 1]))
            total = accumulator[: rows.stop - rows.start]
            first, second = (op.contribution(inputs[member][rows], members) for member in order[:2])
            op.combine(first, second, total)
            for member in order[2:]:
                op.combine(total, op.contribution(inputs[member][rows], members), total)
            op.finish(total, members)
            for output in outputs:
                output[rows].copy_(total)


def run_stacked(
    schedule: Schedule,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    op: Reduction,
) -> None:
    """Fold all chunks at once, one member of each chain after the other."""
    count, dtype = inputs[0].numel(), inputs[0].dtype
    members, chunks = schedule.members, schedule.chunks
    index = _stack_index(schedule, count)
    small = members * count * dtype.itemsize <= KEPT_BYTES
    stack = (_stack if small else _stack.__wrapped__)(members, chunks, count, dtype)
    torch.stack(list(inputs), out=stack.members)
    if index.pad is not None:
        torch.index_select(stack.members, 1, index.pad, out=stack.padded)
    torch.index_select(stack.chunks, 0, index.rows, out=stack.ordered)
    if op is PREMULTIPLIED_AVERAGE:
        stack.ordered.copy_(op.contribution(stack.ordered, members))
    total = op.combine_all(stack.parts)
    op.finish(total, members)
    result = stack.result if index.keep is None else total[index.keep]
    for output in outputs:
        output.copy_(result)


class _StackIndex(NamedTuple):
    """Where the parts of a stacked reduction are.

    Attributes:
        pad: ``[chunks * length]`` element that stands at each place, None if all chunks are equally long.
        keep: ``[chunks, length]`` whether that place is of the buffer, not of the padding; None if all are.
        rows: ``[members * chunks]`` row of the k-th member's part in each chunk's chain, members first.
    """

    pad: torch.Tensor | None
    keep: torch.Tensor | None
    rows: torch.Tensor


@lru_cache(maxsize=64)
def _stack_index(schedule: Schedule, count: int) -> _StackIndex:
    chains, chunks = schedule.final_chains, schedule.chunks
    assert chains is not None
    rows = torch.from_numpy(np.ascontiguousarray(chains.T) * chunks + np.arange(chunks)).view(-1)
    if count % chunks == 0:
        return _StackIndex(None, None, rows)
    length = -(-count // chunks)  # chunks of two lengths: the short ones are padded, so that they form a matrix
    bounds = schedule.chunk_bounds(count)
    lengths = np.diff(bounds)[:, None]
    pad = torch.from_numpy(bounds[:-1, None] + np.minimum(np.arange(length), lengths - 1).clip(0)).view(-1)
    return _StackIndex(pad.clamp_(max=count - 1), torch.from_numpy(np.arange(length) < lengths), rows)


class _Stack(NamedTuple):
    """The memory of a stacked reduction. Small ones are kept, because making a tensor costs more than adding small ones.

    Attributes:
        members: ``[members, count]`` all inputs.
        padded: ``[members, chunks * length]`` the inputs with chunks of equal length, which is ``members`` if they are.
        chunks: ``[members * chunks, length]`` the same.
        ordered: ``[members * chunks, length]`` the parts in the order of the chains.
        parts: ``[chunks, length]`` the k-th members' parts; the first becomes the result.
        result: ``[chunks * length]`` the result.
    """

    members: torch.Tensor
    padded: torch.Tensor
    chunks: torch.Tensor
    ordered: torch.Tensor
    parts: Sequence[torch.Tensor]
    result: torch.Tensor


@lru_cache(maxsize=64)
def _stack(members: int, chunks: int, count: int, dtype: torch.dtype) -> _Stack:
    length = -(-count // chunks)
    with torch.inference_mode(False):
        stacked = padded = torch.empty(members, count, dtype=dtype)
        if count % chunks:
            padded = torch.empty(members, chunks * length, dtype=dtype)
        ordered = torch.empty(members * chunks, length, dtype=dtype)
        parts = ordered.split(chunks)
        return _Stack(stacked, padded, padded.view(-1, length), ordered, parts, parts[0].view(-1))
