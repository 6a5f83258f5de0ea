"""A program made ready to run: one Python function per instruction, and what each block counts as work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .batch import Batch
from .lift.program import Instr, OpInfo, Program
from .plan import Plan
from .tally import work

Runner = Callable[[list[Any], Batch], None]


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
class Ready:
    """What execution needs of a program beyond its blocks; made once."""

    code: list[list[tuple[Runner, OpInfo]]]
    flops: list[list[tuple[tuple[str, str], int]]]
    specials: list[int]
    arg_types: list[Any]
    plans: dict[Any, Plan] = field(default_factory=dict)


def ready(program: Program) -> Ready:
    made: Ready | None = getattr(program, "_ready", None)
    if made is not None:
        return made
    code, flops, specials = [], [], []
    for block in program.blocks:
        code.append([(_runner(i), i.info) for i in block.instrs])
        by_kind: dict[tuple[str, str], int] = {}
        special = 0
        for i in block.instrs:
            amount, key = work(i)
            if amount:
                by_kind[key] = by_kind.get(key, 0) + amount
                if key[1] == "special":
                    special += amount
        flops.append(list(by_kind.items()))
        specials.append(special)
    made = Ready(code, flops, specials, [ty for _, ty in program.args])
    program._ready = made  # type: ignore[attr-defined]
    return made
