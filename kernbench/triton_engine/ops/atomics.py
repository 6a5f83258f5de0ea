"""``tt.atomic_rmw`` and ``tt.atomic_cas``: lanes in order, one element after the other.

Semantics (``sem``) and scope change nothing here: lanes run in step and memory is sequentially consistent, which every
weaker order allows.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernbench.triton_engine.access import Access, flat_index
from kernbench.triton_engine.batch import Batch
from kernbench.triton_engine.contention import note_updates
from kernbench.triton_engine.fixed_width import np_unsigned
from kernbench.triton_engine.frontend.program import OpInfo
from kernbench.triton_engine.frontend.types import Ty, memory_dtype
from kernbench.triton_engine.memory import HostAllocation
from kernbench.triton_engine.shares import by_launch_of_places
from kernbench.triton_engine.values import Ptr, Value, from_lane_array

from .registry import op
from .shape import materialise

#: old, operand -> new, on numpy arrays.
_RMW: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "fadd": np.add,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "max": np.maximum,
    "min": np.minimum,
    "umax": np_unsigned(np.maximum),
    "umin": np_unsigned(np.minimum),
    "exch": lambda old, new: new,
}


_BF16: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "fadd": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
}


def _apply(kind: str, old: np.ndarray, value: np.ndarray, bf16: bool) -> np.ndarray:
    if bf16:
        a = torch.from_numpy(np.ascontiguousarray(old)).view(torch.bfloat16)
        b = torch.from_numpy(np.ascontiguousarray(value)).view(torch.bfloat16)
        if kind == "exch":
            return value
        return _BF16[kind](a, b).view(torch.int16).numpy()
    with np.errstate(over="ignore", invalid="ignore"):  # a signalling NaN, as unwritten memory may hold, is no finding
        return _RMW[kind](old, value)


def update(
    kind: str, flat: np.ndarray, index: np.ndarray, value: np.ndarray, want_old: bool, bf16: bool
) -> np.ndarray | None:
    """Read-modify-write ``flat[index]``; elements that share an address take turns in order. Returns old values."""
    if index.size == 1:
        old = flat[index]
        flat[index] = _apply(kind, old, value, bf16)
        return old if want_old else None
    order = np.argsort(index, kind="stable")
    ordered = index[order]
    starts = np.empty(len(ordered), dtype=bool)
    starts[0] = True
    np.not_equal(ordered[1:], ordered[:-1], out=starts[1:])
    if starts.all():
        old = flat[index]
        flat[index] = _apply(kind, old, value, bf16)
        return old if want_old else None
    # turn k: the k-th element of every address
    first = np.maximum.accumulate(np.where(starts, np.arange(len(ordered)), 0))
    turn = np.arange(len(ordered)) - first
    turns = int(turn.max()) + 1
    if not want_old and not bf16 and turns > 8:
        if kind in ("add", "fadd") and flat.dtype.itemsize >= 4:
            np.add.at(flat, index, value)
            return None
        if kind in ("max", "min", "and", "or", "xor"):
            _RMW[kind].at(flat, index, value)  # type: ignore[attr-defined]
            return None
    result = np.empty_like(value)
    by_turn = np.argsort(turn, kind="stable")
    edges = np.searchsorted(turn[by_turn], np.arange(turns + 1))
    for k in range(turns):
        which = order[by_turn[edges[k] : edges[k + 1]]]
        at = index[which]
        old = flat[at]
        result[which] = old
        flat[at] = _apply(kind, old, value[which], bf16)
    return result if want_old else None


def flat_elements(
    batch: Batch, info: OpInfo, p: Ptr, tile: tuple[int, ...], dtype: torch.dtype, mask: object
) -> list[tuple[HostAllocation, np.ndarray, np.ndarray | None]]:
    """Element indices of every lane and element, row-major, per allocation, with the selection of active ones."""
    shape = batch.lanes + tile
    active = True if mask is True else materialise(mask, batch, Ty("i1", tile)).expand(shape)
    out = []
    for allocation, index, here in flat_index(Access(batch, info, p, tile, dtype.itemsize, active)):
        flat = index.expand(shape).reshape(-1).numpy()
        keep = None if here is None else np.nonzero(here.expand(shape).reshape(-1).numpy())[0]
        out.append((allocation, flat if keep is None else flat[keep], keep))
    return out


def raw_operand(batch: Batch, v: Value, ty: Ty, raw: torch.dtype) -> np.ndarray:
    """An operand of every lane and element, row-major, as numbers of the type ``raw``."""
    full = materialise(v, batch, ty).expand(batch.lanes + ty.shape).reshape(-1)
    if full.dtype is torch.bool:
        full = full.to(torch.int8)
    return np.ascontiguousarray(full.contiguous().view(raw).numpy())


def _give_back(old: np.ndarray, batch: Batch, ty: Ty, dtype: torch.dtype) -> Value:
    if ty.is_int and not ty.shape:
        return from_lane_array(old.astype(np.int64).reshape(batch.lanes))
    return torch.from_numpy(old).view(dtype).reshape(batch.lanes + ty.shape)


def _signal(batch: Batch, allocation: HostAllocation, offsets: np.ndarray, changed: np.ndarray) -> None:
    """An update of shared memory has seen the words at ``offsets``, and changed some."""
    batch.execution.signal(allocation, offsets.tolist(), False)
    batch.execution.signal(allocation, offsets[changed].tolist(), True)


def _tell(
    batch: Batch, info: OpInfo, allocation: HostAllocation, offsets: np.ndarray, keep: np.ndarray | None, nbytes: int,
    failed: np.ndarray | None = None,
) -> None:  # fmt: skip
    """Report which programs update the words at ``offsets``, or have failed to, to the checks of accesses."""
    assert batch.execution.checks is not None
    keys = batch.program_keys()
    places = np.arange(len(offsets)) if keep is None else keep
    elements = max(prod(info.operand_types[0].shape), 1)
    batch.execution.checks.words(
        info, allocation, keys[places // elements], offsets, nbytes, info.words, reads=True, writes=True,
        failed=failed,
    )  # fmt: skip


def count_updates(batch: Batch, keep: np.ndarray | None, per_lane: int) -> None:
    """Count updates of the elements ``keep`` of all lanes' tiles of ``per_lane`` elements (None: all)."""
    for launch, number in by_launch_of_places(batch, 1, keep, per_lane).items():
        batch.execution.atomics[launch] += number


