"""The footprint of an affine access, kept per instruction, and its place in memory: checked against bounds, and counted."""

from __future__ import annotations

from typing import Any

from kernbench.errors import MemoryAccessError
from kernbench.triton_engine.memory import HostAllocation
from kernbench.triton_engine.shares import by_launch

from .faults import first_outside, out_of_bounds
from .footprint import Cell, Footprint, Piece, footprint
from .operands import Access, Bounds, filled_bounds

#: Footprints kept per instruction.
KEPT_FOOTPRINTS = 1024


def layout_of(
    access: Access, strides: tuple[int, ...], lanes: tuple[int, ...], bounds: Bounds
) -> tuple[Footprint | None, tuple[int, ...], Cell] | None:
    """The footprint of all lanes together (None: the mask is empty), the shape of the tile value and the lanes.

    ``strides`` in bytes, over lanes then tile. None if they are no multiples of an element. Kept per instruction.
    """
    kept: dict[Any, Any] = access.info.layouts
    key = (strides, lanes, bounds, access.tile)
    found = kept.get(key, kept)
    if found is not kept:
        return found
    if len(kept) > KEPT_FOOTPRINTS:
        kept.clear()
    item, tile = access.item, access.tile
    if any(s % item for s in strides):
        kept[key] = None
        return None
    steps = tuple([s // item for s in strides])
    # A dimension along which neither the address nor the mask changes has size 1.
    unmasked = (*[None] * len(lanes), *bounds[0])
    sizes = tuple([n if s or low is not None else 1 for n, s, low in zip(lanes + tile, steps, unmasked, strict=True)])
    cell = tuple([(0, n) for n in lanes])
    kept[key] = made = (footprint(steps, sizes, filled_bounds(bounds, tile), cell, item), sizes, cell)
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
        allocation = access.find(origin + foot.least)
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
    access.touch(allocation, by_launch(access.batch, foot.active * item, cell), least, most)
    return Piece(allocation, origin // item, foot, at, cell)
