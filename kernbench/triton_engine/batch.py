"""Batches: sets of lanes at one block of a program; how they split and meet."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from . import lanes as lane_ops
from .lift.program import Jump
from .memory import write_epoch
from .ptx import Frame
from .values import Aff, Desc, Ptr, from_lane_array

if TYPE_CHECKING:
    from .binding import RankRoots
    from .machine import Execution


class Batch:
    """Lanes that are at the same block. ``lanes`` are the sizes of the lane axes; dimensions of values follow them."""

    __slots__ = (
        "at",
        "env",
        "ids",
        "lanes",
        "n",
        "order",
        "parked",
        "pc",
        "rank",
        "rank_index",
        "spins",
        "suspended",
        "trace",
        "watched",
        "written",
        "x",
    )

    def __init__(
        self,
        x: Execution,
        env: list[Any],
        lanes: tuple[int, ...],
        ids: np.ndarray,
        rank_index: np.ndarray | None,
        rank: int,
    ) -> None:
        self.x = x
        self.env = env
        self.lanes = lanes
        self.n = prod(lanes)
        self.ids = ids
        self.rank_index = rank_index
        self.rank = rank
        self.pc = 0
        self.parked = -1
        self.spins = 0
        #: The values that the last turn of a waiting loop carried.
        self.trace: tuple[Jump, list[Any]] | None = None
        self.written = False
        #: Where to go on inside the block, and the state of an instruction that waits.
        self.at = 0
        self.suspended: dict[int, Frame] = {}
        #: The addresses that it waits for, where an instruction does.
        self.watched: np.ndarray | None = None
        #: The ranks along the rank axis, once asked for.
        self.order: tuple[int, ...] | None = None

    def rank_roots(self, root: int, item: int) -> RankRoots:
        """Where the pointers of argument ``root`` are in memory, of a batch whose ranks differ along its first axis only."""
        order = self.order
        if order is None:
            assert self.rank_index is not None
            order = self.order = tuple(self.rank_index.reshape(-1).tolist())
        return self.x.rank_roots(root, order, item)

    def program_id(self, axis: int) -> int | Aff:
        gx, gy, _ = self.x.grid
        linear = self.ids
        part = linear % gx if axis == 0 else linear // gx % gy if axis == 1 else linear // (gx * gy)
        return from_lane_array(squeeze(part))

    def wrote(self) -> None:
        """Memory changed: parked lanes of anybody may look again."""
        self.written = True
        write_epoch.bump()

    def describe_lanes(self, cell: tuple[tuple[int, int], ...] | None) -> str:
        """``rank 2, program (3, 0, 0)`` for the lanes of a piece (first and last)."""
        ids = np.broadcast_to(self.ids, self.lanes)
        if cell and len(cell) == len(self.lanes):
            ids = ids[tuple(slice(a, max(b, a + 1)) for a, b in cell)]
        flat = np.unique(ids)
        names = [str(self.x.program_of(int(i))) for i in (flat[0], flat[-1])]
        text = f"program {names[0]}" if len(flat) == 1 else f"programs {names[0]} to {names[1]}"
        ranks = self.ranks(cell)
        if ranks:
            text = f"rank {', '.join(map(str, ranks))}, {text}"
        return text

    def ranks(self, cell: tuple[tuple[int, int], ...] | None = None) -> list[int]:
        """Ranks of all lanes, or of those of a piece."""
        if self.rank_index is None:
            index = [self.rank]
        else:
            lanes = np.broadcast_to(self.rank_index, self.lanes)
            if cell and len(cell) == len(self.lanes):
                lanes = lanes[tuple(slice(a, max(b, a + 1)) for a, b in cell)]
            index = np.unique(lanes).tolist()
        return [r for r in (self.x.launches[i].rank for i in index) if r is not None]


def squeeze(arr: np.ndarray) -> np.ndarray:
    """Axes along which nothing changes get size 1."""
    for k in range(arr.ndim):
        if arr.shape[k] > 1 and bool((np.take(arr, [0], axis=k) == arr).all()):
            arr = np.take(arr, [0], axis=k)
    return arr


def select(b: Batch, axis: int, index: np.ndarray, live: Sequence[int]) -> Batch:
    """The lanes ``index`` along one axis, as a batch of its own that keeps the slots ``live``."""
    start, stop = int(index[0]), int(index[-1]) + 1
    straight = stop - start == len(index)
    owned = b.x.program.owned
    env = b.env
    out: list[Any] = [None] * len(env)
    for slot in live:
        v = env[slot]
        if v is None or type(v) in (int, float, bool):
            out[slot] = v
            continue
        new = lane_ops.cut(v, axis, start, stop) if straight else lane_ops.pick(v, axis, index, b.lanes)
        if new is v and slot in owned and type(v) is Tensor:
            new = v.clone()
        out[slot] = new
    ids = np.take(b.ids, index, axis=axis) if b.ids.shape[axis] > 1 else b.ids
    rank_index, rank = b.rank_index, b.rank
    if rank_index is not None and rank_index.shape[axis] > 1:
        chosen = np.take(rank_index, index, axis=axis)
        rank_index = chosen
        if chosen.size == 1:
            rank_index, rank = None, int(chosen.reshape(-1)[0])
    lanes = (*b.lanes[:axis], len(index), *b.lanes[axis + 1 :])
    batch = Batch(b.x, out, lanes, ids, rank_index, rank)
    batch.written = b.written
    return batch


def flat(b: Batch, which: tuple[np.ndarray, ...], live: Sequence[int] | None = None) -> Batch:
    """The lanes at given coordinates as a batch with a single lane axis that keeps the slots ``live`` (None: all)."""
    env: list[Any] = [None] * len(b.env)
    for slot in range(len(env)) if live is None else live:
        v = b.env[slot]
        env[slot] = v if v is None or type(v) in (int, float, bool) else lane_ops.flatten(v, b.lanes, which)
    count = len(which[0])
    ids = b.ids[tuple(w if n > 1 else np.zeros_like(w) for w, n in zip(which, b.ids.shape, strict=True))]
    rank_index = b.rank_index
    if rank_index is not None:
        rank_index = rank_index[
            tuple(w if n > 1 else np.zeros_like(w) for w, n in zip(which, rank_index.shape, strict=True))
        ]
    batch = Batch(b.x, env, (count,), ids, rank_index, b.rank)
    batch.written = b.written
    return batch


def merge(parts: list[Batch]) -> Batch:
    """Batches at one block become one."""
    axis = _common_axis(parts)
    if axis is None:
        flattened = []
        for p in parts:
            if len(p.lanes) == 1:
                flattened.append(p)
            else:
                n = flat(p, tuple(np.unravel_index(np.arange(p.n), p.lanes)))
                n.pc, n.spins = p.pc, p.spins
                flattened.append(n)
        parts, axis = flattened, 0
    parts = sorted(parts, key=lambda p: int(p.ids.reshape(-1)[0]))
    first = parts[0]
    env: list[Any] = [None] * len(first.env)
    lanes = [p.lanes for p in parts]
    program = first.x.program
    types = program.types
    for slot in program.blocks[first.pc].live_in:
        values = [p.env[slot] for p in parts]
        if values[0] is None:
            continue
        if types[slot].is_ptr or types[slot].elem == "desc":
            values = _common_root(values, parts, types[slot].shape)
        env[slot] = lane_ops.join(values, axis, lanes, types[slot], first.x)
    total = sum(ln[axis] for ln in lanes)
    shape = (*first.lanes[:axis], total, *first.lanes[axis + 1 :])
    grow = lambda a, p: np.broadcast_to(a, (*a.shape[:axis], p.lanes[axis], *a.shape[axis + 1 :]))  # noqa: E731
    ids = np.concatenate([grow(_expand_others(p.ids, parts, axis), p) for p in parts], axis=axis)
    rank_index = None
    if any(p.rank_index is not None for p in parts) or len({p.rank for p in parts}) > 1:
        full = [
            np.broadcast_to(p.rank_index if p.rank_index is not None else np.full((1,) * len(p.lanes), p.rank), p.lanes)
            for p in parts
        ]
        rank_index = squeeze(np.concatenate(full, axis=axis))
    merged = Batch(first.x, env, shape, ids, rank_index, first.rank)
    merged.pc = first.pc
    merged.spins = max(p.spins for p in parts)
    merged.written = any(p.written for p in parts)
    return merged


def _common_root(values: list[Any], parts: list[Batch], tile: tuple[int, ...]) -> list[Any]:
    """Pointers (or descriptors) of one argument as they are; of several arguments, as addresses."""
    if type(values[0]) is Desc:
        bases = _common_root([v.base for v in values], parts, ())
        return [_with_base(v, base) for v, base in zip(values, bases, strict=True)]
    if any(type(v) is not Ptr for v in values) or len({v.root for v in values}) == 1:
        return values
    return [p.x.absolute(p, v, tile) for v, p in zip(values, parts, strict=True)]


def _with_base(d: Desc, base: Ptr) -> Desc:
    return d if base is d.base else Desc(base, d.shape, d.strides, d.block, d.elem, d.padding)


def _common_axis(parts: list[Batch]) -> int | None:
    """The one axis along which the batches differ while covering the same lanes of the others, or None."""
    first = parts[0]
    n = len(first.lanes)
    if any(len(p.lanes) != n for p in parts):
        return None
    if n == 1:
        return 0
    if any(p.rank_index is None for p in parts) and parts[0].x.n_ranks > 1:
        return None
    for axis in range(n):
        signature = [_other_ids(p, axis) for p in parts]
        if all(s is not None and s == signature[0] for s in signature):
            return axis
    return None


def _other_ids(p: Batch, axis: int) -> tuple[Any, ...] | None:
    """Which lanes of the other axes a batch covers, independent of its position along ``axis``."""
    ids = np.broadcast_to(p.ids, p.lanes)
    at = ids.take([0], axis=axis)
    out: list[Any] = [(at - at.reshape(-1)[0]).tobytes(), at.shape]
    if p.rank_index is not None:
        r = p.rank_index
        out.append(r.take([0], axis=axis).tobytes() if r.shape[axis] > 1 else r.tobytes())
    return tuple(out)


def _expand_others(ids: np.ndarray, parts: list[Batch], axis: int) -> np.ndarray:
    shape = tuple(ids.shape[k] if k == axis else max(p.ids.shape[k] for p in parts) for k in range(ids.ndim))
    return np.broadcast_to(ids, shape)
