"""Programs taken apart into threads, where a kernel tells its threads apart.

TTIR speaks of programs: a scalar is one number per program, for all threads of compiled code compute the same one. Scalar
inline assembly and the special registers (``llvm.nvvm.read.ptx.sreg.tid.x``) do not keep to that: what they give, and what
they do to memory, is each thread's own. A program with such an instruction has a lane per thread, along the last lane axis.
Then scalars are the threads', a branch on them parts threads, and scalar assembly is run by every thread. All else is the
program's, as compiled code has it, and is computed once, in the lane of the program's first thread (its *leader*):

- what has tiles. Threads hold parts of a tile, which TTIR does not say: a tile made of what differs between threads is refused;
- a scalar store or atomic: thread 0's, whose result all get;
- a scalar load, unless threads bring different addresses.

Threads that have parted run on alone until a block that has tiles or a barrier: there they wait for those of their program that
are behind. If some are elsewhere for good (``if tid < 4:`` around a tile), the threads at hand must be the first ones, as many
as the tile has elements: those that compiled code gives one element each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernbench.triton_engine.values import Value

from .batch import Batch, flat, select
from .frontend.program import OpInfo
from .lanes import flatten, pick, unflatten, varies
from .ops.registry import UnsupportedOpError
from .ptx import Stuck
from .shares import Shares
from .values import Affine, Box, Desc, Ptr, lane_array

Run = Callable[..., Any]


@dataclass(slots=True, eq=False)
class Leaders:
    """One lane per program, of a batch whose lanes are threads.

    ``of``: for every lane, in row-major order, the place of its leader among the leaders. ``axis``: the lane axis along which
    threads lie, if it is one; the leaders are at ``places`` of it. Else (None) they are at ``places`` among all lanes.
    """

    batch: Batch
    of: np.ndarray
    axis: int | None
    places: np.ndarray
    #: The first thread that each program has here, and how many.
    first: np.ndarray
    count: np.ndarray

    def values(self, v: Value, lanes: tuple[int, ...]) -> Any:
        """What leaders have of a value of all lanes."""
        if self.axis is not None:
            return pick(v, self.axis, self.places, lanes)
        return flatten(v, lanes, np.unravel_index(self.places, lanes))

    def spread(self, v: Value, lanes: tuple[int, ...]) -> Any:
        """A value of the leaders, given to all lanes."""
        if self.axis is not None or v is None:  # the leaders' axis has size one, and so has their value
            return v
        return unflatten(pick(v, 0, self.of, self.batch.lanes), lanes)


def leaders(batch: Batch) -> Leaders:
    """The leaders of a batch whose lanes are threads."""
    if batch.leaders is None:
        batch.leaders = _found(batch)
    found: Leaders = batch.leaders
    return found


def _found(batch: Batch) -> Leaders:
    assert batch.threads is not None
    lanes, threads = batch.lanes, batch.threads
    along = [k for k, n in enumerate(threads.shape) if n > 1]
    if len(along) <= 1:
        axis = along[0] if along else len(lanes) - 1
        ranks = batch.rank_index
        if (lanes[axis] == 1 or threads.shape[axis] > 1) and all(
            a is None or a.shape[axis] == 1 for a in (batch.ids, ranks)
        ):
            place = np.array([int(threads.argmin())])
            one = select(batch, axis, place, ())
            of = np.broadcast_to(np.arange(one.size).reshape(one.lanes), lanes).reshape(-1)
            first, count = np.full(one.size, threads.min()), np.full(one.size, lanes[axis])
            return Leaders(one, of, axis, place, first, count)
    keys, numbers = batch.program_keys(), batch.thread_numbers()
    order = np.lexsort((numbers, keys))
    _, begin, of, count = np.unique(keys[order], return_index=True, return_inverse=True, return_counts=True)
    place = order[begin]
    back = np.empty_like(order)
    back[order] = of
    one = flat(batch, np.unravel_index(place, lanes), ())
    return Leaders(one, back, None, place, numbers[place], count)


def shared(batch: Batch, others: Sequence[Batch]) -> bool:
    """Whether a batch has threads of programs some of whose threads are in ``others``."""
    mine = batch.program_keys()
    return any(bool(np.isin(other.program_keys(), mine).any()) for other in others)


def whole(batch: Batch) -> bool:
    """Whether all threads of its programs are in a batch."""
    return bool((leaders(batch).count == batch.execution.program.threads).all())


def together(batch: Batch) -> Batch:
    """The same lanes over an axis of programs and one of threads, if they lie along one and are all threads of their programs.

    Threads that have parted and met lie in any order along one axis, where a tile is held once for each of them. Over two axes
    it is held once per program again, and so is a scalar on which the threads agree.
    """
    if len(batch.lanes) != 1 or batch.at or batch.suspended or not whole(batch):
        return batch
    program = batch.execution.program
    shape = (batch.size // program.threads, program.threads)
    if shape[1] == 1:
        return batch
    numbers = batch.thread_numbers()
    order = np.lexsort((numbers, batch.program_keys()))
    first, one = order[:: shape[1]], (shape[0], 1)
    env: list[Any] = [None] * len(batch.env)
    for slot in program.blocks[batch.pc].live_in:
        v, ty = batch.env[slot], program.types[slot]
        if v is None or type(v) in (int, float, bool):
            env[slot] = v
            continue
        mine = unflatten(flatten(v, batch.lanes, (first,)), one)
        every = None if ty.shape or ty.elem == "desc" else unflatten(flatten(v, batch.lanes, (order,)), shape)
        env[slot] = mine if every is None or _equal(every, mine, shape) else every
    ids = flatten(batch.ids, batch.lanes, (first,)).reshape(one)
    rank_index = batch.rank_index
    if rank_index is not None:
        rank_index = flatten(rank_index, batch.lanes, (first,)).reshape(one)
    threads = np.arange(shape[1]).reshape(1, -1)
    return Batch(
        shape,
        ids,
        rank_index,
        batch.rank,
        threads,
        batch.execution,
        env,
        batch.pc,
        spins=batch.spins,
        written=batch.written,
    )


def _equal(every: object, mine: Any, shape: tuple[int, int]) -> bool:
    """Whether a scalar of all threads is that of the first one of each program."""
    match every:
        case int() | None:
            return True
        case Tensor() | Affine() | np.ndarray():
            return bool((_numbers(every, shape) == _numbers(mine, (shape[0], 1))).all())
        case Ptr():
            return _equal(every.offset, mine.offset, shape) and _equal(every.scattered, mine.scattered, shape)
    return False


def per_program(info: OpInfo, fn: Run) -> Run:
    """What executes an instruction of a program that has a lane per thread, from what executes it for one lane per program."""
    tiled = any(t.shape or t.elem == "desc" for t in (*info.operand_types, *info.result_types))
    row = info.row
    if row.product or tiled or info.regions:
        return _once(info, fn)
    if row.pure or row.tells_threads is not None:
        return fn
    return _first_thread(info, fn) if row.writes else _by_address(info, fn)


def _once(info: OpInfo, fn: Run) -> Run:
    """An instruction with tiles: operands that differ between threads are refused."""
    elements = max((t.numel for t in (*info.operand_types, *info.result_types)), default=1)
    effect = not info.row.pure

    def run(batch: Batch, *args: Any) -> Any:
        of = leaders(batch)
        mine = [of.values(v, batch.lanes) for v in args]
        if any(_differs(v, own, batch, of) for v, own in zip(args, mine, strict=True)):
            raise _refused(info, "makes a tile of what differs between the threads of a program", batch)
        if effect and not _covered(of, elements, info.threads):
            raise _refused(info, "is reached by some threads of a program only, and not by the first ones", batch)
        return _on_leaders(info, fn, batch, of, mine)

    return run


def _first_thread(info: OpInfo, fn: Run) -> Run:
    """A scalar store or atomic: thread 0's."""

    def run(batch: Batch, *args: Any) -> Any:
        of = leaders(batch)
        if (of.first == 0).all():
            return _on_leaders(info, fn, batch, of, [of.values(v, batch.lanes) for v in args])
        if info.result_types and info.result_used:
            raise _refused(info, "gives all threads what thread 0 gets, which does not come here", batch)
        if (of.first == 0).any():
            zero = np.nonzero(np.broadcast_to(batch.threads, batch.lanes) == 0)  # type: ignore[arg-type]
            some = flat(batch, zero, ())
            fn(some, *[flatten(v, batch.lanes, zero) for v in args])
            batch.written |= some.written
        return (0,) * len(info.result_types) if len(info.result_types) > 1 else 0 if info.result_types else None

    return run


