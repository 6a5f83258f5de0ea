"""Irregular accesses: an element index for every lane and tile element, per allocation."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from kernbench.triton_engine.memory import HostAllocation
from kernbench.triton_engine.shares import by_launch_of_elements
from kernbench.triton_engine.values import dense_mask

from .faults import gather_outside, out_of_bounds
from .operands import Access


def flat_index(access: Access) -> list[tuple[HostAllocation, Tensor, Tensor | None]]:
    """Element indices (shape: broadcastable lanes + tile) per allocation, with the mask of elements in it."""
    batch, item = access.batch, access.item
    active = access.dense
    if access.box is not None:
        active = dense_mask(access.box, batch.lanes, access.tile)  # type: ignore[assignment]
    p = access.pointer
    if p.root is not None and batch.rank_index is None:
        allocation, start = batch.execution.roots[p.root][batch.rank]
        index = batch.execution.offsets(batch, p, access.tile)
        if start:
            index = index + start
    else:
        allocation = None
        index = batch.execution.addresses(batch, p, access.tile)
    if active is not None:
        shape = torch.broadcast_shapes(index.shape, active.shape)
        index, active = index.expand(shape), active.expand(shape)
        if not bool(active.any()):
            return []
        index = torch.where(active, index, index[active][0])
    least, most = (int(v) for v in torch.aminmax(index)) if index.numel() else (0, 0)
    if allocation is None:
        allocation = access.find(least)
        if allocation is None:
            out_of_bounds(access, least, None, None)
        if most >= allocation.base + allocation.nbytes:
            return _several(access, index, active)
        index = index - allocation.base
        least, most = least - allocation.base, most - allocation.base
    if batch.execution.blind and (least < 0 or most + item > allocation.nbytes):
        index = index // item % max(allocation.nbytes // item, 1) * item  # by values that are not computed
        least, most = (int(v) for v in torch.aminmax(index))
    if least < 0 or most + item > allocation.nbytes:
        gather_outside(access, index, allocation, least if least < 0 else most)
    if item > 1:
        index = index >> (item.bit_length() - 1)
    access.touch(allocation, by_launch_of_elements(batch, item, access.tile, active), least, most + item)
    return [(allocation, index, active)]


def active_elements(access: Access, active: Tensor | None) -> int:
    """How many elements the access moves: those of all lanes where ``active``."""
    total = prod(access.batch.lanes) * prod(access.tile)
    if active is None:
        return total
    return int(active.sum()) * (total // max(active.numel(), 1))


def _several(
    access: Access, address: Tensor, active: Tensor | None
) -> list[tuple[HostAllocation, Tensor, Tensor | None]]:
    """Indices of addresses that lie in several allocations."""
    out: list[tuple[HostAllocation, Tensor, Tensor | None]] = []
    item = access.item
    left = torch.ones_like(address, dtype=torch.bool) if active is None else active.clone()
    while True:
        rest = address[left]
        if not rest.numel():
            return out
        least = int(rest.min())
        allocation = access.find(least)
        if allocation is None:
            out_of_bounds(access, least, None, None)
        here = left & (address >= allocation.base) & (address < allocation.base + allocation.nbytes)
        index = torch.where(here, (address - allocation.base) >> (item.bit_length() - 1), 0)
        first, end = least - allocation.base, (int(index.max()) + 1) * item
        access.touch(allocation, by_launch_of_elements(access.batch, item, access.tile, here), first, end)
        out.append((allocation, index, here))
        left = left & ~here
