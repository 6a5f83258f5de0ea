"""Stores of tiles: into a strided view where addresses are affine, element by element where they are not."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernbench.triton_engine.batch import Batch
from kernbench.triton_engine.frontend.program import OpInfo
from kernbench.triton_engine.frontend.types import FLOAT8
from kernbench.triton_engine.memory import HostAllocation
from kernbench.triton_engine.values import Late, Ptr

from .footprint import Piece
from .gathered import flat_index
from .operands import Access
from .rows import store_rows
from .strided import pieces


def store(
    batch: Batch, info: OpInfo, p: Ptr, tile: tuple[int, ...], dtype: torch.dtype, value: object, mask: object
) -> None:
    """Store a tile. Where several lanes write one address, the last lane wins."""
    checks = batch.execution.checks
    if checks is not None and info.met:
        checks.meet(batch)
    access = Access(batch, info, p, tile, dtype.itemsize, mask)
    if access.masked_off:
        return
    if p.scattered is None and access.dense is None:
        cut = pieces(access, access.box)
        if cut is not None:
            if len(cut[0]) > 1:
                value = _own(value.value() if type(value) is Late else value, [piece.allocation for piece in cut[0]])
            for piece in cut[0]:
                if checks is not None:
                    checks.write_piece(access, piece)
                _store_piece(piece, value, dtype)
            return
    if type(value) is Late:
        value = value.value()
    if p.scattered is not None or checks is not None or not _store_masked(access, value, dtype):
        _scatter(access, value, dtype)


def _own(value: object, targets: list[HostAllocation]) -> Any:
    """``value``, copied if it is a view of memory that is about to be written."""
    if type(value) is Tensor:
        base = value.untyped_storage().data_ptr()
        if any(t.base == base for t in targets):
            return value.clone()
    return value


def _store_piece(piece: Piece, value: Any, dtype: torch.dtype) -> None:
    """Store a tile value, or what is covered of it, to one piece."""
    view, backwards = piece.view(dtype)
    if type(value) is Late:
        if not backwards and _apart(view, piece, value.operands) and value.into(view, *value.operands):
            return
        value = value.value()
    if type(value) is not Tensor:
        if dtype in FLOAT8:
            view.copy_(torch.tensor(value, dtype=torch.float32).to(dtype))
        else:
            view.fill_(value)
        return
    source = _covered(value, piece)
    for d, (s, n) in enumerate(zip(piece.strides, piece.sizes, strict=True)):
        if s == 0 and n > 1:  # a run of lanes at one address: the last wins
            view = view.narrow(d, 0, 1)
            source = source if source.shape[d] == 1 else source.narrow(d, n - 1, 1)
    if backwards:
        source = source.expand(view.shape).flip(backwards)
    source = _own(source, [piece.allocation])
    view.copy_(source)


def _apart(view: Tensor, piece: Piece, operands: tuple[object, ...]) -> bool:
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


def _covered(value: Tensor, piece: Piece) -> Tensor:
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


def _store_masked(access: Access, value: object, dtype: torch.dtype) -> bool:
    """Affine, non-overlapping addresses under an arbitrary mask: write old values back where it is false."""
    batch, mask = access.batch, access.dense
    if mask is None or dtype in FLOAT8 or not access.whole_in_bounds():
        return False
    before = batch.execution.snapshot_counts()
    cut = pieces(access, None)
    piece = cut[0][0] if cut is not None and len(cut[0]) == 1 else None
    full = torch.broadcast_shapes(mask.shape, batch.lanes + access.tile)
    if (
        piece is None
        or not piece.foot.distinct
        or piece.foot.backwards
        or any(size == 1 and n > 1 for size, n in zip(piece.sizes, full, strict=True))
    ):
        batch.execution.restore_counts(before)
        return False
    view, _ = piece.view(dtype)
    source = value if type(value) is Tensor else torch.tensor(value, dtype=dtype)
    view.copy_(torch.where(mask, source, view))
    return True


def _scatter(access: Access, value: object, dtype: torch.dtype) -> None:
    """Element-wise store, in lane order."""
    raw = torch.uint8 if dtype.itemsize == 1 else dtype
    source = (
        value
        if type(value) is Tensor
        else torch.tensor(value, dtype=torch.float32 if dtype.is_floating_point else dtype).to(dtype)
    )
    if source.dtype != raw:
        source = source.contiguous().view(raw) if source.element_size() == 1 else source
    checks, root = access.batch.execution.checks, access.pointer.root
    if checks is None and root is not None and source.ndim == len(access.batch.lanes) + len(access.tile):
        plain = source.contiguous().view(torch.int16) if raw is torch.bfloat16 else source
        target, _ = access.batch.execution.roots[root][access.batch.rank]
        if store_rows(access, _own(plain, [target])):
            return
    for allocation, index, here in flat_index(access):
        if checks is not None:
            checks.write_index(access, allocation, index, here)
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
