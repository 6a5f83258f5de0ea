"""Runs a kernel for many programs, and many ranks, at once.

A :class:`~.batch.Batch` is a set of lanes at one block. Where a branch is not uniform it splits; the batch at the lowest
block runs first and batches that meet there merge, so lanes reconverge after every ``if`` and loop. A lane that spins on
memory parks until memory changes; when every lane is parked the execution reports ``"waiting"`` and may be resumed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from math import prod
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from kernbench.errors import KernbenchError
from kernbench.torch_backend.modes import plain_torch  # the one import upwards: torch's privates live there (ADR 0027)

from .affine import aff_add
from .batch import Batch, flat, merge, select, squeeze
from .binding import Binding, Launch
from .checks import checks_of
from .contention import UpdateCounter
from .counts import Counts
from .frontend.program import BasicBlock, Branch, ForBack, ForHead, Jump, OpInfo
from .lane_grid import Chunk, LaneGrid, make_lane_grid, per_rank, thread_numbers
from .lanes import cut, same
from .memory import AllocationMap, write_epoch
from .ptx import Stuck
from .report import describe_wait
from .runners import Runner, ready
from .tally import count
from .thread_lanes import programs_by_launch, programs_of, shared, together, whole
from .values import Affine, Ptr, Value, exact_bounds, from_lane_array, lane_array

Status = Literal["done", "waiting", "yielded"]

#: Back-edges of a loop that reads memory, without any write in between, after which other lanes get their turn.
_PATIENCE = 256
#: Where programs can be set apart: at multiples of this share of them.
_PARTS = 8
#: Lane grids kept per program.
_LANE_GRIDS = 256


class Execution(Binding):
    """One or several launches (ranks) of one program on one grid, run as a resumable whole.

    ``run()`` returns ``"done"``, ``"waiting"`` (every lane waits for memory that another writer must write) or
    ``"yielded"`` (lanes poll memory under a changing counter: they can go on, but others should have a turn first).
    """

    def __init__(
        self,
        launches: Sequence[Launch],
        memory: AllocationMap | None = None,
        *,
        dry: bool = False,
        only: int | None = None,
        wave: range | None = None,
        known: bool = False,
        profile: bool = False,
    ) -> None:
        super().__init__(launches, memory, dry=dry, wave=wave)
        self.ready = ready(self.program)
        counted = self.ready.atomics - self.ready.by_values if known else self.ready.by_values
        if counted and wave is None:  # of launches that run, only what a look beforehand cannot tell
            self.updates = [UpdateCounter(counted, self.blind and not known) for _ in launches]
        self.profile: dict[int, list[float]] | None = {} if profile else None
        alone = profile or dry or wave is not None
        self._code = self.ready.code if alone else self.ready.fused
        #: Lanes of each launch that entered each block.
        self.block_lanes = [[0] * len(self.program.blocks) for _ in launches]
        self.checks = checks_of(self, None if dry else self.memory.checks(self))
        self.batches: list[Batch] = []
        self._pending: list[Chunk] = []
        #: Trips of all programs' loops, of which only a wave is sampled.
        self.turns = np.zeros(self.programs if wave is not None else 0, dtype=np.int64)
        #: Programs run when only a sample is.
        self.sampled: int | None = None
        #: Says which programs go first (:mod:`kernbench.order.choices`); None: they run together.
        self.pick: Callable[[str, Sequence[Hashable]], int] | None = None
        #: Those that come after.
        self._later: list[Batch] = []
        if self.programs:
            self._prepare(only)

    def _prepare(self, only: int | None) -> None:
        """Bind arguments, and lay out the lanes (or find the grid of an equal launch)."""
        program = self.program
        env, key, by_rank = self.bind()
        lane_grid = self.ready.lane_grids.get(key)
        if lane_grid is None:
            if len(self.ready.lane_grids) >= _LANE_GRIDS:
                self.ready.lane_grids.clear()
            with plain_torch():
                lane_grid = make_lane_grid(program, self, env, by_rank)
            self.ready.lane_grids[key] = lane_grid
        for slot, numbers in by_rank:
            value = per_rank(numbers, len(lane_grid.shape))
            env[slot] = value.to(program.types[slot].dtype) if isinstance(value, Tensor) else value
        self.lane_grid = lane_grid
        self._env = env
        self._constant_tiles = [s for s, v in program.constants.items() if type(v) is Tensor]
        self._pending = list(lane_grid.chunks)
        if self.wave is not None:  # the order of lanes is not that of programs: all of them, by address only
            self._pending = [Chunk(tuple([(0, n) for n in lane_grid.shape]))]
        if only is not None:
            self._pending = [_middle_programs(lane_grid, only, program.threads if program.by_thread else 0)]
            ranges = self._pending[0].ranges
            self.sampled = prod(b - a for a, b in (ranges[:-1] if program.by_thread else ranges))

    # Running

    def run(self) -> Status:
        """Run until every program has ended, or until nothing can go on."""
        with plain_torch():
            return self._run()

    def _run(self) -> Status:
        while True:
            if not self.batches:
                if not self._pending:
                    return "done"
                self.batches.append(self._start(self._pending.pop(0)))
                if self.pick is not None and not self.program.by_thread:
                    self._set_apart(self.pick)
            status = self._schedule()
            if self._later:
                self.batches += self._later
                self._later = []
            elif status != "done":
                return status

    def _set_apart(self, pick: Callable[[str, Sequence[Hashable]], int]) -> None:
        """Let some of the programs run, as far as they come, before the others begin."""
        (batch,) = self.batches
        cuts = sorted({batch.size * (n + 1) // _PARTS for n in range(_PARTS - 1)} - {0, batch.size})
        options = [(cut, first) for cut in cuts for first in (0, 1)]
        at = pick("p", ("together", *(f"those {('before', 'from')[first]} {cut} go first" for cut, first in options)))
        if not at:
            return
        cut, first = options[at - 1]
        lanes = np.arange(batch.size)
        parts = [flat(batch, np.unravel_index(lanes[side], batch.lanes)) for side in (slice(cut), slice(cut, None))]
        self.batches = [parts[first]]
        self._later = [parts[1 - first]]

    def _start(self, chunk: Chunk) -> Batch:
        env = list(self._env)
        sizes = tuple(b - a for a, b in chunk.ranges)
        ids = np.asarray(self.lane_grid.ids[tuple(slice(a, b) for a, b in chunk.ranges)])
        rank_index = None
        lanes = sizes
        if self.n_ranks > 1:
            rank_index = np.arange(self.n_ranks).reshape((self.n_ranks,) + (1,) * (len(sizes) - 1))
        batch = Batch(lanes, ids, rank_index, 0, thread_numbers(self.program, len(sizes)), self, env)
        n = len(lanes)
        for slot in self._constant_tiles:
            env[slot] = env[slot].reshape((1,) * n + tuple(env[slot].shape))
        if chunk.env is not None:
            for slot, v in chunk.env:
                env[slot] = v
            return batch
        made: list[tuple[int, Value]] = []
        for slot, v in self.lane_grid.scalars:
            v = self._restrict(v, chunk, lanes)
            env[slot] = v
            made.append((slot, v))
        for instr in self.lane_grid.tiles:
            try:
                v = instr.fn(batch, *[env[a] for a in instr.args])
            except Exception as error:
                raise self._explain(error, instr.info, batch) from error
            env[instr.results[0]] = v
            made.append((instr.results[0], v))
        if self.lane_grid.keep and sum(_bulk(v) for _, v in made) < 1 << 18:
            chunk.env = made
        return batch

    def _restrict(self, v: Value, chunk: Chunk, lanes: tuple[int, ...]) -> Value:
        """A launch-invariant scalar of all lanes, for those of a chunk."""
        match v:
            case Ptr():
                return v.map(lambda part: self._restrict(part, chunk, lanes))
            case Affine() | Tensor():
                for axis, (start, stop) in enumerate(chunk.ranges):
                    v = cut(v, axis, start, stop)
                if type(v) is Affine:
                    out = Affine(v.constant, v.lane_strides, v.tile_strides, 0, 0, v.per_lane)
                    out.least, out.most = exact_bounds(out, lanes, ())
                    return out if out.least < out.most else out.least
        return v

    def _schedule(self) -> Status:
        batches = self.batches
        by_thread = self.program.by_thread
        while batches:
            epoch = write_epoch.count
            ready = [batch for batch in batches if batch.parked != epoch]
            if not ready:
                return "waiting"
            for batch in ready:
                batch.parked = -1
            eager = [batch for batch in ready if batch.spins < _PATIENCE]
            if not eager:
                for batch in ready:
                    batch.spins = 0
                return "yielded"
            lowest = min(batch.pc for batch in eager)
            same = [batch for batch in eager if batch.pc == lowest]
            if len(same) > 1 and any(batch.at for batch in same):  # inside an instruction: not at the block's start
                same = [next((batch for batch in same if not batch.at), same[0])]
            if len(same) > 1:
                merged = merge(same)
                batches[:] = [batch for batch in batches if batch not in same] + [merged]
                current = merged
            else:
                current = same[0]
            batches.remove(current)
            if by_thread and self._comes_early(current):
                current.parked = epoch
                batches.append(current)
                continue
            if by_thread and self.program.blocks[current.pc].meets:
                current = together(current)
            limit = min((batch.pc for batch in batches), default=len(self.program.blocks))
            batches.extend(self._run_batch(current, limit))
        return "done"

    def _comes_early(self, batch: Batch) -> bool:
        """Whether threads are at a block where all of their program meet, and some of it are still behind."""
        if batch.at or not self.program.blocks[batch.pc].meets or whole(batch):
            return False
        return shared(batch, [other for other in self.batches if other.pc < batch.pc or other.at])

    def _run_batch(self, batch: Batch, limit: int) -> list[Batch]:
        """Run ``batch`` until it ends, splits, parks, or reaches a block that is not below ``limit``."""
        blocks = self.program.blocks
        code = self._code
        block_lanes, several = self.block_lanes, self.n_ranks > 1
        env = batch.env
        info: OpInfo | None = None
        timed = self.profile is not None
        try:
            while True:
                block = blocks[batch.pc]
                todo = code[batch.pc]
                if batch.at:
                    todo, batch.at = todo[batch.at :], 0
                else:
                    for k in block.kills:
                        env[k] = None
                    if several:
                        for launch, lanes in programs_by_launch(batch).items():
                            block_lanes[launch][batch.pc] += lanes
                    else:
                        block_lanes[0][batch.pc] += programs_of(batch)
                if timed:
                    info = self._timed(batch, todo)
                else:
                    for run, info in todo:  # noqa: B007
                        run(env, batch)
                info = None
                out = self._terminate(batch, block)
                if out is not None:
                    return out
                if batch.pc >= limit or batch.parked >= 0:
                    return [batch]
        except Stuck as stuck:
            assert info is not None
            return self._suspend(batch, info, stuck)
        except (KernbenchError, RuntimeError, ValueError, TypeError, IndexError, ZeroDivisionError) as error:
            info, batch.doing = batch.doing or info, None
            if info is None:
                raise
            explained = self._explain(error, info, batch)
            if explained is error:
                raise
            try:
                raise explained from error
            finally:
                # else its traceback leads back to it, and one that is not shown keeps all that it saw in memory
                del explained

    def _suspend(self, batch: Batch, info: OpInfo, stuck: Stuck) -> list[Batch]:
        """Inside an instruction, some lanes wait for memory: park them there; those that got through go on."""
        at = next(k for k, (_, i) in enumerate(self._code[batch.pc]) if i is info)
        frame = stuck.frame
        through = (frame.pc.reshape(batch.size, -1) < 0).all(axis=1) if batch.size else np.zeros(0, dtype=bool)
        through |= (frame.pc.reshape(batch.size, -1) >= stuck.end).all(axis=1)
        if through.any():
            per_lane = frame.size // batch.size
            coordinates = np.unravel_index(np.arange(batch.size), batch.lanes) if batch.lanes else ()
            parts = []
            for keep, parked in ((through, False), (~through, True)):
                part = flat(batch, tuple(c[keep] for c in coordinates))
                part.pc, part.at = batch.pc, at
                part.suspended[info.index] = frame.select(keep.repeat(per_lane))
                if parked:
                    part.parked = write_epoch.count
                    part.watched = stuck.address
                parts.append(part)
            return parts
        batch.at = at
        batch.watched = stuck.address
        batch.suspended[info.index] = frame
        batch.parked = write_epoch.count
        return [batch]

    def _timed(self, batch: Batch, code: list[tuple[Runner, OpInfo]]) -> OpInfo | None:
        assert self.profile is not None
        info = None
        for run, info in code:
            start = time.perf_counter()
            run(batch.env, batch)
            entry = self.profile.setdefault(info.index, [0.0, 0])
            entry[0] += time.perf_counter() - start
            entry[1] += 1
        return info

    def _explain(self, error: Exception, info: OpInfo, batch: Batch) -> Exception:
        """The error to raise, with ``ranks``: the ranks whose lanes it concerns."""
        if isinstance(error, KernbenchError):
            error.ranks = error.ranks or tuple(batch.ranks())
            return error
        explained = KernbenchError(
            f"kernel {self.program.name}: {info.name} failed: {type(error).__name__}: {error}\n"
            f"  {batch.describe_lanes(None)}\n  at {info.loc}\n  {info.text}"
        )
        explained.ranks = tuple(batch.ranks())
        return explained

    # Control flow

    def _terminate(self, batch: Batch, block: BasicBlock) -> list[Batch] | None:
        """Follow the terminator; a list of batches if ``batch`` ended or split."""
        env = batch.env
        match block.term:
            case ForBack() as loop:
                moved = [(to, env[slot]) for to, slot in loop.moves]
                index, step = env[loop.iv], env[loop.step]
                plain = type(index) is int and type(step) is int
                env[loop.iv] = index + step if plain else _add_lanes(index, step, batch.lanes)
                for to, v in moved:
                    env[to] = v
                batch.pc = loop.head
                if self.wave is not None:
                    self.turns[batch.ids] += 1
                return None
            case ForHead() as loop:
                return self._enter(batch, loop)
            case Jump() as jump:
                self._jump(batch, jump)
                return None
            case Branch() as branch:
                cond = env[branch.cond]
                if type(cond) is Tensor:
                    return self._split(batch, cond.numpy(), branch.then, branch.other)
                self._jump(batch, branch.then if cond else branch.other)
                return None
        return []

    def _enter(self, batch: Batch, loop: ForHead) -> list[Batch] | None:
        """Into the body of a counting loop, or past it."""
        env = batch.env
        index, end, step = env[loop.iv], env[loop.upper], env[loop.step]
        if type(index) is int and type(end) is int:
            if loop.unsigned:
                index, end = index & 0xFFFFFFFFFFFFFFFF, end & 0xFFFFFFFFFFFFFFFF
            batch.pc = loop.body if index < end else loop.exit
            if batch.pc == loop.body and type(step) is int and step <= 0:
                raise _endless(self.program.name, loop, step)
            return None
        start, stop = _lanes_of(index, batch.lanes), _lanes_of(end, batch.lanes)
        if loop.unsigned:
            start, stop = start.view(np.uint64), stop.view(np.uint64)
        going = start < stop
        if (going & (_lanes_of(step, batch.lanes) <= 0)).any():
            raise _endless(self.program.name, loop, "of some programs")
        return self._split(batch, going, Jump(loop.body), Jump(loop.exit))

    def _jump(self, batch: Batch, jump: Jump) -> None:
        env = batch.env
        loop = jump.loop
        if loop is not None and loop.reads_memory:
            self._maybe_park(batch, jump)
        if jump.moves:
            moved = [(d, env[s]) for d, s in jump.moves]
            for d, v in moved:
                env[d] = v
        batch.pc = jump.target

    def _maybe_park(self, batch: Batch, jump: Jump) -> None:
        """A loop that reads memory came round without writing: if nothing it carries changed, it waits."""
        if batch.written:
            batch.written = False
            batch.spins = 0
            return
        carried = [batch.env[s] for _, s in jump.moves]
        before, batch.trace = batch.trace, (jump, carried)
        if not carried or (before is not None and before[0] is jump and all(map(_unchanged, before[1], carried))):
            batch.parked = write_epoch.count
        else:
            batch.spins += 1

    def _split(self, batch: Batch, mask: np.ndarray, then: Jump, other: Jump) -> list[Batch] | None:
        mask = squeeze(mask) if mask.ndim else mask
        if mask.size == 1:
            self._jump(batch, then if bool(mask.reshape(-1)[0]) else other)
            return None
        live = self.program.blocks[batch.pc].live_out
        varying = [k for k, n in enumerate(mask.shape) if n > 1]
        if len(varying) == 1:
            k = varying[0]
            line = mask.reshape(-1)
            yes, no = np.nonzero(line)[0], np.nonzero(~line)[0]
            parts = [select(batch, k, yes, live), select(batch, k, no, live)]
        else:
            which = np.nonzero(np.broadcast_to(mask, batch.lanes))
            rest = np.nonzero(~np.broadcast_to(mask, batch.lanes))
            parts = [flat(batch, which, live), flat(batch, rest, live)]
        for part, jump in zip(parts, (then, other), strict=True):
            part.spins = batch.spins
            self._jump(part, jump)
        return parts

    # Waiting

    def describe_wait(self) -> str:
        """Where the waiting lanes stand, for a deadlock report."""
        return describe_wait(self, self.batches)

    # Results
    def counts(self) -> Counts:
        """What the execution did so far, for all its launches together."""
        programs = self.programs * self.n_ranks if self.sampled is None else self.sampled
        return count(self, self.ready, self.block_lanes, programs)

    def counts_by_launch(self) -> list[Counts]:
        """What each launch did so far (bytes by line of the kernel are not separated)."""
        launches = range(self.n_ranks)
        return [count(self, self.ready, self.block_lanes, self.programs, launch) for launch in launches]


def _bulk(v: Value) -> int:
    if type(v) is Tensor:
        return v.numel()
    if type(v) is Ptr:
        return 0 if v.scattered is None else v.scattered.numel()
    return 0


def _middle_programs(lane_grid: LaneGrid, count: int, threads: int) -> Chunk:
    """A chunk of at most ``count`` neighbouring programs, for sampling, with all ``threads`` of each if they have lanes. Those
    in the middle of the grid do what the average does: the first ones of a causal attention do least, the last ones of a
    tensor have a masked tail."""
    ranges = [(0, threads)] if threads else []
    left = count
    for n in reversed(lane_grid.shape[:-1] if threads else lane_grid.shape):
        take = max(1, min(n, left))
        begin = (n - take) // 2
        ranges.append((begin, begin + take))
        left //= take
    return Chunk(tuple(reversed(ranges)))


def _endless(kernel: str, loop: ForHead, step: object) -> KernbenchError:
    """A counting loop is entered whose step does not lead to its end; compiled code compares ``index < end`` only."""
    return KernbenchError(
        f"kernel {kernel}: a loop counts up to its end, but its step, known only at run time, is not positive ({step}), so it "
        f"would not end\n  at {loop.loop.loc}\n  A loop that counts down needs a step that is a constant (tl.constexpr), or "
        f"count up and subtract."
    )


def _lanes_of(v: Any, lanes: tuple[int, ...]) -> np.ndarray:
    if type(v) is Tensor:
        return v.numpy().astype(np.int64)
    return lane_array(v, lanes)


def _add_lanes(iv: Any, step: Any, lanes: tuple[int, ...]) -> Any:
    if type(iv) is Tensor or type(step) is Tensor:
        return from_lane_array(_lanes_of(iv, lanes) + _lanes_of(step, lanes))
    return aff_add(iv, step)


def _unchanged(old: object, new: object) -> bool:
    if old is new:
        return True
    if type(old) is Tensor and type(new) is Tensor:
        return old.shape == new.shape and bool(torch.equal(old, new))
    if type(old) is Affine and type(new) is Affine and old.per_lane is not None and new.per_lane is not None:
        return (old.constant, old.lane_strides, old.tile_strides) == (
            new.constant,
            new.lane_strides,
            new.tile_strides,
        ) and np.array_equal(old.per_lane, new.per_lane)
    return same(old, new)


__all__ = ["Execution", "Launch", "Status"]
