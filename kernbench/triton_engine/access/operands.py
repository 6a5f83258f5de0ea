"""A load or store and its operands, taken apart: the affine part of the pointer, the bounds and tensors of the mask."""

from __future__ import annotations

from typing import Any, final

import numpy as np
from torch import Tensor

from kernbench.triton_engine.batch import Batch
from kernbench.triton_engine.frontend.program import OpInfo
from kernbench.triton_engine.memory import HostAllocation
from kernbench.triton_engine.shares import Shares
from kernbench.triton_engine.values import Affine, Box, Ptr

#: First index, and the one past the last, per tile dimension: ints, arrays over the lanes, or None where there is no mask.
Bounds = tuple[tuple[Any, ...], tuple[Any, ...]]


@final
class Access:
    """One load, store or atomic executed by one batch: pointers to elements of ``item`` bytes, a tile of them per lane.

    The mask is a ``box``, a ``dense`` tensor (shape: broadcastable lanes + tile), or nothing (every element is accessed),
    unless the access is ``masked_off`` entirely.
    """

    __slots__ = ("batch", "box", "dense", "info", "item", "masked_off", "pointer", "tile")

    def __init__(
        self, batch: Batch, info: OpInfo, pointer: Ptr, tile: tuple[int, ...], item: int, mask: object = True
    ) -> None:
        self.batch = batch
        self.info = info
        self.pointer = pointer
        self.tile = tile
        self.item = item
        self.box: Box | None = None
        self.dense: Tensor | None = None
        self.masked_off = False
        if type(mask) is Box:
            self.box = mask
        elif type(mask) is Tensor:
            self.dense = mask
        else:
            self.masked_off = not mask

    def find(self, address: int) -> HostAllocation | None:
        """The live allocation that an address falls into."""
        found: HostAllocation | None = self.batch.execution.find(address)
        return found

    def touch(self, allocation: HostAllocation, shares: Shares, low: int, high: int) -> None:
        """Account for bytes, by launch, moved between byte offsets ``low`` and ``high`` of an allocation."""
        self.batch.execution.touch(self.info, allocation, shares, low, high)

    def whole_in_bounds(self) -> bool:
        """True if every element of an affine access, masked or not, lies inside one allocation."""
        return bool(self.batch.execution.whole_in_bounds(self.batch, self.pointer, self.tile, self.item))

    def affine_pointer(self) -> tuple[int, tuple[int, ...], tuple[int, ...], np.ndarray | None]:
        """The pointer's byte offset: constant, strides over lanes and tile, and what is not affine over the lanes."""
        off = self.pointer.offset
        if type(off) is Affine:
            return off.constant, off.lane_strides, off.tile_strides, off.per_lane
        return off, (0,) * len(self.batch.lanes), (0,) * len(self.tile), None

    def mask_bounds(self, mask: Box | None) -> tuple[Bounds, list[np.ndarray]]:
        """Its bounds per tile dimension, clipped to the tile (None: no mask there), and those that are arrays."""
        if mask is None:
            none = (None,) * len(self.tile)
            return (none, none), []
        low: list[Any] = [None] * len(self.tile)
        high: list[Any] = [None] * len(self.tile)
        varying: list[np.ndarray] = []
        for j, pair in enumerate(mask.bounds):
            if pair is None:
                continue
            for limits, limit in zip((low, high), pair, strict=True):
                limits[j] = clipped = _clipped(limit, self.tile[j])
                if type(clipped) is np.ndarray:
                    varying.append(clipped)
        bounds = tuple(low), tuple(high)
        return filled_bounds(bounds, self.tile) if varying else bounds, varying


def _clipped(limit: Any, extent: int) -> Any:
    if type(limit) is np.ndarray:
        return np.clip(limit, 0, extent)
    return 0 if limit < 0 else extent if limit > extent else limit


def filled_bounds(bounds: Bounds, tile: tuple[int, ...]) -> Bounds:
    """Bounds with the whole tile where there is no mask."""
    low, high = bounds
    return (
        tuple([0 if v is None else v for v in low]),
        tuple([n if v is None else v for v, n in zip(high, tile, strict=True)]),
    )
