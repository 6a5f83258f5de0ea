"""Loads whose addresses are irregular along some tile dimensions and affine along the others: one indexed copy of rows.

Paged attention, embeddings and mixtures of experts gather so: ``base + table[i][:, None] * stride + j[None, :]``.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor

from kernbench.triton_engine.values import Aff, dense_int, dense_mask

from .footprint import Footprint, footprint
from .gathered import active_elements
from .operands import Access

#: Rows of fewer elements are gathered element by element.
_SHORTEST = 8


def load_rows(access: Access, raw: torch.dtype, other: Any) -> Tensor | None:
    """The tile as ``raw``, ``other`` where the mask is false; None if it has no rows, or if a row leaves its tensor.

    Whole rows are read, also where a mask leaves out some of their elements: all of them lie inside the allocation.
    """
    b, item, tile = access.b, access.item, access.tile
    lanes: tuple[int, ...] = b.lanes
    nl = len(lanes)
    den = access.pointer.den
    c, ls, ts, arr = access.affine_pointer()
    if b.rank_index is not None:
        return None
    if den is not None:
        den, steps = _without_steps(den, nl, item)
        ts = tuple(a + s for a, s in zip(ts, steps, strict=True))
    along = [j for j, s in enumerate(ts) if s > 0 and s % item == 0 and (den is None or den.shape[nl + j] == 1)]
    if prod(tile[j] for j in along) < _SHORTEST:
        return None
    active: Any = access.dense if access.box is None else dense_mask(access.box, lanes, tile)
    active = active if type(active) is Tensor else None
    rest = dense_int(
        Aff(c, ls, tuple(0 if j in along else s for j, s in enumerate(ts)), 0, 0, arr), lanes, tile, torch.int64
    )
    index = rest if den is None else rest + den
    if type(index) is not Tensor:
        return None
    columns = [_columns(active, nl + j, tile[j]) for j in along]
    if active is not None:
        wanted = active
        for j in along:
            wanted = wanted.any(nl + j, keepdim=True)
        if not bool(wanted.all()):
            index, wanted = torch.broadcast_tensors(index, wanted)
            if not bool(wanted.any()):
                return None
            index = torch.where(wanted, index, index[wanted][0])
    foot = footprint(
        tuple(ts[j] // item for j in along),
        tuple(tile[j] for j in along),
        tuple(low for low, _ in columns),
        tuple(high for _, high in columns),
        (),
        item,
    )
    if foot is None:
        return None
    rows = _fetch(access, index, foot, raw, active)
    if rows is None:
        return None
    rows = _in_place(rows, index.shape, [nl + j for j in along])
    if active is None:
        return rows
    cropped = any(have != (0, tile[j]) for have, j in zip(columns, along, strict=True))
    if cropped:
        shape = list(rows.shape)
        inside = [slice(None)] * len(shape)
        for j, (low, high) in zip(along, columns, strict=True):
            shape[nl + j] = tile[j]
            inside[nl + j] = slice(low, high)
        whole = rows.new_zeros(shape)
        whole[tuple(inside)] = rows
        rows = whole
    return torch.where(active, rows, other if type(other) is Tensor else torch.tensor(other, dtype=raw))


def _without_steps(den: Tensor, nl: int, item: int) -> tuple[Tensor, list[int]]:
    """``den`` as what is left (size 1) where it grows by a constant along a dimension, and those constants."""
    steps = [0] * (den.ndim - nl)
    for d in range(den.ndim - 1, nl - 1, -1):
        n = den.shape[d]
        if n < _SHORTEST:
            continue
        begin = den.narrow(d, 0, 1)
        line = den[(0,) * d + (slice(None),) + (0,) * (den.ndim - d - 1)]
        step = int(line[1] - line[0])
        if step <= 0 or step % item or not torch.equal(line, _progression(line[:1], step, n, 0)):
            continue
        if torch.equal(den, _progression(begin, step, n, d)):
            steps[d - nl] = step
            return begin, steps
    return den, steps


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


def _fetch(access: Access, index: Tensor, foot: Footprint, raw: torch.dtype, active: Tensor | None) -> Tensor | None:
    """``[number of rows, *row]``: the rows that begin at the byte offsets (or addresses) ``index``; None if they do not
    all lie in one allocation."""
    b, item, p = access.b, access.item, access.pointer
    least, most = (int(v) for v in torch.aminmax(index))
    if p.root is None:
        allocation = b.x.find(least + foot.least)
        if allocation is None:
            return None
        start = -allocation.base
    else:
        allocation, start = b.x.roots[p.root][b.rank]
    first, end = least + start + foot.least, most + start + foot.most
    if first < 0 or end > allocation.nbytes or (least + start) % item:
        return None
    b.x.touch(access.info, allocation, active_elements(access, active) * item, first, end)
    memory = allocation.flat(raw).as_strided(
        [(most - least) // item + 1, *foot.sizes], [1, *foot.steps], (least + start + foot.shift) // item
    )
    return memory.index_select(0, (index.reshape(-1) - least) >> (item.bit_length() - 1))


def _in_place(rows: Tensor, shape: torch.Size, along: list[int]) -> Tensor:
    """``[number of rows, *row]`` with rows of ``shape`` (size 1 along the dimensions ``along``) as a tile value."""
    outer = [d for d in range(len(shape)) if d not in along]
    values = rows.view([shape[d] for d in outer] + list(rows.shape[1:]))
    order = [*outer, *along]
    if order == sorted(order):
        return values
    return values.permute([order.index(d) for d in range(len(shape))]).contiguous()
