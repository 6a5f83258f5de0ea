"""What the compiler knows of where atomic updates go: by values in memory, or all of a tile to one word."""

from __future__ import annotations

from .analysis import edges, uses
from .program import Instr, Program


def atomics(program: Program) -> frozenset[int]:
    """Numbers of the atomic updates."""
    return frozenset(info.index for info in program.ops if info.row.atomic)


def atomics_by_values(program: Program) -> frozenset[int]:
    """Numbers of those whose addresses, or masks, depend on what the program has read from memory: indices, tables."""
    told: set[int] = set()
    found: set[int] = set()
    before = -1
    while before != len(told) + len(found):
        before = len(told) + len(found)
        for block in program.blocks:
            for instr in block.instrs:
                if instr.info.row.atomic and any(slot in told for slot in (instr.args[0], *instr.args[2:])):
                    found.add(instr.info.index)
                if instr.info.row.reads or any(slot in told for slot in uses(instr)):
                    told.update(instr.results)
            for _, moves in edges(block):
                told.update(to for to, source in moves if source in told)
    return frozenset(found)


def mark_uniform(program: Program) -> None:
    """Note of each atomic update whether all elements of its tile are one word."""
    every = [*program.invariant, *(i for block in program.blocks for i in block.instrs)]
    made: dict[int, Instr] = {slot: i for i in every for slot in i.results}
    for block in program.blocks:
        for instr in block.instrs:
            if instr.info.row.atomic:
                instr.info.uniform = _one_word(instr.args[0], made)


def _one_word(slot: int, made: dict[int, Instr]) -> bool:
    while (instr := made.get(slot)) is not None and instr.info.row.recasts:
        slot = instr.args[0]
    return instr is not None and instr.info.row.repeats