def _by_address(info: OpInfo, fn: Run) -> Run:
    """A scalar load: once per program, unless its threads ask for different things."""

    def run(batch: Batch, *args: Any) -> Any:
        of = leaders(batch)
        mine = [of.values(v, batch.lanes) for v in args]
        if any(_differs(v, own, batch, of) for v, own in zip(args, mine, strict=True)):
            return fn(batch, *args)
        return _on_leaders(info, fn, batch, of, mine)

    return run


def _on_leaders(info: OpInfo, fn: Run, batch: Batch, of: Leaders, args: list[Any]) -> Any:
    """``fn`` of the leaders; if it waits inside of itself, all threads of their programs do."""
    one = of.batch
    waited = batch.suspended.pop(info.index, None)
    if waited is not None:
        each = waited.size // batch.size
        place = np.empty(one.size, dtype=np.int64)
        place[of.of[::-1]] = np.arange(batch.size)[::-1]  # the first lane of each leader
        one.suspended[info.index] = waited.select((place[:, None] * each + np.arange(each)).reshape(-1))
    try:
        out = fn(one, *args)
    except Stuck as stuck:
        each = stuck.frame.size // one.size
        stuck.frame = stuck.frame.select((of.of[:, None] * each + np.arange(each)).reshape(-1))
        raise
    finally:
        batch.written |= one.written
        one.written = False
    if len(info.result_types) > 1:
        return tuple([of.spread(v, batch.lanes) for v in out])
    return of.spread(out, batch.lanes)


