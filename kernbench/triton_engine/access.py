"""Loads and stores of tiles: strided views where addresses are affine, gathers where they are not.

An affine access of many programs is cut into *pieces*, rectangular runs of lanes over which the address is affine in
one allocation and the mask is one box. Most accesses are one piece: a view. Every piece is checked against the bounds
of its allocation with a few integer operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise, product
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernbench.errors import MemoryAccessError

from .lift.program import OpInfo
from .memory import Allocation
from .values import Aff, Box, Ptr, dense_int, dense_mask, lane_array

#: Beyond this many pieces an access is gathered element by element.
MAX_PIECES = 512


@dataclass(slots=True)
class Piece:
    """``sizes``/``strides`` in elements over lane then tile dimensions; ``at`` where the piece lies in the tile value
    (None: the address does not vary along this dimension, which has size 1)."""

    allocation: Allocation
    offset: int
    sizes: list[int]
    strides: list[int]
    at: tuple[slice | None, ...]
    lanes: tuple[tuple[int, int], ...]
    #: Byte offsets of the first element and past the last, and the number of elements.
    least: int = 0
    most: int = 0
    active: int = 0
    #: The piece is everything that one rank of a batch accesses.
    whole_rank: bool = False

    def view(self, dtype: torch.dtype) -> tuple[Tensor, list[int]]:
        """The memory of the piece, and the dimensions that run backwards (torch has no negative strides)."""
        offset, strides, backwards = self.offset, self.strides, []
        if min(strides, default=0) < 0:
            strides = list(strides)
            for d, (s, n) in enumerate(zip(self.strides, self.sizes, strict=True)):
                if s < 0:
                    offset += s * (n - 1)
                    strides[d] = -s
                    backwards.append(d)
        return self.allocation.flat(dtype).as_strided(self.sizes, strides, offset), backwards

    def read(self, dtype: torch.dtype) -> Tensor:
        view, backwards = self.view(dtype)
        return view.flip(backwards) if backwards else view

    @property
    def where(self) -> tuple[slice, ...]:
        return tuple([slice(0, 1) if a is None else a for a in self.at])


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


def _bounds_at(bounds: list[Any], lane: tuple[int, ...]) -> list[int]:
    return [_at(v, lane) if type(v) is np.ndarray else v for v in bounds]


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
        b, tile, item = self.b, self.tile, self.item
        lanes: tuple[int, ...] = b.lanes
        nl = len(lanes)
        off = self.pointer.off
        if type(off) is Aff:
            c, ls, ts, arr = off.c, off.ls, off.ts, off.arr
        else:
            c, ls, ts, arr = off, (0,) * nl, (0,) * len(tile), None
        allocation: Allocation | None = None
        root = self.pointer.root
        if root is not None:
            bases = b.x.roots[root]
            if b.rank_index is None:
                allocation, start = bases[b.rank]
                c += start
            elif arr is None and b.rank_index.shape[0] == b.rank_index.size and not ls[0] and mask is None:
                return self._per_rank(bases, c, ls, ts)
            else:
                address = np.array([a.base + s for a, s in bases], dtype=np.int64)[b.rank_index]
                arr = address if arr is None else arr + address
        elif any(ls) and not b.x.whole_in_bounds(b, self.pointer, tile, item):
            # Absolute pointers that step from one allocation to the next: every lane for itself.
            arr = lane_array(Aff(0, ls, (), 0, 0, arr), lanes)
            ls = (0,) * nl
        strides = []
        for s in ls + ts:
            if s % item:
                return None
            strides.append(s // item)
        # A dimension along which neither the address nor the mask changes has size 1.
        sizes = [n if s else 1 for n, s in zip(lanes + tile, strides, strict=True)]
        low: list[Any] = [0] * len(tile)
        high: list[Any] = list(tile)
        varying: list[np.ndarray] = []
        if mask is not None:
            for j, bound in enumerate(mask.bounds):
                if bound is None:
                    continue
                sizes[nl + j] = tile[j]
                lo, hi = bound
                n = tile[j]
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
        if arr is None and not varying:
            lane_at = tuple([(0, n) for n in lanes])
            piece = self._piece(allocation, c, strides, sizes, low, high, lane_at, nl)
            return ([piece] if piece is not None else []), tuple(sizes)
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
        for cell in product(*runs):
            first = tuple([s for s, _ in cell])
            at = c
            for k, s in enumerate(first):
                if s:
                    at += s * ls[k]
            if arr is not None:
                at += _at(arr, first)
            piece = self._piece(
                allocation, at, strides, sizes, _bounds_at(low, first), _bounds_at(high, first), cell, nl
            )
            if piece is not None:
                out.append(piece)
        return out, tuple(sizes)

    def _per_rank(
        self, bases: list[tuple[Allocation, int]], c: int, ls: tuple[int, ...], ts: tuple[int, ...]
    ) -> tuple[list[Piece], tuple[int, ...]] | None:
        """One piece per rank: the same view at another base. Only bounds are looked at again."""
        b, tile, item = self.b, self.tile, self.item
        lanes: tuple[int, ...] = b.lanes
        strides = [s // item for s in ls + ts]
        if any(s % item for s in ls + ts):
            return None
        sizes = [n if s else 1 for n, s in zip(lanes + tile, strides, strict=True)]
        cell = ((0, 1), *[(0, n) for n in lanes[1:]])
        low, high = [0] * len(tile), list(tile)
        ranks = b.rank_index.reshape(-1).tolist()
        allocation, start = bases[ranks[0]]
        first = self._piece(allocation, c + start, strides, sizes, low, high, cell, len(lanes))
        assert first is not None
        sizes[0] = lanes[0]
        out = []
        for k, r in enumerate(ranks):
            allocation, here = bases[r]
            move = here - start
            at = ((k, k + 1), *cell[1:])
            if k and (first.least + move < 0 or first.most + move > allocation.nbytes or move % item):
                self._piece(allocation, c + here, strides, sizes, low, high, at, len(lanes))  # raises
            if k:
                b.x.touch(self.info, allocation, first.active * item, first.least + move, first.most + move)
            piece = Piece(
                allocation,
                first.offset + move // item,
                first.sizes,
                first.strides,
                (slice(k, k + 1), *first.at[1:]),
                at,
            )
            piece.whole_rank = True
            out.append(piece)
        return out, tuple(sizes)

    def _piece(
        self,
        allocation: Allocation | None,
        c: int,
        strides: list[int],
        sizes: list[int],
        low: list[int],
        high: list[int],
        cell: tuple[tuple[int, int], ...],
        nl: int,
    ) -> Piece | None:
        item = self.item
        at: list[slice | None] = []
        out_sizes: list[int] = []
        least = most = c
        steps = []
        active = 1
        for k, (start, stop) in enumerate(cell):
            n = stop - start
            active *= n
            s = strides[k]
            if sizes[k] == 1:
                at.append(None)
                out_sizes.append(1)
                steps.append(0)
                continue
            at.append(slice(start, stop))
            if s:
                span = s * (n - 1) * item
                if span > 0:
                    most += span
                else:
                    least += span
            out_sizes.append(n)
            steps.append(s)
        for j, (lo, hi) in enumerate(zip(low, high, strict=True)):
            n = hi - lo
            if n <= 0:
                return None
            active *= n
            s = strides[nl + j]
            if sizes[nl + j] == 1:
                at.append(None)
                out_sizes.append(1)
                steps.append(0)
                continue
            at.append(slice(lo, hi))
            if s:
                c += lo * s * item
                least += lo * s * item
                most += lo * s * item
                span = s * (n - 1) * item
                if span > 0:
                    most += span
                else:
                    least += span
            out_sizes.append(n)
            steps.append(s)
        if allocation is None:
            allocation = self.b.x.find(least)
            if allocation is None:
                self.fail(least, None, cell)
            base = allocation.base
            c, least, most = c - base, least - base, most - base
        if least < 0 or most + item > allocation.nbytes:
            self._blame(c, least, most, steps, out_sizes, allocation, cell, nl)
        if c % item:
            raise MemoryAccessError(
                f"kernel {self.info.kernel}: address not aligned to {item} bytes in {allocation.describe()}\n"
                f"  at {self.info.loc}"
            )
        self.b.x.touch(self.info, allocation, active * item, least, most + item)
        return Piece(allocation, c // item, out_sizes, steps, tuple(at), cell, least, most + item, active)

    def _blame(
        self,
        c: int,
        least: int,
        most: int,
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
    if pieces[0].whole_rank:
        return torch.cat([piece.read(dtype) for piece in pieces])
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
    if p.den is None and dense is None:
        cut = access.pieces(box)
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
    if not _distinct(piece) or any(
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


def _distinct(piece: Piece) -> bool:
    """No two elements of the piece share an address (sufficient test: strides nest)."""
    dims = sorted((abs(s), n) for s, n in zip(piece.strides, piece.sizes, strict=True) if n > 1)
    reach = 0
    for s, n in dims:
        if s <= reach:
            return False
        reach += s * (n - 1)
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
