"""Where the threads of a program meet: which accesses to memory have a barrier of all threads between them.

Threads of one program run on by themselves. Compiled code makes them wait for one another at a barrier, and wherever they give
one another values through shared memory: a reduction, a matrix product, an atomic whose result all of them use. Only accesses
between which they have not met can come in any order. A path on which they may have met counts as one on which they have.
"""

from __future__ import annotations

from .analysis import edges, term_uses, uses
from .program import BasicBlock, Program


def mark_meetings(program: Program) -> None:
    """Note of each access whether all threads may have met since the one before it (``OpInfo.met``)."""
    used = {slot for code in program.blocks for instr in code.instrs for slot in uses(instr)}
    used.update(slot for code in program.blocks for slot in term_uses(code))
    begin = [False] * len(program.blocks)
    todo = list(reversed(range(len(program.blocks))))
    while todo:
        code = program.blocks[todo.pop()]
        met = _through(code, begin[code.index], used)
        for target, _ in edges(code):
            if met and not begin[target]:
                begin[target] = True
                todo.append(target)


def _through(code: BasicBlock, met: bool, used: set[int]) -> bool:
    """Go through a block; gives whether threads may have met since its last access."""
    for at, instr in enumerate(code.instrs):
        info, row = instr.info, instr.info.row
        met = met or at in code.barriers
        if row.reads or row.writes:
            info.met = info.met or met
            met = row.exchanges or (row.atomic and not used.isdisjoint(instr.results))
        else:
            met = met or row.exchanges
    return met or len(code.instrs) in code.barriers