def _covered(of: Leaders, elements: int, threads: int) -> bool:
    """Whether the threads here are all, or the first ones, with an element each."""
    return bool(((of.count == threads) | ((of.first == 0) & (of.count >= min(elements, threads)))).all())


def _differs(v: Value, own: Any, batch: Batch, of: Leaders) -> bool:
    """Whether a value is not the same in all threads of a program. ``own``: the leaders'."""
    parts: Iterable[tuple[Any, Any]]
    match v:
        case Tensor() | Affine() | np.ndarray():
            if of.axis is not None and not varies(v, of.axis):
                return False
            every, one = _numbers(v, batch.lanes), _numbers(own, of.batch.lanes)
            if of.axis is None:
                every = flatten(every, batch.lanes, np.unravel_index(np.arange(batch.size), batch.lanes))
                one = pick(one, 0, of.of, of.batch.lanes)
            same = every == one
            if every.is_floating_point():
                same = same | (every.isnan() & one.isnan())
            return not bool(same.all())
        case Ptr():
            parts = ((v.offset, own.offset), (v.scattered, own.scattered))
        case Box():
            parts = tuple(
                [p for a, b in zip(v.bounds, own.bounds, strict=True) if a and b for p in zip(a, b, strict=True)]
            )
        case Desc():
            parts = ((v.base, own.base), *zip((*v.shape, *v.strides), (*own.shape, *own.strides), strict=True))
        case _:
            return False
    return any(_differs(part, mine, batch, of) for part, mine in parts)


def _numbers(v: Any, lanes: tuple[int, ...]) -> Tensor:
    """A value as a tensor whose first dimensions are the lanes; without the tile's part of affine numbers, the same for all."""
    if type(v) is Tensor:
        return v
    return torch.from_numpy(np.ascontiguousarray(v if type(v) is np.ndarray else lane_array(v, lanes)))


def _refused(info: OpInfo, what: str, batch: Batch) -> UnsupportedOpError:
    return UnsupportedOpError(
        f"kernel {info.kernel}: {info.name} {what}\n  {batch.describe_lanes(None)}\n  at {info.loc}\n  {info.text}\n"
        f"  The kernel tells threads apart (%tid, or assembly that every thread runs): scalars are each thread's own there, "
        f"and which part of a tile a thread has is not known before compilation. Let tl.arange count what threads count, or "
        f"keep to scalars in inline assembly."
    )


def programs_by_launch(batch: Batch) -> Shares:
    """How many programs a batch has, of each of its launches."""
    return (batch if batch.threads is None else leaders(batch).batch).lanes_by_launch


def programs_of(batch: Batch) -> int:
    """How many programs a batch has (of all its ranks)."""
    return batch.size if batch.threads is None else prod(leaders(batch).batch.lanes)
