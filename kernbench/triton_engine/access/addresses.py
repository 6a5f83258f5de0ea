"""Accesses by address alone: stores of a launch that is only counted, and what the programs of one wave share."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import torch

from kernbench.triton_engine.batch import Batch
from kernbench.triton_engine.frontend.program import OpInfo
from kernbench.triton_engine.values import Affine, Ptr, lane_array

from .gathered import flat_index
from .operands import Access
from .strided import pieces


def visit(batch: Batch, info: OpInfo, p: Ptr, tile: tuple[int, ...], dtype: torch.dtype, mask: object) -> None:
    """Check and count a store as if it were done."""
    if batch.execution.wave is not None:
        return
    access = Access(batch, info, p, tile, dtype.itemsize, mask)
    if access.masked_off:
        return
    if p.scattered is None and access.dense is None and pieces(access, access.box) is not None:
        return
    flat_index(access)


def wave_bytes(batch: Batch, p: Ptr, tile: tuple[int, ...], item: int) -> int:
    """Bytes of a tile access of the wave's lanes, those that several lanes share counted once; masks are not looked at."""
    lanes, wave = batch.lanes, batch.execution.wave
    assert wave is not None
    inside = np.broadcast_to((batch.ids >= wave.start) & (batch.ids < wave.stop), lanes)
    off = p.offset
    steps = off.tile_strides if type(off) is Affine else ()
    varies = [bool(step) for step in (*steps, *(0,) * (len(tile) - len(steps)))]
    first: Any = lane_array(
        Affine(off.constant, off.lane_strides, (), 0, 0, off.per_lane) if type(off) is Affine else off, lanes
    )
    if p.scattered is not None:
        nl = len(lanes)
        varies = [had or size > 1 for had, size in zip(varies, p.scattered.shape[nl:], strict=True)]
        corner = p.scattered[(slice(None),) * nl + (0,) * (p.scattered.dim() - nl)]
        first = first + corner.numpy()
    elements = prod(size for size, does in zip(tile, varies, strict=True) if does)
    return len(np.unique(np.broadcast_to(first, lanes)[inside])) * elements * item


def note_rows(batch: Batch, info: OpInfo, p: Ptr, tile: tuple[int, ...], item: int) -> None:
    """Note which of the last two dimensions of a load's tile lies in rows of memory, if one does."""
    found = batch.execution.contiguous
    if info.index in found:
        return
    off, nl = p.offset, len(batch.lanes)
    for place in (1, 0):
        dim = len(tile) - 2 + place
        if tile[dim] < 2:
            continue
        step = off.tile_strides[dim] if type(off) is Affine else 0
        if p.scattered is not None and p.scattered.shape[nl + dim] > 1:
            line = p.scattered[(0,) * (nl + dim)][:2].reshape(2, -1)[:, 0]
            step += int(line[1] - line[0])
        if step == item:
            found[info.index] = place
            return