def _meet(batch: Batch, info: OpInfo) -> None:
    """Report to the checks of accesses, if there are any, that threads have met before an update."""
    if info.met and batch.execution.checks is not None:
        batch.execution.checks.meet(batch)


@op("tt.atomic_rmw", pure=False, reads=True, writes=True, atomic=True, addressing=True, frontier=True)
def _atomic_rmw(info: OpInfo) -> Callable[..., Value]:
    kind = info.words[0]
    pointer, ty = info.operand_types[0], info.operand_types[1]
    dtype = memory_dtype(pointer.pointee)
    tile = ty.shape
    bf16 = dtype is torch.bfloat16
    raw = torch.int16 if bf16 else dtype  # numpy has no bfloat16: it holds the bits
    want_old = info.result_used

    def run(batch: Batch, p: Ptr, value: Any, mask: object = True) -> Value:
        _meet(batch, info)
        if batch.execution.wave is not None and not (want_old and ty.is_int):
            return 0 if ty.is_int else 0.0  # as stores, and loads of floats, are there
        count = prod(batch.lanes) * prod(tile)
        if mask is False or (type(mask) is int and not mask):
            return 0 if ty.is_int else 0.0
        old = np.zeros(count, dtype=torch.empty(0, dtype=raw).numpy().dtype)
        values = raw_operand(batch, value, ty, raw)
        for allocation, index, keep in flat_elements(batch, info, p, tile, dtype, mask):
            flat = allocation.flat(raw).numpy()
            mine = values if keep is None else values[keep]
            count_updates(batch, keep, prod(tile))
            note_updates(batch, info, allocation, index, keep)
            if batch.execution.dry:
                got: np.ndarray | None = flat[index]
                changed = False
            else:
                if batch.execution.checks is not None:
                    _tell(batch, info, allocation, index * dtype.itemsize, keep, dtype.itemsize)
                before = flat[index]
                got = update(kind, flat, index, mine, want_old, bf16)
                now = flat[index]
                changed = not np.array_equal(before, now)
                if allocation.words is not None:
                    _signal(batch, allocation, index * dtype.itemsize, before != now)
            if want_old and got is not None:
                if keep is None:
                    old = np.ascontiguousarray(got)
                else:
                    old[keep] = got
            if changed:
                batch.wrote()
        return _give_back(old, batch, ty, dtype)

    return run


@op("tt.atomic_cas", pure=False, reads=True, writes=True, atomic=True, addressing=True)
def _atomic_cas(info: OpInfo) -> Callable[..., Value]:
    pointer, ty = info.operand_types[0], info.operand_types[1]
    dtype = memory_dtype(pointer.pointee)
    raw = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    tile = ty.shape

    def run(batch: Batch, p: Ptr, compare: Any, value: Any) -> Value:
        _meet(batch, info)
        wanted, new = raw_operand(batch, compare, ty, raw), raw_operand(batch, value, ty, raw)
        old = np.empty_like(wanted)
        for allocation, index, keep in flat_elements(batch, info, p, tile, dtype, True):
            flat = allocation.flat(raw).numpy()
            which = np.arange(len(index)) if keep is None else keep
            count_updates(batch, keep, prod(tile))
            note_updates(batch, info, allocation, index, keep)
            before = flat[index] if allocation.words is not None else None
            changed = compare_and_swap(flat, index, which, wanted, new, old, batch.execution.dry)
            if batch.execution.checks is not None and not batch.execution.dry:
                failed = old[which] != wanted[which]
                _tell(batch, info, allocation, index * dtype.itemsize, keep, dtype.itemsize, failed)
            if before is not None:
                _signal(batch, allocation, index * dtype.itemsize, before != flat[index])
            if changed:
                batch.wrote()
        return _give_back(old, batch, ty, dtype)

    return run


def compare_and_swap(
    flat: np.ndarray,
    index: np.ndarray,
    which: np.ndarray,
    wanted: np.ndarray,
    new: np.ndarray,
    old: np.ndarray,
    dry: bool = False,
) -> bool:
    """In order: ``old[w] = flat[i]``; where it equals ``wanted[w]``, store ``new[w]``. True if memory changed."""
    unique = len(np.unique(index)) == len(index)
    if unique or dry:
        seen = flat[index]
        old[which] = seen
        hit = seen == wanted[which]
        if dry or not hit.any():
            return False
        before = flat[index[hit]]
        flat[index[hit]] = new[which][hit]
        return bool((before != flat[index[hit]]).any())
    if (wanted == wanted[0]).all() and (new == new[0]).all():  # a lock: of an address's elements, the first gets it
        address, first, inverse = np.unique(index, return_index=True, return_inverse=True)
        seen = flat[address]
        after = np.where(seen == wanted[0], new[0], seen)
        turns = after[inverse]
        turns[first] = seen
        old[which] = turns
        flat[address] = after
        return bool((after != seen).any())
    changed = False
    for i, w in zip(index.tolist(), which.tolist(), strict=True):
        seen = flat[i]
        old[w] = seen
        if seen == wanted[w] and seen != new[w]:
            flat[i] = new[w]
            changed = True
    return changed
