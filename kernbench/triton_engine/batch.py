"""Batches: sets of lanes at one block of a program; how they split and meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
from torch import Tensor

from .binding import Binding, RankRoots
from .frontend.program import Jump
from .lanes import Lanes, cut, flatten, join, pick
from .memory import write_epoch
from .ptx import Frame
from .shares import Shares, lanes_by_launch
from .values import Affine, Desc, Ptr, from_lane_array


@dataclass(slots=True, eq=False)
class Batch(Lanes):
    """Lanes that are at the same block: ``env`` holds the value of each slot."""

    execution: Binding
    env: list[Any]
    #: How many lanes.
    size: int = field(init=False)
    #: The block, and the instruction inside of it, where to go on.
    pc: int = 0
    at: int = 0
    #: The count of writes at which it began to wait for another one; -1: it can run.
    parked: int = -1
    #: Turns of a waiting loop without a write, and what the last one carried.
    spins: int = 0
    trace: tuple[Jump, list[Any]] | None = None
    written: bool = False
    #: The states of instructions that wait, and the addresses that the last one waits for.
    suspended: dict[int, Frame] = field(default_factory=dict)
    watched: np.ndarray | None = None
    #: The ranks along the rank axis, once asked for.
    order: tuple[int, ...] | None = None
    #: The instruction inside of a run of several that failed.
    doing: Any = None
    #: One lane per program, once asked for (see :mod:`.thread_lanes`).
    leaders: Any = None
    #: Lanes of each launch, once asked for.
    _by_launch: Shares | None = None

    def __post_init__(self) -> None:
        self.size = prod(self.lanes)

    @property
    def lanes_by_launch(self) -> Shares:
        """How many lanes of each launch there are."""
        if self._by_launch is None:
            self._by_launch = lanes_by_launch(self)
        return self._by_launch

    def rank_roots(self, root: int, item: int) -> RankRoots:
        """Where the pointers of argument ``root`` are in memory, of a batch whose ranks differ along its first axis only."""
        order = self.order
        if order is None:
            assert self.rank_index is not None
            order = self.order = tuple(self.rank_index.reshape(-1).tolist())
        return self.execution.rank_roots(root, order, item)

    def ranks_along_first_axis(self) -> bool:
        """Whether ranks differ, and along the first lane axis only."""
        return self.rank_index is not None and self.rank_index.shape[0] == self.rank_index.size

    def program_id(self, axis: int) -> int | Affine:
        """``tl.program_id(axis)`` of every lane."""
        gx, gy, _ = self.execution.grid
        linear = self.ids
        part = linear % gx if axis == 0 else linear // gx % gy if axis == 1 else linear // (gx * gy)
        return from_lane_array(squeeze(part))

    def program_keys(self) -> np.ndarray:
        """A number for each lane's program, of whatever rank, in row-major order."""
        keys = np.broadcast_to(self.ids, self.lanes)
        if self.rank_index is not None:
            keys = keys + self.rank_index * self.execution.programs
        return keys.reshape(-1)

    def thread_numbers(self) -> np.ndarray:
        """Which of its program's threads each lane is, in row-major order, where threads have lanes."""
        assert self.threads is not None
        return np.broadcast_to(self.threads, self.lanes).reshape(-1)

    def wrote(self) -> None:
        """Memory changed: parked lanes of every rank may look again."""
        self.written = True
        write_epoch.bump()

    def describe_lanes(self, cell: tuple[tuple[int, int], ...] | None) -> str:
        """``rank 2, program (3, 0, 0)`` for the lanes of a piece (first and last)."""
        ids = np.broadcast_to(self.ids, self.lanes)
        if cell and len(cell) == len(self.lanes):
            ids = ids[tuple(slice(a, max(b, a + 1)) for a, b in cell)]
        flat = np.unique(ids)
        names = [str(self.execution.program_of(int(i))) for i in (flat[0], flat[-1])]
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
        return [r for r in (self.execution.launches[i].rank for i in index) if r is not None]


def squeeze(arr: np.ndarray) -> np.ndarray:
    """Axes along which nothing changes get size 1."""
    for k in range(arr.ndim):
        if arr.shape[k] > 1 and bool((np.take(arr, [0], axis=k) == arr).all()):
            arr = np.take(arr, [0], axis=k)
    return arr


def select(batch: Batch, axis: int, index: np.ndarray, live: Sequence[int]) -> Batch:
    """The lanes ``index`` along one axis, as a batch of its own that keeps the slots ``live``."""
    start, stop = int(index[0]), int(index[-1]) + 1
    straight = stop - start == len(index)
    owned = batch.execution.program.owned
    env = batch.env
    out: list[Any] = [None] * len(env)
    for slot in live:
        v = env[slot]
        if v is None or type(v) in (int, float, bool):
            out[slot] = v
            continue
        new = cut(v, axis, start, stop) if straight else pick(v, axis, index, batch.lanes)
        if new is v and slot in owned and type(v) is Tensor:
            new = v.clone()
        out[slot] = new
    ids = np.take(batch.ids, index, axis=axis) if batch.ids.shape[axis] > 1 else batch.ids
    rank_index, rank = batch.rank_index, batch.rank
    if rank_index is not None and rank_index.shape[axis] > 1:
        chosen = np.take(rank_index, index, axis=axis)
        rank_index = chosen
        if chosen.size == 1:
            rank_index, rank = None, int(chosen.reshape(-1)[0])
    threads = batch.threads
    if threads is not None and threads.shape[axis] > 1:
        threads = np.take(threads, index, axis=axis)
    lanes = (*batch.lanes[:axis], len(index), *batch.lanes[axis + 1 :])
    return Batch(lanes, ids, rank_index, rank, threads, batch.execution, out, written=batch.written)


