"""How the programs of a launch are laid out as lanes, and in which chunks they run.

It depends on the program, the grid and the integer arguments, so it is made once and kept. It

- evaluates the launch-invariant scalar integers of every program (program ids and what is computed from them);
- *factors* the grid: a one-dimensional grid whose programs decode their id into ``(pid_m, pid_n)`` becomes a
  rectangle of lane axes in which those coordinates are affine, so that what depends on one of them only is computed
  once per row or column (this is what turns many small dots into one large matrix product);
- cuts the lanes into rectangular chunks whose tiles fit into the cache, unless programs wait for one another.

A program that tells its threads apart has a further axis, the last, with a lane for each (see :mod:`.thread_lanes`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any

import numpy as np
import torch

from .binding import Binding
from .frontend.program import Instr, Program
from .lanes import Lanes, varies
from .values import Affine, Ptr, Value, from_lane_array, index_array, lane_array

#: Elements of the widest tile value of a chunk. Measured: 0.5-4 MiB per value is flat, more leaves the cache.
CHUNK_ELEMENTS = 1 << 19
CHUNK_ELEMENTS_DOT = 1 << 20
#: Axes longer than this are not searched for a factorisation.
_LONGEST_FACTORED = 1 << 18
#: Chunks whose launch-invariant values are kept between launches.
_KEPT_CHUNKS = 64
#: The lane axis that is none of the grid's, but the threads of a program.
_THREADS = -1


@dataclass
class Chunk:
    """A rectangle of lanes: one ``(start, stop)`` per axis. Ranks are never cut apart."""

    ranges: tuple[tuple[int, int], ...]
    env: list[tuple[int, Value]] | None = None


@dataclass
class LaneGrid:
    """The lanes of a launch, and what is known of them before it runs."""

    #: Sizes of the lane axes; the first is the rank axis if several ranks run together, the last the thread axis if programs
    #: are taken apart into threads.
    shape: tuple[int, ...]
    #: Linear program id of each lane.
    ids: np.ndarray
    #: Launch-invariant scalars over ``shape``.
    scalars: list[tuple[int, Value]]
    #: Launch-invariant tile instructions, evaluated per chunk.
    tiles: list[Instr]
    chunks: list[Chunk] = field(default_factory=list)
    keep: bool = True


@dataclass(slots=True, eq=False)
class _WholeGrid(Lanes):
    """A stand-in for a batch while scalars are evaluated over the whole grid."""

    execution: Binding
    axes: tuple[int | None, ...]

    def program_id(self, axis: int) -> int | Affine:
        if axis not in self.axes:
            return 0
        at = self.axes.index(axis)
        return Affine(0, tuple([int(k == at) for k in range(len(self.lanes))]), (), 0, self.lanes[at] - 1)


def thread_numbers(program: Program, n_axes: int) -> np.ndarray | None:
    """Which thread each lane is, along the last of ``n_axes`` axes; None where lanes are programs."""
    return index_array(program.threads, n_axes - 1, n_axes) if program.by_thread else None


def _affine(v: np.ndarray) -> bool:
    return len(v) < 3 or bool((np.diff(v) == v[1] - v[0]).all())


def _fit_score(vectors: list[np.ndarray], order: np.ndarray) -> int:
    """How many of the vectors are affine over a candidate two-dimensional arrangement."""
    return sum(not isinstance(a, Affine) or a.per_lane is None for a in (from_lane_array(v[order]) for v in vectors))


def _factor(vectors: list[np.ndarray], index: np.ndarray, depth: int = 0) -> np.ndarray | None:
    """Arrange ``index`` (positions along one axis) as a rectangle in which the vectors are affine, or None."""
    n = len(index)
    if n < 4 or depth > 2 or all(_affine(v) for v in vectors):
        return None
    distinct: list[tuple[np.ndarray, np.ndarray, int]] = []
    for v in vectors:
        values, inverse = np.unique(v, return_inverse=True)
        if 1 < len(values) < n and not any(np.array_equal(inverse, other) for _, other, _ in distinct):
            distinct.append((v, inverse, len(values)))
    best: tuple[int, np.ndarray] | None = None
    for i, (_, p, np_) in enumerate(distinct[:12]):
        for _, q, nq in distinct[i + 1 : 12]:
            if np_ * nq != n:
                continue
            code = p * nq + q
            order = np.argsort(code, kind="stable")
            if not np.array_equal(code[order], np.arange(n)):
                continue
            rectangle = order.reshape(np_, nq)
            score = _fit_score(vectors, rectangle)
            if best is None or score > best[0]:
                best = (score, rectangle)
    if best is None:
        return None
    rectangle = best[1]
    # Each side may decode further.
    for axis in (0, 1):
        along = rectangle[:, 0] if axis == 0 else rectangle[0]
        inner = _factor([v[along] for v in vectors], np.arange(len(along)), depth + 1)
        if inner is not None:
            moved = np.take(rectangle, inner.reshape(-1), axis=axis)
            shape = (*inner.shape, rectangle.shape[1]) if axis == 0 else (rectangle.shape[0], *inner.shape)
            return moved.reshape(shape)
    return rectangle


def per_rank(values: list[Any], n_axes: int) -> Value:
    """An argument that differs between ranks, over the rank axis (the first of ``n_axes``)."""
    shape = (len(values),) + (1,) * (n_axes - 1)
    if isinstance(values[0], (bool, float)):
        return torch.tensor(values, dtype=torch.bool if isinstance(values[0], bool) else torch.float64).reshape(shape)
    return from_lane_array(np.array(values, dtype=np.int64).reshape(shape))


def make_lane_grid(
    program: Program, binding: Binding, env: list[Value], by_rank: list[tuple[int, list[Any]]]
) -> LaneGrid:
    """Lay out a launch. ``env`` holds constants and arguments, ``by_rank`` the arguments that differ between ranks."""
    grid = binding.grid
    axes: tuple[int | None, ...] = tuple(a for a in (2, 1, 0) if grid[a] > 1)
    shape = tuple(grid[a] for a in axes if a is not None)
    if binding.n_ranks > 1:
        axes, shape = (None, *axes), (binding.n_ranks, *shape)
    weight = {None: 0, 0: 1, 1: grid[0], 2: grid[0] * grid[1]}
    linear = np.zeros((1,) * len(shape), dtype=np.int64)
    for k, (axis, size) in enumerate(zip(axes, shape, strict=True)):
        linear = linear + weight[axis] * index_array(size, k, len(shape))
    ids = np.broadcast_to(linear, shape)
    threads = program.threads if program.by_thread else 1
    numbers_of = thread_numbers(program, len(shape) + 1)
    if numbers_of is not None:
        axes, shape, ids = (*axes, _THREADS), (*shape, threads), ids[..., None]
    lanes = _WholeGrid(shape, ids, None, 0, numbers_of, binding, axes)
    values = list(env)
    for slot, numbers in by_rank:
        values[slot] = per_rank(numbers, len(shape))
    tiles: list[Instr] = []
    scalars: list[tuple[int, Value]] = []
    for instr in program.invariant:
        info = instr.info
        if info.ty.shape or any(t.shape for t in info.operand_types):
            tiles.append(instr)
            continue
        slot = instr.results[0]
        values[slot] = instr.fn(lanes, *[values[a] for a in instr.args])
        scalars.append((slot, values[slot]))
    arrange = [
        None if axis in (None, _THREADS) else _arrange_axis(values, program.frontier, shape, k)
        for k, axis in enumerate(axes)
    ]
    if any(a is not None for a in arrange):
        ids = _rearrange(np.ascontiguousarray(ids), arrange)
        scalars = [(slot, _rearranged(v, shape, arrange)) for slot, v in scalars]
        shape = ids.shape if numbers_of is None else (*ids.shape[:-1], threads)
    lane_grid = LaneGrid(shape, np.array(ids, dtype=np.int64), scalars, tiles)
    if numbers_of is None:
        lane_grid.chunks = [Chunk(r) for r in _chunks(program, shape, binding.n_ranks)]
    else:  # threads of a program stay together
        lane_grid.chunks = [Chunk((*r, (0, threads))) for r in _chunks(program, shape[:-1], binding.n_ranks)]
    lane_grid.keep = len(lane_grid.chunks) <= _KEPT_CHUNKS
    return lane_grid


def _arrange_axis(
    values: list[Value], frontier: tuple[int, ...], shape: tuple[int, ...], axis: int
) -> np.ndarray | None:
    """The rectangle that lane axis ``axis`` becomes, so that the scalars of the frontier are affine; None: it stays."""
    if not 4 <= shape[axis] <= _LONGEST_FACTORED:
        return None
    vectors = []
    for slot in frontier:
        v = values[slot]
        if type(v) is Affine and varies(v, axis):
            full = lane_array(v, shape)
            vectors.append(full[tuple(slice(None) if k == axis else 0 for k in range(len(shape)))])
    return _factor(vectors, np.arange(shape[axis])) if vectors else None


def _rearrange(arr: np.ndarray, arrange: list[np.ndarray | None]) -> np.ndarray:
    """An array over the lanes, over the rectangles that its axes become."""
    shape: list[int] = []
    for k, rectangle in enumerate(arrange):
        if rectangle is None:
            shape.append(arr.shape[k])
        elif arr.shape[k] > 1:
            arr = np.take(arr, rectangle.reshape(-1), axis=k)
            shape += rectangle.shape
        else:
            shape += [1] * rectangle.ndim
    return arr.reshape(shape)


def _rearranged(v: Value, shape: tuple[int, ...], arrange: list[np.ndarray | None]) -> Any:
    """A scalar over the lanes, over the rectangles that their axes become."""
    match v:
        case Ptr():
            return v.map(lambda part: _rearranged(part, shape, arrange))
        case Affine():
            return from_lane_array(_rearrange(lane_array(v, shape), arrange))
        case torch.Tensor():
            return torch.from_numpy(_rearrange(v.numpy(), arrange))
    return v


def _chunks(program: Program, shape: tuple[int, ...], n_ranks: int) -> list[tuple[tuple[int, int], ...]]:
    """Rectangles covering the lanes, in row-major order."""
    if not shape:
        return [()]
    has_dot = any(op.row.product for op in program.ops)
    budget = CHUNK_ELEMENTS_DOT if has_dot else CHUNK_ELEMENTS
    widest = max(program.widest, program.threads) if program.by_thread else program.widest
    most = max(n_ranks, budget // max(1, widest))
    fixed = 1 if n_ranks > 1 else 0  # the rank axis stays whole
    if program.waits or prod(shape) <= most:
        return [tuple((0, n) for n in shape)]
    sizes = [*shape[:fixed], *[1] * (len(shape) - fixed)]
    most = max(1, most)
    if has_dot:  # near-square, so that rows and columns are shared
        grown = True
        while grown:
            grown = False
            for k in sorted(range(fixed, len(shape)), key=lambda i: sizes[i]):
                if sizes[k] < shape[k] and prod(sizes) // sizes[k] * min(2 * sizes[k], shape[k]) <= most:
                    sizes[k] = min(2 * sizes[k], shape[k])
                    grown = True
                    break
    else:
        left = max(1, most // prod(sizes[:fixed]))
        for k in reversed(range(fixed, len(shape))):
            sizes[k] = min(shape[k], max(1, left))
            left //= sizes[k]
    ranges = [[(s, min(s + c, n)) for s in range(0, n, c)] for n, c in zip(shape, sizes, strict=True)]
    return list(product(*ranges))
