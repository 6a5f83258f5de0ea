"""Which arguments of a kernel it may write to."""

from __future__ import annotations

from collections.abc import Sequence

from .analysis import edges, members, uses
from .program import Program


def written_arguments(program: Program) -> frozenset[int]:
    """The places of pointers and descriptors through which a kernel may write.

    An address is followed through whatever computes it, in any order. All pointers are taken to be written where that leads to
    none, as if the address was loaded.
    """
    held = [0] * program.n_slots
    pointers = 0
    for place, (slot, ty) in enumerate(program.args):
        if ty.is_ptr or ty.elem == "desc":
            held[slot] |= 1 << place
            pointers |= 1 << place
    code = [instr for block in program.blocks for instr in block.instrs]
    instrs = [*program.invariant, *code]
    flows: list[tuple[Sequence[int], Sequence[int]]]
    flows = [(uses(instr), instr.results) for instr in instrs if not instr.info.row.reads]
    flows += [
        ((source,), (target,)) for block in program.blocks for _, moves in edges(block) for target, source in moves
    ]
    changed = True
    while changed:
        changed = False
        for sources, targets in flows:
            found = 0
            for source in sources:
                found |= held[source]
            for target in targets:
                if found & ~held[target]:
                    held[target] |= found
                    changed = True
    written = 0
    for instr in instrs:
        if instr.info.row.writes:
            through = 0
            for slot in instr.args:
                through |= held[slot]
            written |= through or pointers
    return frozenset(members(written))