def flat(batch: Batch, which: tuple[np.ndarray, ...], live: Sequence[int] | None = None) -> Batch:
    """The lanes at given coordinates as a batch with a single lane axis that keeps the slots ``live`` (None: all)."""
    env: list[Any] = [None] * len(batch.env)
    for slot in range(len(env)) if live is None else live:
        v = batch.env[slot]
        env[slot] = v if v is None or type(v) in (int, float, bool) else flatten(v, batch.lanes, which)
    ids, rank_index, threads = (flatten(at, batch.lanes, which) for at in (batch.ids, batch.rank_index, batch.threads))
    lanes = (len(which[0]),)
    return Batch(lanes, ids, rank_index, batch.rank, threads, batch.execution, env, written=batch.written)


def merge(parts: list[Batch]) -> Batch:
    """Batches at one block become one."""
    axis = _common_axis(parts)
    if axis is None:
        flattened = []
        for p in parts:
            if len(p.lanes) == 1:
                flattened.append(p)
            else:
                n = flat(p, tuple(np.unravel_index(np.arange(p.size), p.lanes)))
                n.pc, n.spins = p.pc, p.spins
                flattened.append(n)
        parts, axis = flattened, 0
    parts = sorted(parts, key=lambda p: (int(p.ids.reshape(-1)[0]), 0 if p.threads is None else int(p.threads.min())))
    first = parts[0]
    env: list[Any] = [None] * len(first.env)
    lanes = [p.lanes for p in parts]
    program = first.execution.program
    types = program.types
    for slot in program.blocks[first.pc].live_in:
        values = [p.env[slot] for p in parts]
        if values[0] is None:
            continue
        if types[slot].is_ptr or types[slot].elem == "desc":
            values = _common_root(values, parts, types[slot].shape)
        env[slot] = join(values, axis, lanes, types[slot])
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
    threads = None
    if first.threads is not None:
        ids = squeeze(ids)
        threads = squeeze(np.concatenate([np.broadcast_to(p.threads, p.lanes) for p in parts], axis=axis))  # type: ignore[arg-type]
    return Batch(
        shape,
        ids,
        rank_index,
        first.rank,
        threads,
        first.execution,
        env,
        pc=first.pc,
        spins=max(p.spins for p in parts),
        written=any(p.written for p in parts),
    )


def _common_root(values: list[Any], parts: list[Batch], tile: tuple[int, ...]) -> list[Any]:
    """Pointers (or descriptors) of one argument as they are; of several arguments, as addresses."""
    if type(values[0]) is Desc:
        bases = _common_root([v.base for v in values], parts, ())
        return [v if base is v.base else replace(v, base=base) for v, base in zip(values, bases, strict=True)]
    if any(type(v) is not Ptr for v in values) or len({v.root for v in values}) == 1:
        return values
    return [p.execution.absolute(p, v, tile) for v, p in zip(values, parts, strict=True)]


def _common_axis(parts: list[Batch]) -> int | None:
    """The one axis along which the batches differ while covering the same lanes of the others, or None."""
    first = parts[0]
    n = len(first.lanes)
    if any(len(p.lanes) != n for p in parts):
        return None
    if n == 1:
        return 0
    if any(p.rank_index is None for p in parts) and parts[0].execution.n_ranks > 1:
        return None
    for axis in range(n):
        signature = [_other_ids(p, axis) for p in parts]
        if all(s is not None and s == signature[0] for s in signature):
            return axis
    return None


def _other_ids(p: Batch, axis: int) -> tuple[object, ...] | None:
    """Which lanes of the other axes a batch covers, independent of its position along ``axis``."""
    ids = np.broadcast_to(p.ids, p.lanes)
    at = ids.take([0], axis=axis)
    out: list[Any] = [(at - at.reshape(-1)[0]).tobytes(), at.shape]
    if p.rank_index is not None:
        r = p.rank_index
        out.append(r.take([0], axis=axis).tobytes() if r.shape[axis] > 1 else r.tobytes())
    if p.threads is not None:
        out.append(np.broadcast_to(p.threads, p.lanes).take([0], axis=axis).tobytes())
    return tuple(out)


def _expand_others(ids: np.ndarray, parts: list[Batch], axis: int) -> np.ndarray:
    shape = tuple(ids.shape[k] if k == axis else max(p.ids.shape[k] for p in parts) for k in range(ids.ndim))
    return np.broadcast_to(ids, shape)
