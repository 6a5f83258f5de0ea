"""Loads and stores of tiles: strided views where addresses are affine, gathers where they are not.

An affine access of many programs is cut into *pieces*, rectangular runs of lanes over which the address is affine in
one allocation and the mask is one box. Most accesses are one piece: a view. Every piece is checked against the bounds
of its allocation with a few integer operations.
"""

from __future__ import annotations

from itertools import pairwise, product
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernbench.errors import MemoryAccessError

from .footprint import Cell, Footprint, Piece, footprint
from .lift.program import OpInfo
from .memory import Allocation
from .values import Aff, Box, Late, Ptr, dense_int, dense_mask, lane_array

#: Beyond this many pieces an access is gathered element by element.
MAX_PIECES = 512
#: Footprints kept per instruction.
_KEPT_FOOTPRINTS = 1024
#: Lanes at irregular addresses are copied window by window if that many, or if a window has that many elements.
_MOST_WINDOWS, _LARGE_WINDOW = 512, 32


def _runs(arrays: list[np.ndarray], axis: int, n: int) -> list[tuple[int, int]]:
    """Maximal index ranges along ``axis`` over which none of ``arrays`` changes."""
    cut = np.zeros(n - 1, dtype=bool)
    others = None
    for a in arrays:
        if a.shape[axis] == 1:
            continue
        changes = np.diff(a, axis=axis) != 0
        others = tuple(k for k in range(a.ndim) if k != axis)
        cut |= changes.any(axis=others)
    edges = [0, *(np.nonzero(cut)[0] + 1).tolist(), n]
    return list(pairwise(edges))


def _at(v: np.ndarray, lane: tuple[int, ...]) -> int:
    """The number of one lane in an array that is broadcastable to the lanes."""
    return int(v[tuple([s if n > 1 else 0 for s, n in zip(lane, v.shape, strict=True)])])


def _bounds_at(bounds: tuple[Any, ...], lane: tuple[int, ...]) -> tuple[int, ...]:
    return tuple([_at(v, lane) if type(v) is np.ndarray else v for v in bounds])


