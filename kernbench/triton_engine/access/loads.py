"""Loads of tiles: a strided view where addresses are affine, an indexed copy where they are not."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernbench.triton_engine.batch import Batch
from kernbench.triton_engine.frontend.program import OpInfo
from kernbench.triton_engine.frontend.types import FLOAT8
from kernbench.triton_engine.memory import HostAllocation
from kernbench.triton_engine.values import Ptr, filled

from .footprint import Piece
from .gathered import flat_index
from .operands import Access
from .per_rank import load_ranks
from .rows import load_rows
from .strided import pieces
from .windows import load_windows


def load(
    batch: Batch, info: OpInfo, p: Ptr, tile: tuple[int, ...], dtype: torch.dtype, mask: object, other: object
) -> Tensor | None:
    """Load a tile; None when the mask is false everywhere and the result is ``other``."""
    checks = batch.execution.checks
    if checks is not None and info.met:
        checks.meet(batch)
    access = Access(batch, info, p, tile, dtype.itemsize, mask)
    if access.masked_off:
        return None
    if p.scattered is None:
        if checks is None:
            for way in (_load_masked, load_ranks, load_windows):
                found = way(access, dtype, other)
                if found is not None:
                    return found
        cut = pieces(access, access.box) if access.dense is None else None
        if cut is not None:
            read = partial(_load_pieces, info, cut[0], cut[1], dtype, other)
            if checks is None:
                return read()
            for piece in cut[0]:
                checks.read_piece(access, piece)
            return checks.reading(read)
    raw = torch.uint8 if dtype in FLOAT8 else dtype
    fill = _as_bytes(other, dtype) if raw is not dtype else 0 if other is None else other
    if checks is None:
        rows = load_rows(access, raw, fill)
        if rows is not None:
            return rows if raw is dtype else rows.view(dtype)
    groups = flat_index(access)
    if checks is not None:
        for allocation, index, here in groups:
            checks.read_index(access, allocation, index, here)
    if not groups:
        return None
    gather = partial(_gather, groups, raw, fill)
    out = gather() if checks is None else checks.reading(gather)
    return out if raw is dtype or out is None else out.view(dtype)


def _as_bytes(other: object, dtype: torch.dtype) -> Any:
    """``other`` as the bytes of 8-bit floats."""
    if other is None:
        return 0
    return (
        other.contiguous().view(torch.uint8)
        if type(other) is Tensor
        else int(torch.tensor([other]).to(dtype).view(torch.uint8))
    )


def _gather(groups: list[tuple[HostAllocation, Tensor, Tensor | None]], dtype: torch.dtype, other: object) -> Tensor:
    """The elements of several allocations, ``other`` where none is read."""
    if len(groups) == 1 and groups[0][2] is None:
        return groups[0][0].flat(dtype).take(groups[0][1])
    out: Any = other if type(other) is Tensor else torch.tensor(other, dtype=dtype)
    for allocation, index, here in groups:
        values = allocation.flat(dtype).take(index)
        out = values if here is None else torch.where(here, values, out)
    return out


def _load_pieces(
    info: OpInfo, cut: list[Piece], shape: tuple[int, ...], dtype: torch.dtype, other: object
) -> Tensor | None:
    """The tile value that pieces make up, ``other`` outside of them; None if there is no piece."""
    if not cut:
        return None
    if len(cut) == 1:
        piece = cut[0]
        view = piece.read(dtype)
        if tuple(piece.sizes) == shape:
            return view if info.view_ok else view.clone()
    out = filled(shape, 0 if other is None else other, dtype)
    for piece in cut:
        out[piece.where].copy_(piece.read(dtype))
    return out


def _load_masked(access: Access, dtype: torch.dtype, other: object) -> Tensor | None:
    """Affine addresses under an arbitrary mask: read everything if all of it lies inside the allocation."""
    mask = access.dense
    if mask is None or dtype in FLOAT8 or not access.whole_in_bounds():
        return None
    cut = pieces(access, None)
    values = None if cut is None else _load_pieces(access.info, cut[0], cut[1], dtype, None)
    if values is None:
        return None
    fill = other if type(other) is Tensor else torch.tensor(0 if other is None else other, dtype=dtype)
    return torch.where(mask, values, fill)
