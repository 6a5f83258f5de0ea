"""Out-of-bounds accesses: the error names tensor, rank, program and source line of the first element outside."""

from __future__ import annotations

from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from kernbench.errors import MemoryAccessError
from kernbench.triton_engine.memory import HostAllocation

from .footprint import Cell, Footprint
from .operands import Access


def out_of_bounds(access: Access, offset: int, allocation: HostAllocation | None, cell: Cell | None) -> NoReturn:
    """Raise the out-of-bounds error for a byte offset into (or an address outside of) an allocation."""
    batch, info = access.batch, access.info
    verb = "updates" if info.row.reads and info.row.writes else "writes" if info.row.writes else "reads"
    where = batch.describe_lanes(cell)
    if allocation is None:
        what = f"{verb} address {offset:#x}, which belongs to no live tensor"
        if batch.execution.blind:
            what += (
                "; without data, addresses that a kernel loads from a large tensor, or from one that was computed, are not "
                "known: make its table on the host (torch.tensor([each.data_ptr() for each in tensors]))"
            )
    else:
        index = offset // access.item
        limit = allocation.nbytes // access.item
        what = f"{verb} element {index} of {allocation.describe()}, which has {limit} elements of {access.item} bytes"
    error = MemoryAccessError(
        f"kernel {info.kernel}: {what}\n  {where}\n  at {info.loc}\n  {info.name} of tile {access.tile}"
    )
    error.ranks = tuple(batch.ranks(cell))
    raise error


def first_outside(access: Access, origin: int, foot: Footprint, allocation: HostAllocation, cell: Cell) -> None:
    """Find the first program of a piece that leaves the allocation, and the first element it reaches.

    ``origin``: byte offset of the piece's first element.
    """
    item, nl, steps, sizes = access.item, len(cell), foot.strides, foot.sizes
    tile = torch.zeros((1,) * (len(sizes) - nl), dtype=torch.int64)
    for j, (s, n) in enumerate(zip(steps[nl:], sizes[nl:], strict=True)):
        shape = [1] * (len(sizes) - nl)
        shape[j] = n
        tile = tile + (torch.arange(n) * (s * item)).reshape(shape)
    least, most = int(tile.min()), int(tile.max())
    for lane in np.ndindex(*sizes[:nl]):
        base = origin + sum(i * s for i, s in zip(lane, steps, strict=False)) * item
        if base + least < 0 or base + most + item > allocation.nbytes:
            offsets = (tile + base).reshape(-1)
            bad = offsets[(offsets < 0) | (offsets + item > allocation.nbytes)]
            here = tuple((a + i, a + i + 1) for (a, _), i in zip(cell, lane, strict=True))
            out_of_bounds(access, int(bad[0]), allocation, here)


def gather_outside(access: Access, index: Tensor, allocation: HostAllocation, offset: int) -> NoReturn:
    """Find the lane that reaches byte ``offset`` of an allocation, and raise the error for it."""
    where = (index == offset).nonzero()
    lane = tuple(where[0].tolist()[: len(access.batch.lanes)]) if len(where) else ()
    out_of_bounds(
        access,
        offset,
        allocation,
        tuple((i, i + 1) if n > 1 else (0, m) for i, n, m in zip(lane, index.shape, access.batch.lanes, strict=False)),
    )