def _filled_bounds(low: Any, high: Any, tile: tuple[int, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Bounds with the whole tile where there is no mask."""
    return (
        tuple([0 if v is None else v for v in low]),
        tuple([n if v is None else v for v, n in zip(high, tile, strict=True)]),
    )


class _Windows:
    """Where the lanes' tiles lie, relative to one another: ``step`` bytes or multiples of it apart."""

    __slots__ = ("arr", "foot", "index", "least", "moving", "shape", "sizes", "span", "starts", "step", "steps")

    def __init__(
        self,
        arr: np.ndarray,
        foot: Footprint,
        shape: tuple[int, ...],
        moving: list[int],
        starts: np.ndarray,
        item: int,
    ) -> None:
        self.arr = arr
        self.foot = foot
        self.shape = shape
        self.moving = moving
        self.starts = starts
        self.least = int(starts.min())
        apart = starts - self.least
        self.span = int(apart.max())
        self.step = int(np.gcd.reduce(apart)) or item
        self.index = torch.from_numpy(apart // self.step)
        self.sizes = [self.span // self.step + 1, *foot.sizes]
        self.steps = [self.step // item, *foot.steps]

    def only(self, which: np.ndarray, item: int) -> _Windows:
        """Some of the windows."""
        return _Windows(self.arr, self.foot, self.shape, self.moving, self.starts[which], item)


class Access:
    """One load or store instruction executed by one batch."""

    def __init__(self, b: Any, info: OpInfo, pointer: Ptr, tile: tuple[int, ...], item: int) -> None:
        self.b = b
        self.info = info
        self.pointer = pointer
        self.tile = tile
        self.item = item

    # Affine

    def pieces(self, mask: Box | None) -> tuple[list[Piece], tuple[int, ...]] | None:
        """The pieces of an affine access and the shape of its tile value; None if it must be gathered."""
        b, tile = self.b, self.tile
        lanes: tuple[int, ...] = b.lanes
        nl = len(lanes)
        c, ls, ts, arr = self._affine()
        low, high, varying = self._bounds(mask, ts)
        allocation: Allocation | None = None
        root = self.pointer.root
        if root is not None:
            bases = b.x.roots[root]
            if b.rank_index is None:
                allocation, start = bases[b.rank]
                c += start
            elif arr is None and not varying and not ls[0] and b.rank_index.shape[0] == b.rank_index.size:
                return self._per_rank(root, c, ls, ts, low, high)
            else:
                address = np.array([a.base + s for a, s in bases], dtype=np.int64)[b.rank_index]
                arr = address if arr is None else arr + address
        elif any(ls) and not b.x.whole_in_bounds(b, self.pointer, tile, self.item):
            # Absolute pointers that step from one allocation to the next: every lane for itself.
            arr = lane_array(Aff(0, ls, (), 0, 0, arr), lanes)
            ls = (0,) * nl
        if arr is None and not varying:
            layout = self._layout(ls, ts, lanes, low, high)
            if layout is None:
                return None
            foot, shape, cell = layout
            return ([] if foot is None else [self._place(foot, allocation, c, foot.at, cell)]), shape
        item = self.item
        if any(s % item for s in ls + ts):
            return None
        strides = tuple([s // item for s in ls + ts])
        # A dimension along which neither the address nor the mask changes has size 1.
        sizes = [n if s else 1 for n, s in zip(lanes + tile, strides, strict=True)]
        for j, n in enumerate(tile):
            if mask is not None and mask.bounds[j] is not None:
                sizes[nl + j] = n
        moving = varying if arr is None else [*varying, arr]
        runs = []
        total = 1
        for k in range(nl):
            if any(a.shape[k] > 1 for a in moving):
                found = _runs(moving, k, lanes[k])
                sizes[k] = lanes[k]
            else:
                found = [(0, lanes[k])]
            runs.append(found)
            total *= len(found)
        if total > MAX_PIECES and total * 64 > prod(sizes):
            return None
        out = []
        kept: dict[Any, Any] = self.info.layouts
        if len(kept) > _KEPT_FOOTPRINTS:
            kept.clear()
        whole = tuple(sizes)
        if not varying:
            low, high = _filled_bounds(low, high, tile)
        for cell in product(*runs):
            first = tuple([s for s, _ in cell])
            lo, hi = (low, high) if not varying else (_bounds_at(low, first), _bounds_at(high, first))
            key = (strides, whole, lo, hi, cell)
            foot = kept.get(key, kept)
            if foot is kept:
                foot = kept[key] = footprint(strides, whole, lo, hi, cell, item)
            if foot is None:
                continue
            at = c
            for k, s in enumerate(first):
                if s:
                    at += s * ls[k]
            if arr is not None:
                at += _at(arr, first)
            out.append(self._place(foot, allocation, at, foot.at, cell))
        return out, whole

    def _affine(self) -> tuple[int, tuple[int, ...], tuple[int, ...], np.ndarray | None]:
        """The pointer's byte offset: constant, strides over lanes and tile, and what is not affine over the lanes."""
        off = self.pointer.off
        if type(off) is Aff:
            return off.c, off.ls, off.ts, off.arr
        return off, (0,) * len(self.b.lanes), (0,) * len(self.tile), None

    def _bounds(
        self, mask: Box | None, ts: tuple[int, ...]
    ) -> tuple[tuple[Any, ...], tuple[Any, ...], list[np.ndarray]]:
        """First and last index per tile dimension, clipped to the tile (None: no mask there), and those that are arrays."""
        if mask is None:
            none = (None,) * len(self.tile)
            return none, none, []
        low: list[Any] = [None] * len(ts)
        high: list[Any] = [None] * len(ts)
        varying: list[np.ndarray] = []
        for j, bound in enumerate(mask.bounds):
            if bound is None:
                continue
            lo: Any
            hi: Any
            lo, hi = bound
            n = self.tile[j]
            if type(lo) is np.ndarray:
                lo = np.clip(lo, 0, n)
                varying.append(lo)
            else:
                lo = 0 if lo < 0 else n if lo > n else lo
            if type(hi) is np.ndarray:
                hi = np.clip(hi, 0, n)
                varying.append(hi)
            else:
                hi = 0 if hi < 0 else n if hi > n else hi
            low[j], high[j] = lo, hi
        if varying:
            return *_filled_bounds(low, high, self.tile), varying
        return tuple(low), tuple(high), varying

    def _layout(
        self,
        ls: tuple[int, ...],
        ts: tuple[int, ...],
        lanes: tuple[int, ...],
        low: tuple[Any, ...],
        high: tuple[Any, ...],
    ) -> tuple[Footprint | None, tuple[int, ...], Cell] | None:
        """The footprint of all lanes together (None: the mask is empty), the shape of the tile value and the lanes.

        None if strides are no multiples of an element. Kept per instruction.
        """
        kept: dict[Any, Any] = self.info.layouts
        key = (ls, ts, lanes, low, high, self.tile)
        found = kept.get(key, kept)
        if found is not kept:
            return found
        if len(kept) > _KEPT_FOOTPRINTS:
            kept.clear()
        item, tile = self.item, self.tile
        if any(s % item for s in ls + ts):
            kept[key] = None
            return None
        strides = tuple([s // item for s in ls + ts])
        # A dimension along which neither the address nor the mask changes has size 1.
        sizes = tuple([
            n if s or bound is not None else 1
            for n, s, bound in zip(lanes + tile, strides, (*[None] * len(lanes), *low), strict=True)
        ])  # fmt: skip
        cell = tuple([(0, n) for n in lanes])
        made = (footprint(strides, sizes, *_filled_bounds(low, high, tile), cell, item), sizes, cell)
        kept[key] = made
        return made

    def _per_rank(
        self, root: int, c: int, ls: tuple[int, ...], ts: tuple[int, ...], low: tuple[Any, ...], high: tuple[Any, ...]
    ) -> tuple[list[Piece], tuple[int, ...]] | None:
        """One piece per rank: the same footprint in another allocation."""
        b, item = self.b, self.item
        lanes: tuple[int, ...] = b.lanes
        layout = self._layout(ls, ts, (1, *lanes[1:]), low, high)
        if layout is None:
            return None
        foot, shape, cell = layout
        shape = (lanes[0], *shape[1:])
        if foot is None:
            return [], shape
        roots = b.rank_roots(root, item)
        least, most = c + foot.least, c + foot.most
        inside = least >= roots.least and most <= roots.most and roots.aligned and not c % item
        out = []
        rest, foot_at = cell[1:], foot.at[1:]
        begin = c + foot.shift
        for k, (allocation, start) in enumerate(roots.bases):
            at, here = (slice(k, k + 1), *foot_at), ((k, k + 1), *rest)
            if inside:
                piece = Piece(allocation, (begin + start) // item, foot, at, here)
            else:
                piece = self._place(foot, allocation, c + start, at, here)
            out.append(piece)
        if inside:
            b.x.touch_alike(self.info, roots, foot.active * item, least, most)
        return out, shape

    def rank_tiles(self, mask: Box | None, dtype: torch.dtype) -> Tensor | None:
        """Load the same footprint of every rank's own allocation; None if ranks differ in more than that."""
        b, item = self.b, self.item
        lanes: tuple[int, ...] = b.lanes
        root = self.pointer.root
        c, ls, ts, arr = self._affine()
        if root is None or arr is not None or ls[0] or b.rank_index.shape[0] != b.rank_index.size:
            return None
        low, high, varying = self._bounds(mask, ts)
        layout = None if varying else self._layout(ls, ts, (1, *lanes[1:]), low, high)
        if layout is None:
            return None
        foot, shape, _ = layout
        if foot is None or tuple(foot.sizes) != shape:
            return None
        roots = b.rank_roots(root, item)
        least, most = c + foot.least, c + foot.most
        if least < roots.least or most > roots.most or not roots.aligned or c % item:
            return None
        b.x.touch_alike(self.info, roots, foot.active * item, least, most)
        raw = torch.uint8 if dtype.itemsize == 1 and dtype.is_floating_point else dtype
        begin, sizes, steps = (c + foot.shift) // item + foot.flip, foot.sizes, foot.steps
        out = torch.cat([flat.as_strided(sizes, steps, begin + at) for flat, at in roots.memory(raw)])
        if foot.backwards:
            out = out.flip(foot.backwards)
        return out if raw is dtype else out.view(dtype)

    def _place(
        self, foot: Footprint, allocation: Allocation | None, c: int, at: tuple[slice | None, ...], cell: Cell
    ) -> Piece:
        """The piece at byte ``c`` of an allocation, or at address ``c``; checked against bounds, and counted."""
        item = self.item
        if allocation is None:
            allocation = self.b.x.find(c + foot.least)
            if allocation is None:
                self.fail(c + foot.least, None, cell)
            c -= allocation.base
        least, most = c + foot.least, c + foot.most
        if least < 0 or most > allocation.nbytes:
            self._blame(c + foot.shift, foot.strides, foot.sizes, allocation, cell, len(self.b.lanes))
        c += foot.shift
        if c % item:
            raise MemoryAccessError(
                f"kernel {self.info.kernel}: address not aligned to {item} bytes in {allocation.describe()}\n"
                f"  at {self.info.loc}"
            )
        self.b.x.touch(self.info, allocation, foot.active * item, least, most)
        return Piece(allocation, c // item, foot, at, cell)

    def windows(self, mask: Box | None, dtype: torch.dtype, other: Any) -> Tensor | None:
        """Load where the tile is affine and the lanes are not: every lane's tile is a window on memory, and the windows lie
        a whole number of steps apart, so that one indexed copy fetches them. None if that is not so."""
        b = self.b
        lanes: tuple[int, ...] = b.lanes
        c, ls, ts, arr = self._affine()
        if arr is None or b.rank_index is not None:
            return None
        low, high, varying = self._bounds(mask, ts)
        if varying:
            return None
        # in a loop only ``c`` changes: what follows from the rest is kept, as long as the very same array comes
        kept: dict[Any, Any] = self.info.layouts
        key = ("windows", ls, ts, lanes, low, high, self.tile)
        plan: _Windows | None = kept.get(key)
        if plan is None or plan.arr is not arr:
            plan = self._plan_windows(arr, ls, ts, low, high)
            if plan is None:
                return None
            kept[key] = plan
        foot, shape, moving = plan.foot, plan.shape, plan.moving
        root = self.pointer.root
        allocation: Allocation | None = None
        if root is not None:
            allocation, base = b.x.roots[root][b.rank]
            c += base
        values = self._fetch(plan, allocation, c, dtype)
        if values is None:
            return None
        rest = foot.sizes
        values = values.view([lanes[k] for k in moving] + [n for k, n in enumerate(rest) if k not in moving])
        if moving != list(range(len(moving))):
            order = [*moving, *(k for k in range(len(rest)) if k not in moving)]
            values = values.permute([order.index(k) for k in range(len(rest))]).contiguous()
        full = tuple([lanes[k] if k in moving else n for k, n in enumerate(shape)])
        if tuple(values.shape) == full:
            return values
        out = filled(full, 0 if other is None else other, dtype)
        inside = tuple([slice(None) if a is None or k in moving else a for k, a in enumerate(foot.at)])
        out[inside].copy_(values)
        return out

    def _plan_windows(
        self, arr: np.ndarray, ls: tuple[int, ...], ts: tuple[int, ...], low: tuple[Any, ...], high: tuple[Any, ...]
    ) -> _Windows | None:
        lanes: tuple[int, ...] = self.b.lanes
        moving = [k for k in range(len(lanes)) if arr.shape[k] > 1]
        layout = self._layout(
            tuple([0 if k in moving else s for k, s in enumerate(ls)]),
            ts,
            tuple([1 if k in moving else n for k, n in enumerate(lanes)]),
            low,
            high,
        )
        if layout is None:
            return None
        foot, shape, _ = layout
        if foot is None:
            return None
        full = arr
        if any(ls[k] for k in moving):
            full = lane_array(Aff(0, tuple([s if k in moving else 0 for k, s in enumerate(ls)]), (), 0, 0, arr), lanes)
        if full.size > _MOST_WINDOWS and foot.active < _LARGE_WINDOW:
            return None
        return _Windows(arr, foot, shape, moving, full.reshape(-1), self.item)

    def _fetch(self, plan: _Windows, allocation: Allocation | None, c: int, dtype: torch.dtype) -> Tensor | None:
        """Copies of all windows ``c`` bytes on, stacked; None if they are to be looked at one by one."""
        item, foot = self.item, plan.foot
        lo = c + plan.least
        raw = torch.uint8 if dtype.itemsize == 1 and dtype.is_floating_point else dtype
        if allocation is None:
            allocation = self.b.x.find(lo + foot.least)
            if allocation is None:
                return None
            end = allocation.base + allocation.nbytes
            if lo + plan.span + foot.most > end:  # windows in several allocations
                here = plan.starts + (c + foot.most) <= end
                if not here.any():
                    return None
                first = self._fetch(plan.only(here, item), allocation, c - allocation.base, dtype)
                others = None if first is None else self._fetch(plan.only(~here, item), None, c, dtype)
                if first is None or others is None:
                    return None
                out = first.new_empty((len(here), *foot.sizes))
                which = torch.from_numpy(here)
                out[which], out[~which] = first, others
                return out
            lo -= allocation.base
        begin = lo + foot.shift
        most = lo + plan.span + foot.most
        if lo + foot.least < 0 or most > allocation.nbytes or plan.step % item or begin % item:
            return None
        self.b.x.touch(self.info, allocation, foot.active * item * len(plan.starts), lo + foot.least, most)
        memory = allocation.flat(raw).as_strided(plan.sizes, plan.steps, begin // item + foot.flip)
        out = memory.index_select(0, plan.index)
        if foot.backwards:
            out = out.flip([d + 1 for d in foot.backwards])
        return out if raw is dtype else out.view(dtype)

    def _blame(
        self,
        c: int,
        steps: list[int],
        sizes: list[int],
        allocation: Allocation,
        cell: tuple[tuple[int, int], ...],
        nl: int,
    ) -> None:
        """Find the first program of a piece that leaves the allocation, and the first element it reaches."""
        item = self.item
        tile = torch.zeros((1,) * (len(sizes) - nl), dtype=torch.int64)
        for j, (s, n) in enumerate(zip(steps[nl:], sizes[nl:], strict=True)):
            shape = [1] * (len(sizes) - nl)
            shape[j] = n
            tile = tile + (torch.arange(n) * (s * item)).reshape(shape)
        least, most = int(tile.min()), int(tile.max())
        for lane in np.ndindex(*sizes[:nl]):
            base = c + sum(i * s for i, s in zip(lane, steps, strict=False)) * item
            if base + least < 0 or base + most + item > allocation.nbytes:
                offsets = (tile + base).reshape(-1)
                bad = offsets[(offsets < 0) | (offsets + item > allocation.nbytes)]
                here = tuple((a + i, a + i + 1) for (a, _), i in zip(cell, lane, strict=True))
                self.fail(int(bad[0]), allocation, here)

    def fail(self, offset: int, allocation: Allocation | None, cell: tuple[tuple[int, int], ...] | None) -> None:
        """Raise the out-of-bounds error for a byte offset into (or an address outside of) an allocation."""
        b, info = self.b, self.info
        verb = "writes" if "store" in info.name else "updates" if "atomic" in info.name else "reads"
        where = b.describe_lanes(cell)
        if allocation is None:
            what = f"{verb} address {offset:#x}, which belongs to no live tensor"
        else:
            index = offset // self.item
            limit = allocation.nbytes // self.item
            what = f"{verb} element {index} of {allocation.describe()}, which has {limit} elements of {self.item} bytes"
        error = MemoryAccessError(
            f"kernel {info.kernel}: {what}\n  {where}\n  at {info.loc}\n  {info.name} of tile {self.tile}"
        )
        error.ranks = tuple(b.ranks(cell))  # type: ignore[attr-defined]
        raise error

    # Gathered

    def flat_index(self, active: Tensor | None) -> list[tuple[Allocation, Tensor, Tensor | None]]:
        """Element indices (shape: broadcastable lanes + tile) per allocation, with the mask of elements in it."""
        b, item = self.b, self.item
        p = self.pointer
        single = p.root is not None and b.rank_index is None
        if single:
            allocation, start = b.x.roots[p.root][b.rank]
            index = b.x.offsets(b, p, self.tile)
            if start:
                index = index + start
        else:
            allocation = None
            index = b.x.addresses(b, p, self.tile)
        if active is not None:
            shape = torch.broadcast_shapes(index.shape, active.shape)
            index, active = index.expand(shape), active.expand(shape)
            if not bool(active.any()):
                return []
            if not single:
                index = torch.where(active, index, index[active][0])
            else:
                index = torch.where(active, index, index[active][0])
        least, most = (int(v) for v in torch.aminmax(index)) if index.numel() else (0, 0)
        if allocation is None:
            allocation = b.x.find(least)
            if allocation is None:
                self.fail(least, None, None)
            if most >= allocation.base + allocation.nbytes:
                return self._several(index, active)
            index = index - allocation.base
            least, most = least - allocation.base, most - allocation.base
        if least < 0 or most + item > allocation.nbytes:
            self.fail_gather(index, active, allocation, least if least < 0 else most)
        if item > 1:
            index = index >> (item.bit_length() - 1)
        b.x.touch(self.info, allocation, self._active(index, active) * item, least, most + item)
        return [(allocation, index, active)]

    def _active(self, index: Tensor, active: Tensor | None) -> int:
        total = prod(self.b.lanes) * prod(self.tile)
        if active is None:
            return total
        return int(active.sum()) * (total // max(active.numel(), 1))

    def _several(self, address: Tensor, active: Tensor | None) -> list[tuple[Allocation, Tensor, Tensor | None]]:
        out: list[tuple[Allocation, Tensor, Tensor | None]] = []
        item = self.item
        left = torch.ones_like(address, dtype=torch.bool) if active is None else active.clone()
        while True:
            rest = address[left]
            if not rest.numel():
                return out
            least = int(rest.min())
            allocation = self.b.x.find(least)
            if allocation is None:
                self.fail(least, None, None)
            here = left & (address >= allocation.base) & (address < allocation.base + allocation.nbytes)
            index = torch.where(here, (address - allocation.base) >> (item.bit_length() - 1), 0)
            count = int(here.sum())
            self.b.x.touch(self.info, allocation, count * item, 0, allocation.nbytes)
            out.append((allocation, index, here))
            left = left & ~here

    def fail_gather(self, index: Tensor, active: Tensor | None, allocation: Allocation, offset: int) -> None:
        where = (index == offset).nonzero()
        lane = tuple(where[0].tolist()[: len(self.b.lanes)]) if len(where) else ()
        self.fail(
            offset,
            allocation,
            tuple((i, i + 1) if n > 1 else (0, m) for i, n, m in zip(lane, index.shape, self.b.lanes, strict=False)),
        )


def filled(shape: tuple[int, ...], value: Any, dtype: torch.dtype) -> Tensor:
    """A new tensor of ``shape`` holding ``value`` (a number, or a tensor to broadcast)."""
    if type(value) is Tensor:
        return value.expand(torch.broadcast_shapes(value.shape, shape)).clone(memory_format=torch.contiguous_format)
    if value == 0 and value is not None:
        return torch.zeros(shape, dtype=dtype)
    if dtype.itemsize == 1 and dtype.is_floating_point:
        return torch.full(shape, value, dtype=torch.float32).to(dtype)
    return torch.full(shape, value, dtype=dtype)


def load(
    b: Any, info: OpInfo, p: Ptr, tile: tuple[int, ...], dtype: torch.dtype, mask: Any, other: Any
) -> Tensor | None:
    """Load a tile; None when the mask is false everywhere and the result is ``other``."""
    access = Access(b, info, p, tile, dtype.itemsize)
    box: Box | None = None
    dense: Tensor | None = None
    if type(mask) is Box:
        box = mask
    elif type(mask) is Tensor:
        dense = mask
    elif not mask:
        return None
    if p.den is None:
        if dense is not None and b.x.checks is None:
            found = _load_where(access, dense, dtype, other)
            if found is not None:
                return found
        elif dense is None:
            if b.rank_index is not None and b.x.checks is None:
                tiles = access.rank_tiles(box, dtype)
                if tiles is not None:
                    return tiles
            elif type(p.off) is Aff and p.off.arr is not None and b.x.checks is None:
                windows = access.windows(box, dtype, other)
                if windows is not None:
                    return windows
            cut = access.pieces(box)
            if cut is not None:
                if b.x.checks is not None:
                    for piece in cut[0]:
                        b.x.checks.read_piece(b, info, piece, dtype.itemsize)
                return _load_pieces(info, cut[0], cut[1], dtype, other)
    if box is not None:
        dense = dense_mask(box, b.lanes, tile)  # type: ignore[assignment]
    groups = access.flat_index(dense)
    if b.x.checks is not None:
        for allocation, index, here in groups:
            b.x.checks.read_index(b, info, allocation, index, here, dtype.itemsize)
    if len(groups) == 1 and groups[0][2] is None:
        return (
            groups[0][0].flat(dtype).take(groups[0][1])
            if dtype.itemsize > 1 or not dtype.is_floating_point
            else _take8(groups[0][0], groups[0][1], dtype)
        )
    if not groups:
        return None
    if dtype.itemsize == 1 and dtype.is_floating_point:
        return _gather_groups(groups, torch.uint8, _as_bytes(other, dtype)).view(dtype)
    return _gather_groups(groups, dtype, 0 if other is None else other)


def _as_bytes(other: Any, dtype: torch.dtype) -> Any:
    if other is None:
        return 0
    return (
        other.contiguous().view(torch.uint8)
        if type(other) is Tensor
        else int(torch.tensor([other]).to(dtype).view(torch.uint8))
    )


def _take8(allocation: Allocation, index: Tensor, dtype: torch.dtype) -> Tensor:
    return allocation.flat(torch.uint8).take(index).view(dtype)


def _gather_groups(groups: list[tuple[Allocation, Tensor, Tensor | None]], dtype: torch.dtype, other: Any) -> Tensor:
    out: Any = other if type(other) is Tensor else torch.tensor(other, dtype=dtype)
    for allocation, index, here in groups:
        values = allocation.flat(dtype).take(index)
        out = values if here is None else torch.where(here, values, out)
    return out


def _load_pieces(
    info: OpInfo, pieces: list[Piece], shape: tuple[int, ...], dtype: torch.dtype, other: Any
) -> Tensor | None:
    if not pieces:
        return None
    if len(pieces) == 1:
        piece = pieces[0]
        view = piece.read(dtype)
        if tuple(piece.sizes) == shape:
            return view if info.view_ok else view.clone()
    out = filled(shape, 0 if other is None else other, dtype)
    for piece in pieces:
        out[piece.where].copy_(piece.read(dtype))
    return out


def _load_where(access: Access, mask: Tensor, dtype: torch.dtype, other: Any) -> Tensor | None:
    """Affine addresses under an arbitrary mask: read everything if all of it lies inside the allocation."""
    if not access.b.x.whole_in_bounds(access.b, access.pointer, access.tile, access.item):
        return None
    if dtype.itemsize == 1 and dtype.is_floating_point:
        return None
    cut = access.pieces(None)
    if cut is None:
        return None
    values = _load_pieces(access.info, cut[0], cut[1], dtype, None)
    if values is None:
        return None
    fill = other if type(other) is Tensor else torch.tensor(0 if other is None else other, dtype=dtype)
    return torch.where(mask, values, fill)


def store(b: Any, info: OpInfo, p: Ptr, tile: tuple[int, ...], dtype: torch.dtype, value: Any, mask: Any) -> None:
    """Store a tile. Where several lanes write one address, the last lane wins."""
    access = Access(b, info, p, tile, dtype.itemsize)
    box: Box | None = None
    dense: Tensor | None = None
    if type(mask) is Box:
        box = mask
    elif type(mask) is Tensor:
        dense = mask
    elif not mask:
        return
    if type(value) is Late and (p.den is not None or dense is not None):
        value = value.value()
    if p.den is None and dense is None:
        cut = access.pieces(box)
        if type(value) is Late and (cut is None or len(cut[0]) > 1):
            value = value.value()
        if cut is not None:
            if len(cut[0]) > 1:
                value = _own(value, [piece.allocation for piece in cut[0]])
            for piece in cut[0]:
                if b.x.checks is not None:
                    b.x.checks.write_piece(b, info, piece, dtype.itemsize)
                _store_piece(piece, value, dtype)
            return
    if p.den is None and dense is not None and b.x.checks is None and _store_blend(access, value, dense, dtype):
        return
    if box is not None:
        dense = dense_mask(box, b.lanes, tile)  # type: ignore[assignment]
    scatter(access, value, dense, dtype)


def _own(value: Any, targets: list[Allocation]) -> Any:
    """``value``, copied if it is a view of memory that is about to be written."""
    if type(value) is Tensor:
        base = value.untyped_storage().data_ptr()
        if any(t.base == base for t in targets):
            return value.clone()
    return value


def _store_piece(piece: Piece, value: Any, dtype: torch.dtype) -> None:
    view, backwards = piece.view(dtype)
    if type(value) is Late:
        if not backwards and _apart(view, piece, value.args) and value.into(view, *value.args):
            return
        value = value.value()
    if type(value) is not Tensor:
        if dtype.itemsize == 1 and dtype.is_floating_point:
            view.copy_(torch.tensor(value, dtype=torch.float32).to(dtype))
        else:
            view.fill_(value)
        return
    source = narrow_to(value, piece)
    for d, (s, n) in enumerate(zip(piece.strides, piece.sizes, strict=True)):
        if s == 0 and n > 1:  # a run of lanes at one address: the last wins
            view = view.narrow(d, 0, 1)
            source = source if source.shape[d] == 1 else source.narrow(d, n - 1, 1)
    if backwards:
        source = source.expand(view.shape).flip(backwards)
    source = _own(source, [piece.allocation])
    view.copy_(source)


def _apart(view: Tensor, piece: Piece, operands: tuple[Any, ...]) -> bool:
    """Whether an elementwise operation may write to ``view``: every element has an address of its own, and operands in
    the same memory are the very same elements."""
    if not piece.foot.distinct:
        return False
    for x in operands:
        if type(x) is not Tensor or x.untyped_storage().data_ptr() != piece.allocation.base:
            continue
        if x.data_ptr() != view.data_ptr() or x.stride() != view.stride() or x.shape != view.shape:
            return False
    return True


def narrow_to(value: Tensor, piece: Piece) -> Tensor:
    """The part of a tile value that a piece covers; of elements sharing an address, the last."""
    index: list[slice] = []
    plain = True
    for d, (have, at, size) in enumerate(zip(value.shape, piece.at, piece.sizes, strict=True)):
        if have == 1:
            index.append(slice(None))
        elif at is None:
            stop = piece.lanes[d][1] if d < len(piece.lanes) else have
            index.append(slice(stop - 1, stop))
            plain = False
        else:
            index.append(at)
            plain = plain and size == have
    return value if plain else value[tuple(index)]


def _store_blend(access: Access, value: Any, mask: Tensor, dtype: torch.dtype) -> bool:
    """Affine, non-overlapping addresses under an arbitrary mask: write old values back where it is false."""
    b = access.b
    if not b.x.whole_in_bounds(b, access.pointer, access.tile, access.item):
        return False
    if dtype.itemsize == 1 and dtype.is_floating_point:
        return False
    before = b.x.snapshot_counts()
    cut = access.pieces(None)
    if cut is None or len(cut[0]) != 1:
        b.x.restore_counts(before)
        return False
    piece = cut[0][0]
    if not piece.foot.distinct or any(
        n == 1 and full > 1
        for n, full in zip(piece.sizes, torch.broadcast_shapes(mask.shape, b.lanes + access.tile), strict=True)
    ):
        b.x.restore_counts(before)
        return False
    view, backwards = piece.view(dtype)
    if backwards:
        b.x.restore_counts(before)
        return False
    source = value if type(value) is Tensor else torch.tensor(value, dtype=dtype)
    view.copy_(torch.where(mask, source, view))
    return True


def scatter(access: Access, value: Any, mask: Tensor | None, dtype: torch.dtype) -> None:
    """Element-wise store, in lane order."""
    raw = torch.uint8 if dtype.itemsize == 1 else dtype
    source = (
        value
        if type(value) is Tensor
        else torch.tensor(value, dtype=torch.float32 if dtype.is_floating_point else dtype).to(dtype)
    )
    if source.dtype != raw:
        source = source.contiguous().view(raw) if source.element_size() == 1 else source
    for allocation, index, here in access.flat_index(mask):
        if access.b.x.checks is not None:
            access.b.x.checks.write_index(access.b, access.info, allocation, index, here, dtype.itemsize)
        source = _own(source, [allocation])
        shape = torch.broadcast_shapes(index.shape, source.shape)
        index, values = index.expand(shape), source.expand(shape)
        if here is not None:
            here = here.expand(shape)
            index, values = index[here], values[here]
        flat = allocation.flat(raw)
        if raw is torch.bfloat16:
            flat, values = allocation.flat(torch.int16), values.contiguous().view(torch.int16)
        # numpy assigns in order: where addresses repeat, the last lane wins.
        flat.numpy()[index.reshape(-1).numpy()] = values.reshape(-1).numpy()


__all__ = ["Access", "dense_int", "load", "store"]
