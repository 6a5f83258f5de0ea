"""Runs a lifted program for many programs, and many ranks, at once.

A :class:`Batch` is a set of lanes at one block. Where a branch is not uniform it splits; the batch at the lowest block
runs first and batches that meet there merge, so lanes reconverge after every ``if`` and loop. A lane that spins on
memory parks until memory changes; when every lane is parked the execution reports ``"waiting"`` and may be resumed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from kernbench.errors import KernbenchError, MemoryAccessError

from . import lanes as lane_ops
from .counts import Counts, TensorTraffic
from .lift.program import Branch, Code, ForBack, ForHead, Instr, Jump, OpInfo, Program, Return
from .memory import Allocation, AllocationMap, registry, write_epoch
from .ops.registry import lookup
from .plan import Chunk, Plan, make_plan
from .values import Aff, Ptr, Value, dense_int, dense_mask, exact_bounds, from_lane_array, lane_array, wrap

Status = Literal["done", "waiting", "yielded"]
Runner = Callable[[list[Any], "Batch"], None]

#: Back-edges of a loop that reads memory, without any write in between, after which other lanes get their turn.
_PATIENCE = 256


@dataclass
class Launch:
    """One ``kernel[grid](...)``: what to run, for which rank, and where the user asked for it.

    ``args`` are the run-time arguments in the order of the program's arguments: numbers, tensors (anything with
    ``data_ptr``), tensor descriptors.
    """

    program: Program
    grid: tuple[int, int, int]
    args: Sequence[Any]
    rank: int | None = None
    name: str = ""
    where: str = ""
    arg_names: Sequence[str] = ()
    kernel: Any = None
    counts: Counts | None = None


class Batch:
    """Lanes that are at the same block. ``lanes`` are the sizes of the lane axes; dimensions of values follow them."""

    __slots__ = ("env", "ids", "lanes", "n", "parked", "pc", "rank", "rank_index", "spins", "written", "x")

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
        self.written = False

    def program_id(self, axis: int) -> int | Aff:
        gx, gy, _ = self.x.grid
        linear = self.ids
        part = linear % gx if axis == 0 else linear // gx % gy if axis == 1 else linear // (gx * gy)
        return from_lane_array(_squeeze(part))

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
        ranks = self.ranks()
        if ranks:
            text = f"rank {', '.join(map(str, ranks))}, {text}"
        return text

    def ranks(self) -> list[int]:
        index = [self.rank] if self.rank_index is None else sorted(set(self.rank_index.reshape(-1).tolist()))
        return [r for r in (self.x.launches[i].rank for i in index) if r is not None]


def _squeeze(arr: np.ndarray) -> np.ndarray:
    """Axes along which nothing changes get size 1."""
    for k in range(arr.ndim):
        if arr.shape[k] > 1 and bool((np.take(arr, [0], axis=k) == arr).all()):
            arr = np.take(arr, [0], axis=k)
    return arr


def _runner(instr: Instr) -> Runner:
    """An instruction as ``run(env, batch)``; the common arities avoid building argument lists."""
    fn, args, results, kills = instr.fn, instr.args, instr.results, instr.kills
    if len(results) == 1:
        r = results[0]
        if len(args) == 1:
            a = args[0]

            def run1(env: list[Any], b: Batch) -> None:
                env[r] = fn(b, env[a])
                for k in kills:
                    env[k] = None

            return run1
        if len(args) == 2:
            a, c = args

            def run2(env: list[Any], b: Batch) -> None:
                env[r] = fn(b, env[a], env[c])
                for k in kills:
                    env[k] = None

            return run2

        def run_n(env: list[Any], b: Batch) -> None:
            env[r] = fn(b, *[env[i] for i in args])
            for k in kills:
                env[k] = None

        return run_n

    def run(env: list[Any], b: Batch) -> None:
        out = fn(b, *[env[i] for i in args])
        if results:
            for slot, v in zip(results, out, strict=True):
                env[slot] = v
        for k in kills:
            env[k] = None

    return run


@dataclass(eq=False)
class _Static:
    """What execution needs of a program beyond its blocks; made once."""

    code: list[list[tuple[Runner, OpInfo]]]
    flops: list[list[tuple[tuple[str, str], int]]]
    specials: list[int]
    arg_types: list[Any]
    plans: dict[Any, Plan] = field(default_factory=dict)


def _static(program: Program) -> _Static:
    made: _Static | None = getattr(program, "_static", None)
    if made is not None:
        return made
    code, flops, specials = [], [], []
    for block in program.blocks:
        code.append([(_runner(i), i.info) for i in block.instrs])
        work: dict[tuple[str, str], int] = {}
        special = 0
        for i in block.instrs:
            amount, key = _work(i)
            if amount:
                work[key] = work.get(key, 0) + amount
                if key[1] == "special":
                    special += amount
        flops.append(list(work.items()))
        specials.append(special)
    made = _Static(code, flops, specials, [ty for _, ty in program.args])
    program._static = made  # type: ignore[attr-defined]
    return made


def _work(instr: Instr) -> tuple[int, tuple[str, str]]:
    """Floating-point operations of one execution of an instruction by one program."""
    info = instr.info
    definition = lookup(info.name)
    assert definition is not None
    if info.name in ("tt.dot", "tt.dot_scaled"):
        a = info.operand_types[0]
        k = a.shape[-1] * (2 if info.attrs.get("lhs") == "e2m1" else 1)
        return 2 * info.ty.numel * k, (a.elem, "tensor")
    if info.regions and info.result_types and info.operand_types[0].is_float:
        inner = sum(1 for o in info.regions[0].ops if (d := lookup(o.name)) is not None and d.flops)
        return inner * info.operand_types[0].numel, (info.operand_types[0].elem, "vector")
    if not definition.flops:
        return 0, ("", "")
    ty = info.operand_types[0] if info.name == "arith.cmpf" else info.ty
    return definition.flops * ty.numel, (ty.elem, definition.unit)


class Execution:
    """One or several launches (ranks) of one program on one grid, run as a resumable whole.

    ``run()`` returns ``"done"``, ``"waiting"`` (every lane waits for memory that somebody else must write) or
    ``"yielded"`` (lanes poll memory under a changing counter: they can go on, but others should have a turn first).
    """

    def __init__(
        self,
        launches: Sequence[Launch],
        memory: AllocationMap | None = None,
        *,
        dry: bool = False,
        only: int | None = None,
        profile: bool = False,
    ) -> None:
        self.launches = launches
        first = launches[0]
        self.program = first.program
        self.grid = first.grid
        self.n_ranks = len(launches)
        self.memory: AllocationMap = memory if memory is not None else registry
        self.dry = dry
        self.static = _static(self.program)
        self.profile: dict[int, list[float]] | None = {} if profile else None
        self.block_lanes = [0] * len(self.program.blocks)
        self._traffic: dict[int, TensorTraffic] = {}
        self._bytes: dict[int, int] = {}
        self.atomics = 0
        self._known: dict[int, Allocation] = {}
        self._allocations: list[Allocation] = []
        self.batches: list[Batch] = []
        self._pending: list[Chunk] = []
        self._programs = prod(self.grid)
        self.roots: dict[int, list[tuple[Allocation, int]]] = {}
        if self._programs:
            self._bind(only)

    # Binding

    def _bind(self, only: int | None) -> None:
        program = self.program
        env: list[Any] = [None] * program.n_slots
        for slot, value in program.constants.items():
            env[slot] = value
        key: list[Any] = [self.grid, self.n_ranks > 1 and self.n_ranks]
        keyed = set(program.key_args)
        self._rank_axis = self.n_ranks > 1
        constant_tiles = [s for s, v in program.constants.items() if type(v) is Tensor]
        self._constant_tiles = constant_tiles
        lane_args: list[tuple[int, list[Any]]] = []
        for i, (slot, ty) in enumerate(program.args):
            values = [launch.args[i] for launch in self.launches]
            if ty.is_ptr:
                self.roots[i] = [self._root(v, i, r) for r, v in enumerate(values)]
                env[slot] = Ptr(i, 0)
            elif ty.elem == "desc":
                env[slot] = ("desc", i, values, ty)
            elif ty.is_int:
                ints = [bool(v) if ty.elem == "i1" else wrap(int(v), ty.bits) for v in values]
                if i in keyed:
                    key.append(tuple(ints))
                if len(set(ints)) > 1:
                    lane_args.append((slot, ints))
                env[slot] = ints[0]
            else:
                floats = [
                    float(torch.tensor(float(v), dtype=torch.float64).to(ty.dtype))
                    if ty.elem != "f32"
                    else float(np.float32(v))
                    for v in values
                ]
                if len({repr(v) for v in floats}) > 1:
                    lane_args.append((slot, floats))
                env[slot] = floats[0]
        if lane_args:
            raise KernbenchError("launches of one batch must agree in their number arguments")
        for slot, ty in program.args:
            if type(env[slot]) is tuple:
                env[slot] = self._descriptor(*env[slot][1:])
        plan = self.static.plans.get(tuple(key))
        if plan is None:
            if len(self.static.plans) > 256:
                self.static.plans.clear()
            plan = make_plan(program, self, env)
            self.static.plans[tuple(key)] = plan
        self.plan = plan
        self._env = env
        self._pending = list(plan.chunks) if only is None else [_first_programs(plan, only)]
        self._sampled = prod(b - a for a, b in self._pending[0].ranges) if only is not None else None

    def _root(self, value: Any, arg: int, rank: int) -> tuple[Allocation, int]:
        if isinstance(value, Tensor):
            tensor = value
            storage = tensor.untyped_storage()
            base = storage.data_ptr()
            allocation = self._known.get(base)
            if allocation is None:
                launch = self.launches[rank]
                name = launch.arg_names[arg] if arg < len(launch.arg_names) else f"argument {arg}"
                allocation = Allocation(tensor, name, launch.rank)
                self._known[base] = allocation
            return allocation, tensor.data_ptr() - base
        address = value if isinstance(value, int) else value.data_ptr()
        inner = getattr(value, "base", None)  # triton's TensorWrapper (reinterpret)
        if isinstance(inner, Tensor):
            return self._root(inner, arg, rank)
        if address == 0:
            return _NULL, 0
        found = self.find(address)
        if found is None:
            raise MemoryAccessError(
                f"kernel {self.program.name}: argument {arg} points to {address:#x}, which belongs to no live tensor"
            )
        return found, address - found.base

    def _descriptor(self, arg: int, values: list[Any], ty: Any) -> Any:
        from .ops.descriptors import host_descriptor

        first = values[0]
        self.roots[arg] = [self._root(v.base, arg, r) for r, v in enumerate(values)]
        return host_descriptor(first, arg, ty)

    # Memory services for operations

    def find(self, address: int) -> Allocation | None:
        for allocation in self._known.values():
            if allocation.base <= address < allocation.base + allocation.nbytes:
                return allocation
        found = self.memory.find(address)
        if found is None and self.memory is not registry:
            found = registry.find(address)
        if found is None:
            from .memory import find_live

            found = find_live(address)
        if found is not None:
            self._known[found.base] = found
        return found

    def offsets(self, b: Batch, p: Ptr, tile: tuple[int, ...]) -> Tensor:
        """Byte offsets from the root as an int64 tensor broadcastable to lanes + tile."""
        off = dense_int(p.off, b.lanes, tile, torch.int64)
        if type(off) is not Tensor:
            off = torch.full((1,) * (len(b.lanes) + len(tile)), off, dtype=torch.int64)
        return off if p.den is None else off + p.den

    def addresses(self, b: Batch, p: Ptr, tile: tuple[int, ...]) -> Tensor:
        """Absolute byte addresses, as :meth:`offsets`."""
        out = self.offsets(b, p, tile)
        if p.root is None:
            return out
        bases = self.roots[p.root]
        if b.rank_index is None:
            allocation, start = bases[b.rank]
            return out + (allocation.base + start)
        base = np.array([a.base + s for a, s in bases], dtype=np.int64)[b.rank_index]
        return out + torch.from_numpy(base).reshape(base.shape + (1,) * len(tile))

    def absolute(self, p: Ptr, lanes: tuple[int, ...]) -> Ptr:
        """The same pointer without a root (one-rank batches only: others carry their rank along)."""
        if p.root is None:
            return p
        if self.n_ranks > 1:
            raise KernbenchError(
                f"kernel {self.program.name}: pointers of several arguments meet in a multi-rank batch"
            )
        from .ops.arith_int import aff_add

        allocation, start = self.roots[p.root][0]
        return Ptr(None, aff_add(p.off, allocation.base + start), p.den)

    def whole_in_bounds(self, b: Batch, p: Ptr, tile: tuple[int, ...], item: int) -> bool:
        """True if every element of an affine access, masked or not, lies inside one allocation."""
        off = p.off
        lo, hi = exact_bounds(off, b.lanes, tile) if type(off) is Aff else (off, off)
        if p.root is None:
            allocation = self.find(lo)
            return allocation is not None and hi + item <= allocation.base + allocation.nbytes
        ranks = [b.rank] if b.rank_index is None else range(self.n_ranks)
        for r in ranks:
            allocation, start = self.roots[p.root][r]
            if lo + start < 0 or hi + start + item > allocation.nbytes:
                return False
        return True

    def touch(self, info: OpInfo, allocation: Allocation, nbytes: int, low: int, high: int) -> None:
        """Account for ``nbytes`` moved between byte offsets ``low`` and ``high`` of an allocation."""
        t = self._traffic.get(allocation.base)
        if t is None:
            t = self._traffic[allocation.base] = TensorTraffic(allocation.name)
        if info.result_types:
            t.read += nbytes
            if low < t.read_low:
                t.read_low = low
            if high > t.read_high:
                t.read_high = high
        if not info.result_types or "atomic" in info.name:
            t.written += nbytes
            if low < t.write_low:
                t.write_low = low
            if high > t.write_high:
                t.write_high = high
        self._bytes[info.index] = self._bytes.get(info.index, 0) + nbytes

    def snapshot_counts(self) -> tuple[dict[int, int], dict[int, TensorTraffic]]:
        from copy import copy

        return dict(self._bytes), {k: copy(v) for k, v in self._traffic.items()}

    def restore_counts(self, saved: tuple[dict[int, int], dict[int, TensorTraffic]]) -> None:
        self._bytes, self._traffic = saved

    def program_of(self, linear: int) -> tuple[int, int, int]:
        gx, gy, _ = self.grid
        return linear % gx, linear // gx % gy, linear // (gx * gy)

    # Running

    def run(self) -> Status:
        """Run until every program has ended, or until nothing can go on."""
        while True:
            if not self.batches:
                if not self._pending:
                    return "done"
                self.batches.append(self._start(self._pending.pop(0)))
            status = self._schedule()
            if status != "done":
                return status

    def _start(self, chunk: Chunk) -> Batch:
        env = list(self._env)
        sizes = tuple(b - a for a, b in chunk.ranges)
        ids = np.asarray(self.plan.ids[tuple(slice(a, b) for a, b in chunk.ranges)])
        rank_index = None
        lanes = sizes
        if self._rank_axis:
            lanes = (self.n_ranks, *sizes)
            ids = ids[None]
            rank_index = np.arange(self.n_ranks).reshape((self.n_ranks,) + (1,) * len(sizes))
        batch = Batch(self, env, lanes, ids, rank_index, 0)
        n = len(lanes)
        for slot in self._constant_tiles:
            env[slot] = env[slot].reshape((1,) * n + tuple(env[slot].shape))
        if chunk.env is not None:
            for slot, v in chunk.env:
                env[slot] = v
            return batch
        made: list[tuple[int, Value]] = []
        for slot, v in self.plan.scalars:
            v = self._restrict(v, chunk, lanes)
            env[slot] = v
            made.append((slot, v))
        for instr in self.plan.tiles:
            try:
                v = instr.fn(batch, *[env[a] for a in instr.args])
            except Exception as error:
                raise self._explain(error, instr.info, batch) from error
            env[instr.results[0]] = v
            made.append((instr.results[0], v))
        if self.plan.keep and sum(_bulk(v) for _, v in made) < 1 << 18:
            chunk.env = made
        return batch

    def _restrict(self, v: Value, chunk: Chunk, lanes: tuple[int, ...]) -> Value:
        kind = type(v)
        if kind is Ptr:
            return Ptr(v.root, self._restrict(v.off, chunk, lanes), v.den)  # type: ignore[union-attr,arg-type]
        if kind is not Aff and kind is not Tensor:
            return v
        for k, (start, stop) in enumerate(chunk.ranges):
            v = lane_ops.cut(v, k, start, stop)
        if kind is Tensor:
            return v.unsqueeze(0) if self._rank_axis else v  # type: ignore[union-attr]
        ls, arr = v.ls, v.arr  # type: ignore[union-attr]
        if self._rank_axis:
            ls = (0, *ls)
            arr = None if arr is None else arr[None]
        out = Aff(v.c, ls, v.ts, 0, 0, arr)  # type: ignore[union-attr]
        out.lo, out.hi = exact_bounds(out, lanes, ())
        if out.lo == out.hi:
            return out.lo
        return out

    def _schedule(self) -> Status:
        batches = self.batches
        while batches:
            epoch = write_epoch.count
            ready = [b for b in batches if b.parked != epoch]
            if not ready:
                return "waiting"
            for b in ready:
                b.parked = -1
            eager = [b for b in ready if b.spins < _PATIENCE]
            if not eager:
                for b in ready:
                    b.spins = 0
                return "yielded"
            lowest = min(b.pc for b in eager)
            same = [b for b in eager if b.pc == lowest]
            if len(same) > 1:
                merged = self._merge(same)
                batches[:] = [b for b in batches if b not in same] + [merged]
                current = merged
            else:
                current = same[0]
            batches.remove(current)
            limit = min((b.pc for b in batches), default=len(self.program.blocks))
            batches.extend(self._run_batch(current, limit))
        return "done"

    def _run_batch(self, b: Batch, limit: int) -> list[Batch]:
        """Run ``b`` until it ends, splits, parks, or reaches a block that is not below ``limit``."""
        blocks = self.program.blocks
        code = self.static.code
        block_lanes = self.block_lanes
        env = b.env
        info: OpInfo | None = None
        timed = self.profile is not None
        try:
            while True:
                block = blocks[b.pc]
                for k in block.kills:
                    env[k] = None
                block_lanes[b.pc] += b.n
                if timed:
                    info = self._timed(b, code[b.pc])
                else:
                    for run, info in code[b.pc]:  # noqa: B007
                        run(env, b)
                info = None
                out = self._terminate(b, block)
                if out is not None:
                    return out
                if b.pc >= limit or b.parked >= 0:
                    return [b]
        except (KernbenchError, RuntimeError, ValueError, TypeError, IndexError, ZeroDivisionError) as error:
            if info is None:
                raise
            explained = self._explain(error, info, b)
            if explained is error:
                raise
            raise explained from error

    def _timed(self, b: Batch, code: list[tuple[Runner, OpInfo]]) -> OpInfo | None:
        assert self.profile is not None
        info = None
        for run, info in code:
            start = time.perf_counter()
            run(b.env, b)
            entry = self.profile.setdefault(info.index, [0.0, 0])
            entry[0] += time.perf_counter() - start
            entry[1] += 1
        return info

    def _explain(self, error: Exception, info: OpInfo, b: Batch) -> Exception:
        if isinstance(error, KernbenchError):
            return error
        return KernbenchError(
            f"kernel {self.program.name}: {info.name} failed: {type(error).__name__}: {error}\n"
            f"  {b.describe_lanes(None)}\n  at {info.loc}\n  {info.text}"
        )

    # Control flow

    def _terminate(self, b: Batch, block: Code) -> list[Batch] | None:
        """Follow the terminator; a list of batches if ``b`` ended or split."""
        term = block.term
        kind = type(term)
        env = b.env
        if kind is ForBack:
            moved = [(d, env[s]) for d, s in term.moves]  # type: ignore[union-attr]
            iv, step = env[term.iv], env[term.step]  # type: ignore[union-attr]
            if type(iv) is int and type(step) is int:
                env[term.iv] = iv + step  # type: ignore[union-attr]
            else:
                env[term.iv] = _add_lanes(iv, step, b.lanes)  # type: ignore[union-attr]
            for d, v in moved:
                env[d] = v
            b.pc = term.head  # type: ignore[union-attr]
            return None
        if kind is ForHead:
            iv, upper = env[term.iv], env[term.upper]  # type: ignore[union-attr]
            if type(iv) is int and type(upper) is int:
                if term.unsigned:  # type: ignore[union-attr]
                    iv, upper = iv & 0xFFFFFFFFFFFFFFFF, upper & 0xFFFFFFFFFFFFFFFF
                b.pc = term.body if iv < upper else term.exit  # type: ignore[union-attr]
                return None
            going = _lanes_of(iv, b.lanes) < _lanes_of(upper, b.lanes)
            return self._split(b, going, Jump(term.body), Jump(term.exit))  # type: ignore[union-attr]
        if kind is Jump:
            self._jump(b, term)  # type: ignore[arg-type]
            return None
        if kind is Branch:
            cond = env[term.cond]  # type: ignore[union-attr]
            if type(cond) is Tensor:
                mask = cond.numpy()
                return self._split(b, mask, term.then, term.other)  # type: ignore[union-attr]
            self._jump(b, term.then if cond else term.other)  # type: ignore[union-attr]
            return None
        assert kind is Return
        return []

    def _jump(self, b: Batch, jump: Jump) -> None:
        env = b.env
        loop = jump.loop
        if loop is not None and loop.reads_memory:
            self._maybe_park(b, jump)
        if jump.moves:
            moved = [(d, env[s]) for d, s in jump.moves]
            for d, v in moved:
                env[d] = v
        b.pc = jump.target

    def _maybe_park(self, b: Batch, jump: Jump) -> None:
        """A loop that reads memory came round without writing: if nothing it carries changed, it waits."""
        if b.written:
            b.written = False
            b.spins = 0
            return
        env = b.env
        if all(_unchanged(env[d], env[s]) for d, s in jump.moves):
            b.parked = write_epoch.count
        else:
            b.spins += 1
            if b.spins >= _PATIENCE:
                b.parked = -1

    def _split(self, b: Batch, mask: np.ndarray, then: Jump, other: Jump) -> list[Batch] | None:
        mask = _squeeze(mask) if mask.ndim else mask
        if mask.size == 1:
            self._jump(b, then if bool(mask.reshape(-1)[0]) else other)
            return None
        varying = [k for k, n in enumerate(mask.shape) if n > 1]
        if len(varying) == 1:
            k = varying[0]
            flat = mask.reshape(-1)
            yes, no = np.nonzero(flat)[0], np.nonzero(~flat)[0]
            parts = [self._select(b, k, yes, then.target), self._select(b, k, no, other.target)]
        else:
            which = np.nonzero(np.broadcast_to(mask, b.lanes))
            rest = np.nonzero(~np.broadcast_to(mask, b.lanes))
            parts = [self._flat(b, which), self._flat(b, rest)]
        for part, jump in zip(parts, (then, other), strict=True):
            part.spins = b.spins
            self._jump(part, jump)
        return parts

    def _select(self, b: Batch, axis: int, index: np.ndarray, target: int) -> Batch:
        """The lanes ``index`` along one axis, as a batch of its own."""
        start, stop = int(index[0]), int(index[-1]) + 1
        straight = stop - start == len(index)
        owned = self.program.owned
        env = b.env
        out: list[Any] = [None] * len(env)
        for slot, v in enumerate(env):
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
            rank_index = np.take(rank_index, index, axis=axis)
            if rank_index.size == 1:
                rank_index, rank = None, int(rank_index.reshape(-1)[0])
        lanes = (*b.lanes[:axis], len(index), *b.lanes[axis + 1 :])
        batch = Batch(self, out, lanes, ids, rank_index, rank)
        batch.written = b.written
        return batch

    def _flat(self, b: Batch, which: tuple[np.ndarray, ...]) -> Batch:
        """The lanes at given coordinates as a batch with a single lane axis."""
        env = [v if v is None or type(v) in (int, float, bool) else lane_ops.flatten(v, b.lanes, which) for v in b.env]
        count = len(which[0])
        ids = b.ids[tuple(w if n > 1 else np.zeros_like(w) for w, n in zip(which, b.ids.shape, strict=True))]
        rank_index = b.rank_index
        if rank_index is not None:
            rank_index = rank_index[
                tuple(w if n > 1 else np.zeros_like(w) for w, n in zip(which, rank_index.shape, strict=True))
            ]
        batch = Batch(self, env, (count,), ids, rank_index, b.rank)
        batch.written = b.written
        return batch

    def _merge(self, parts: list[Batch]) -> Batch:
        """Batches at one block become one."""
        axis = _common_axis(parts)
        if axis is None:
            flat = []
            for p in parts:
                if len(p.lanes) == 1:
                    flat.append(p)
                else:
                    n = self._flat(p, tuple(np.unravel_index(np.arange(p.n), p.lanes)))
                    n.pc, n.spins = p.pc, p.spins
                    flat.append(n)
            parts, axis = flat, 0
        parts = sorted(parts, key=lambda p: int(p.ids.reshape(-1)[0]))
        first = parts[0]
        env: list[Any] = [None] * len(first.env)
        lanes = [p.lanes for p in parts]
        types = self.program.types
        live = set(self.program.blocks[first.pc].live_in) | self._lasting()
        for slot in live:
            values = [p.env[slot] for p in parts]
            if values[0] is None:
                continue
            env[slot] = lane_ops.join(values, axis, lanes, types[slot], self)
        total = sum(ln[axis] for ln in lanes)
        shape = (*first.lanes[:axis], total, *first.lanes[axis + 1 :])
        grow = lambda a, p: np.broadcast_to(a, (*a.shape[:axis], p.lanes[axis], *a.shape[axis + 1 :]))  # noqa: E731
        ids = np.concatenate([grow(_expand_others(p.ids, parts, axis), p) for p in parts], axis=axis)
        rank_index = None
        if any(p.rank_index is not None for p in parts) or len({p.rank for p in parts}) > 1:
            full = [
                np.broadcast_to(
                    p.rank_index if p.rank_index is not None else np.full((1,) * len(p.lanes), p.rank), p.lanes
                )
                for p in parts
            ]
            rank_index = _squeeze(np.concatenate(full, axis=axis))
        merged = Batch(self, env, shape, ids, rank_index, first.rank)
        merged.pc = first.pc
        merged.spins = max(p.spins for p in parts)
        merged.written = any(p.written for p in parts)
        return merged

    def _lasting(self) -> set[int]:
        made = getattr(self.program, "_lasting", None)
        if made is None:
            p = self.program
            made = set(p.constants) | {s for s, _ in p.args} | {r for i in p.invariant for r in i.results}
            p._lasting = made  # type: ignore[attr-defined]
        return made

    # Waiting

    def describe_wait(self) -> str:
        """Where the waiting lanes stand, for a deadlock report."""
        from .report import describe_wait

        return describe_wait(self)

    # Results

    def counts(self) -> Counts:
        """What the execution did so far, for all its launches together."""
        out = Counts(
            programs=self._programs * self.n_ranks if self._sampled_programs() is None else self._sampled_programs()
        )  # type: ignore[arg-type]
        for index, n in enumerate(self.block_lanes):
            if not n:
                continue
            for key, amount in self.static.flops[index]:
                out.flops[key] = out.flops.get(key, 0) + amount * n
            out.transcendentals += self.static.specials[index] * n
            term = self.program.blocks[index].term
            if isinstance(term, ForBack):
                head = self.program.blocks[term.head].term
                assert isinstance(head, ForHead)
                where = str(head.loop.loc)
                out.trips[where] = out.trips.get(where, 0) + n
        for t in self._traffic.values():
            out.bytes_read += t.read
            out.bytes_written += t.written
            out.unique_bytes_read += t.unique_read
            out.unique_bytes_written += t.unique_written
            name = t.name
            while name in out.by_tensor:
                name += "'"
            out.by_tensor[name] = t
        out.atomics = self.atomics
        for index, nbytes in self._bytes.items():
            info = self.program.ops[index]
            where = f"{info.loc.user.file}:{info.loc.user.line}"
            had = out.by_line.get(where, (0, 0))
            out.by_line[where] = (had[0] + nbytes, had[1])
        for block in self.program.blocks:
            n = self.block_lanes[block.index]
            for instr in block.instrs:
                amount, _ = _work(instr) if n else (0, None)
                if amount:
                    user = instr.info.loc.user
                    where = f"{user.file}:{user.line}"
                    had = out.by_line.get(where, (0, 0))
                    out.by_line[where] = (had[0], had[1] + amount * n)
        return out

    def _sampled_programs(self) -> int | None:
        return getattr(self, "_sampled", None)


_NULL = Allocation(torch.empty(0), "null pointer")


def _bulk(v: Value) -> int:
    if type(v) is Tensor:
        return v.numel()
    if type(v) is Ptr:
        return 0 if v.den is None else v.den.numel()
    return 0


def _first_programs(plan: Plan, count: int) -> Chunk:
    """A chunk of at most ``count`` programs, for sampling."""
    ranges = []
    left = count
    for n in reversed(plan.shape):
        take = max(1, min(n, left))
        ranges.append((0, take))
        left //= take
    return Chunk(tuple(reversed(ranges)))


def _lanes_of(v: Any, lanes: tuple[int, ...]) -> np.ndarray:
    if type(v) is Tensor:
        return v.numpy().astype(np.int64)
    return lane_array(v, lanes)


def _add_lanes(iv: Any, step: Any, lanes: tuple[int, ...]) -> Any:
    from .ops.arith_int import aff_add

    if type(iv) is Tensor or type(step) is Tensor:
        return from_lane_array(_lanes_of(iv, lanes) + _lanes_of(step, lanes))
    return aff_add(iv, step)


def _unchanged(old: Any, new: Any) -> bool:
    if old is new:
        return True
    if type(old) is Tensor and type(new) is Tensor:
        return old.shape == new.shape and bool(torch.equal(old, new))
    return lane_ops._same(old, new)


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


__all__ = ["Batch", "Execution", "Launch", "Status", "dense_mask"]
