"""A program made ready to run: one Python function per instruction, and what each block counts as work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kernbench.cost.tile_products import TileProduct

from .batch import Batch
from .frontend.by_values import atomics, atomics_by_values, mark_uniform
from .frontend.products import tile_products, waiting_operands
from .frontend.program import Instr, OpInfo, Program
from .lane_grid import LaneGrid
from .native.run import fused
from .thread_lanes import per_program

Runner = Callable[[list[Any], Batch], None]


def _runner(instr: Instr, by_thread: bool) -> Runner:
    """An instruction as ``run(env, batch)``; the common arities avoid building argument lists."""
    fn, args, results, kills = instr.fn, instr.args, instr.results, instr.kills
    if by_thread:
        fn = per_program(instr.info, fn)
    if len(results) == 1:
        r = results[0]
        if len(args) == 1:
            a = args[0]

            def run1(env: list[Any], batch: Batch) -> None:
                env[r] = fn(batch, env[a])
                for k in kills:
                    env[k] = None

            return run1
        if len(args) == 2:
            a, c = args

            def run2(env: list[Any], batch: Batch) -> None:
                env[r] = fn(batch, env[a], env[c])
                for k in kills:
                    env[k] = None

            return run2

        def run_n(env: list[Any], batch: Batch) -> None:
            env[r] = fn(batch, *[env[i] for i in args])
            for k in kills:
                env[k] = None

        return run_n

    def run(env: list[Any], batch: Batch) -> None:
        out = fn(batch, *[env[i] for i in args])
        if results:
            for slot, v in zip(results, out, strict=True):
                env[slot] = v
        for k in kills:
            env[k] = None

    return run


@dataclass(eq=False)
class Ready:
    """What execution needs of a program beyond its blocks; made once.

    The lists have an entry per block: what to call for each instruction, and the floating-point operations of those that
    have some (amount, and data type and unit).
    """

    code: list[list[tuple[Runner, OpInfo]]]
    work: list[list[tuple[OpInfo, int, tuple[str, str]]]]
    #: ``code`` with native functions in place of runs of instructions.
    fused: list[list[tuple[Runner, OpInfo]]]
    #: Atomic updates, and those of them that go where values say.
    atomics: frozenset[int]
    by_values: frozenset[int]
    #: Matrix products of each block.
    products: list[list[TileProduct]]
    #: Bytes of operands that wait in shared memory: of products in loops, once per stage; of others.
    waiting: tuple[int, int]
    lane_grids: dict[Any, LaneGrid] = field(default_factory=dict)


def ready(program: Program) -> Ready:
    """What execution needs of a program; kept with it."""
    if program.ready is None:
        mark_uniform(program)
        code = [[(_runner(i, program.by_thread), i.info) for i in block.instrs] for block in program.blocks]
        program.ready = Ready(
            code,
            [
                [(i.info, *work) for i in block.instrs if (work := i.info.row.work_of(i.info))[0]]
                for block in program.blocks
            ],
            code
            if program.by_thread
            else [fused(block.instrs, plain, program.types) for block, plain in zip(program.blocks, code, strict=True)],
            atomics(program),
            atomics_by_values(program),
            tile_products(program),
            waiting_operands(program),
        )
    return program.ready
