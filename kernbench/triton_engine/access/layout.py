"""The footprint of an affine access, kept per instruction, and its place in memory: checked against bounds, and counted."""

from __future__ import annotations

from typing import Any

from kernbench.errors import MemoryAccessError
from kernbench.triton_engine.memory import HostAllocation

from .faults import first_outside, out_of_bounds
from .footprint import Cell, Footprint, Piece, footprint
from .operands import Access, filled_bounds

#: Footprints kept per instruction.
KEPT_FOOTPRINTS = 1024


def layout_of(
    access: Access,
    lane_strides: tuple[int, ...],
    tile_strides: tuple[int, ...],
    lanes: tuple[int, ...],
    low: tuple[Any, ...],
    high: tuple[Any, ...],
) -> tuple[Footprint | None, tuple[int, ...], Cell] | None:
    """The footprint of all lanes together (None: the mask is empty), the shape of the tile value and the lanes.

    None if strides are no multiples of an element. Kept per instruction.
    """
    kept: dict[Any, Any] = access.info.layouts
    key = (lane_strides, tile_strides, lanes, low, high, access.tile)
    found = kept.get(key, kept)
    if found is not kept:
        return found
    if len(kept) > KEPT_FOOTPRINTS:
        kept.clear()
    item, tile = access.item, access.tile
    if any(s % item for s in lane_strides + tile_strides):
        kept[key] = None
        return None
    strides = tuple([s // item for s in lane_strides + tile_strides])
    # A dimension along which neither the address nor the mask changes has size 1.
    sizes = tuple([
        n if s or bound is not None else 1
        for n, s, bound in zip(lanes + tile, strides, (*[None] * len(lanes), *low), strict=True)
    ])  # fmt: skip
    cell = tuple([(0, n) for n in lanes])
    made = (footprint(strides, sizes, *filled_bounds(low, high, tile), cell, item), sizes, cell)
    kept[key] = made
    return made


def place(
    access: Access,
    foot: Footprint,
    allocation: HostAllocation | None,
    origin: int,
    at: tuple[slice | None, ...],
    cell: Cell,
) -> Piece:
    """The piece at byte ``origin`` of an allocation, or at that address; checked against bounds, and counted."""
    item = access.item
    if allocation is None:
        allocation = access.batch.execution.find(origin + foot.least)
        if allocation is None:
            out_of_bounds(access, origin + foot.least, None, cell)
        origin -= allocation.base
    least, most = origin + foot.least, origin + foot.most
    if least < 0 or most > allocation.nbytes:
        first_outside(access, origin + foot.shift, foot, allocation, cell)
    origin += foot.shift
    if origin % item:
        raise MemoryAccessError(
            f"kernel {access.info.kernel}: address not aligned to {item} bytes in {allocation.describe()}\n"
            f"  at {access.info.loc}"
        )
    access.batch.execution.touch(access.info, allocation, foot.active * item, least, most)
    return Piece(allocation, origin // item, foot, at, cell)
