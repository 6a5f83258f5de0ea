"""Accesses whose addresses are irregular along some tile dimensions and affine along the others: one indexed copy of rows.

Paged attention, embeddings and mixtures of experts gather so: ``base + table[i][:, None] * stride + j[None, :]``. An element
index for every element (8 bytes each, several passes over them) took ten times as long as the copy; a decode step over pages
is three times as fast with one ``index_select`` of rows over an overlapping view of memory. Many kernels add the integers
before they add them to the pointer, so that nothing in the program tells rows from columns: then one line of the integers is
read, and all of them only if that line is a progression.

Whole rows are read, masked elements included, as long as every row lies inside its allocation; columns that no row needs are
left out first. Anything else is looked up element by element, and so are checked runs (``set_checks``); a row outside of its
allocation takes that way too, which names the element. Stores come here where rows are whole and do not overlap, so that no
order among them shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernbench.triton_engine.memory import HostAllocation
from kernbench.triton_engine.shares import by_launch
from kernbench.triton_engine.values import Affine, dense_int, dense_mask

from .footprint import Footprint, footprint
from .gathered import active_elements
from .operands import Access

#: Rows of fewer elements are gathered element by element.
_SHORTEST = 8


@dataclass(slots=True, eq=False)
class _Rows:
    """An access as rows: ``index`` are the byte offsets (or addresses) where they begin, size 1 along the tile dimensions
    ``along``; ``columns`` are the first and last element of each of those that any row needs. ``wanted``: the rows of
    which ``active`` elements are accessed (None: all)."""

    index: Tensor
    along: list[int]
    columns: list[tuple[int, int]]
    foot: Footprint
    active: Tensor | None
    wanted: Tensor | None


def _rows_of(access: Access) -> _Rows | None:
    """The rows of an access; None if it has none, or accesses nothing."""
    batch, item, tile = access.batch, access.item, access.tile
    lanes: tuple[int, ...] = batch.lanes
    nl = len(lanes)
    scattered = access.pointer.scattered
    origin, lane_strides, tile_strides, per_lane = access.affine_pointer()
    if batch.rank_index is not None or (batch.execution.blind and scattered is not None):
        return None
    if scattered is not None:
        scattered, steps = _without_steps(scattered, nl, item)
        tile_strides = tuple(a + s for a, s in zip(tile_strides, steps, strict=True))
    along = [
        j
        for j, s in enumerate(tile_strides)
        if s > 0 and s % item == 0 and (scattered is None or scattered.shape[nl + j] == 1)
    ]
    if prod(tile[j] for j in along) < _SHORTEST:
        return None
    active: Any = access.dense if access.box is None else dense_mask(access.box, lanes, tile)
    active = active if type(active) is Tensor else None
    off = Affine(
        origin, lane_strides, tuple(0 if j in along else s for j, s in enumerate(tile_strides)), 0, 0, per_lane
    )
    rest = dense_int(off, lanes, tile, torch.int64)
    index = rest if scattered is None else rest + scattered
    if type(index) is not Tensor:
        return None
    columns = [_columns(active, nl + j, tile[j]) for j in along]
    wanted = None
    if active is not None:
        wanted = active
        for j in along:
            wanted = wanted.any(nl + j, keepdim=True)
        if not bool(wanted.any()):
            return None
        if bool(wanted.all()):
            wanted = None
    foot = footprint(
        tuple(tile_strides[j] // item for j in along),
        tuple(tile[j] for j in along),
        (tuple(low for low, _ in columns), tuple(high for _, high in columns)),
        (),
        item,
    )
    return None if foot is None else _Rows(index, along, columns, foot, active, wanted)


def load_rows(access: Access, raw: torch.dtype, other: object) -> Tensor | None:
    """The tile as ``raw``, ``other`` where the mask is false; None if it has no rows, or if a row leaves its tensor.

    Whole rows are read, also where a mask leaves out some of their elements: all of them lie inside the allocation.
    """
    found = _rows_of(access)
    if found is None:
        return None
    nl, tile, active = len(access.batch.lanes), access.tile, found.active
    index = found.index
    if found.wanted is not None:
        index, wanted = torch.broadcast_tensors(index, found.wanted)
        index = torch.where(wanted, index, index[wanted][0])
    place = _place(access, index, found.foot)
    if place is None:
        return None
    allocation, begin, first, end = place
    access.touch(allocation, by_launch(access.batch, active_elements(access, active) * access.item), first, end)
    at = (index.reshape(-1) - int(index.min())) >> (access.item.bit_length() - 1)
    memory = allocation.flat(raw).as_strided([int(at.max()) + 1, *found.foot.sizes], [1, *found.foot.steps], begin)
    rows = _in_place(memory.index_select(0, at), index.shape, [nl + j for j in found.along])
    if active is None:
        return rows
    if any(have != (0, tile[j]) for have, j in zip(found.columns, found.along, strict=True)):
        shape = list(rows.shape)
        inside = [slice(None)] * len(shape)
        for j, (low, high) in zip(found.along, found.columns, strict=True):
            shape[nl + j] = tile[j]
            inside[nl + j] = slice(low, high)
        whole = rows.new_zeros(shape)
        whole[tuple(inside)] = rows
        rows = whole
    return torch.where(active, rows, other if type(other) is Tensor else torch.tensor(other, dtype=raw))


def store_rows(access: Access, source: Tensor) -> bool:
    """Store whole rows that do not overlap. False, and nothing done, if that is not what the access is.

    ``source``: the tile value (broadcastable to lanes + tile) of a dtype that numpy knows, of no memory of the target.
    """
    found = _rows_of(access)
    if found is None or not found.foot.distinct:
        return False
    lanes, tile, item = access.batch.lanes, access.tile, access.item
    nl, foot = len(lanes), found.foot
    dims = [nl + j for j in found.along]
    full = tuple(lanes) + tuple(tile)
    outer = [1 if d in dims else n for d, n in enumerate(full)]
    index = found.index.expand(outer).reshape(-1)
    value = source.expand(full)
    needed = found.active
    for d, (low, high) in zip(dims, found.columns, strict=True):
        value = value.narrow(d, low, high - low)
        if needed is not None and needed.shape[d] > 1:
            needed = needed.narrow(d, low, high - low)
    values = value.movedim(dims, list(range(-len(dims), 0))).reshape(-1, *foot.sizes)
    if found.wanted is not None:
        if not bool((needed | ~found.wanted).all()):  # type: ignore[operator]
            return False
        wanted = found.wanted.expand(outer).reshape(-1)
        index, values = index[wanted], values[wanted]
    elif needed is not None and not bool(needed.all()):
        return False
    if len(index) > 1 and int(index.sort().values.diff().min()) < foot.most - foot.least:
        return False
    place = _place(access, index, foot)
    if place is None:
        return False
    allocation, begin, first, end = place
    access.touch(allocation, by_launch(access.batch, values.numel() * item), first, end)
    at = (index - int(index.min())) >> (item.bit_length() - 1)
    flat = allocation.flat(source.dtype).numpy()[begin:]
    strides = tuple(s * item for s in (1, *foot.steps))
    memory = np.lib.stride_tricks.as_strided(flat, (int(at.max()) + 1, *foot.sizes), strides)
    memory[at.numpy()] = values.numpy()
    return True


def _without_steps(scattered: Tensor, nl: int, item: int) -> tuple[Tensor, list[int]]:
    """``scattered`` as what is left (size 1) where it grows by a constant along a dimension, and those constants."""
    steps = [0] * (scattered.ndim - nl)
    for d in range(scattered.ndim - 1, nl - 1, -1):
        n = scattered.shape[d]
        if n < _SHORTEST:
            continue
        begin = scattered.narrow(d, 0, 1)
        line = scattered[(0,) * d + (slice(None),) + (0,) * (scattered.ndim - d - 1)]
        step = int(line[1] - line[0])
        if step <= 0 or step % item or not torch.equal(line, _progression(line[:1], step, n, 0)):
            continue
        if torch.equal(scattered, _progression(begin, step, n, d)):
            steps[d - nl] = step
            return begin, steps
    return scattered, steps


def _progression(begin: Tensor, step: int, n: int, dim: int) -> Tensor:
    """``n`` terms along ``dim`` from ``begin`` (size 1 there), ``step`` apart."""
    shape = [1] * begin.ndim
    shape[dim] = n
    return begin + torch.arange(0, step * n, step, dtype=begin.dtype).view(shape)


def _columns(active: Tensor | None, dim: int, n: int) -> tuple[int, int]:
    """First and last index along ``dim`` that any row needs."""
    if active is None or active.shape[dim] == 1:
        return 0, n
    needed = active.movedim(dim, 0).reshape(n, -1).any(1).nonzero()
    return (int(needed[0]), int(needed[-1]) + 1) if len(needed) else (0, n)


def _place(access: Access, index: Tensor, foot: Footprint) -> tuple[HostAllocation, int, int, int] | None:
    """Where rows at ``index`` lie: the allocation, the first row's first element, the first byte and the one past the last;
    None if they do not all lie in one allocation."""
    batch, item, p = access.batch, access.item, access.pointer
    least, most = (int(v) for v in torch.aminmax(index))
    if p.root is None:
        allocation = access.find(least + foot.least)
        if allocation is None:
            return None
        start = -allocation.base
    else:
        allocation, start = batch.execution.roots[p.root][batch.rank]
    first, end = least + start + foot.least, most + start + foot.most
    if first < 0 or end > allocation.nbytes or (least + start) % item:
        return None
    return allocation, (least + start + foot.shift) // item, first, end


def _in_place(rows: Tensor, shape: torch.Size, along: list[int]) -> Tensor:
    """``[number of rows, *row]`` with rows of ``shape`` (size 1 along the dimensions ``along``) as a tile value."""
    outer = [d for d in range(len(shape)) if d not in along]
    values = rows.view([shape[d] for d in outer] + list(rows.shape[1:]))
    order = [*outer, *along]
    if order == sorted(order):
        return values
    return values.permute([order.index(d) for d in range(len(shape))]).contiguous()
