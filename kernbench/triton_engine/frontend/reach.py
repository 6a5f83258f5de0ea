"""What a kernel may touch: the arguments that it may write to, and those in which it finds addresses of further memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .analysis import edges, members, uses
from .program import Instr, Program

_Flows = Iterable[tuple[Sequence[int], Sequence[int]]]


class Reach(NamedTuple):
    """What a kernel may touch, by the places of its arguments.

    Attributes:
        written: pointers and descriptors through which it may write; all where an address comes from nothing that is known.
        tables: pointers in whose memory there are addresses that it reads or writes.
        written_tables: of these, those of addresses that it may write.
    """

    written: frozenset[int]
    tables: frozenset[int]
    written_tables: frozenset[int]


def reach(program: Program) -> Reach:
    """An address is followed through whatever computes it, in any order, and through one load from the memory of another."""
    held = [0] * program.n_slots
    pointers = 0
    for place, (slot, ty) in enumerate(program.args):
        if ty.is_ptr or ty.elem == "desc":
            held[slot] |= 1 << place
            pointers |= 1 << place
    code = [instr for block in program.blocks for instr in block.instrs]
    instrs = [*program.invariant, *code]
    flows = [(uses(instr), instr.results) for instr in instrs if not instr.info.row.reads]
    moves: list[tuple[Sequence[int], Sequence[int]]] = [
        ((source,), (target,)) for block in program.blocks for _, pairs in edges(block) for target, source in pairs
    ]
    _spread(held, [*flows, *moves])
    loaded = [0] * program.n_slots
    for instr in instrs:
        if instr.info.row.reads:
            through = _union(held, instr.args)
            for slot in instr.results:
                loaded[slot] |= through
    loads = [(instr.args, instr.results) for instr in instrs if instr.info.row.reads]
    _spread(loaded, [*flows, *moves, *loads])
    written = tables = written_tables = 0
    for instr in instrs:
        row = instr.info.row
        through, behind = _union(held, instr.args), _behind(instr, held, loaded)
        tables |= behind
        if row.writes:
            written_tables |= behind
            written |= through or (0 if behind else pointers)
    return Reach(*(frozenset(members(each)) for each in (written, tables, written_tables)))


def _behind(instr: Instr, held: Sequence[int], loaded: Sequence[int]) -> int:
    """The arguments from whose memory the address comes that an instruction reads or writes; 0 if it is one of an argument."""
    row = instr.info.row
    if not (row.addressing and (row.reads or row.writes)) or held[instr.args[0]]:
        return 0
    return loaded[instr.args[0]]


def _union(bits: Sequence[int], slots: Iterable[int]) -> int:
    found = 0
    for slot in slots:
        found |= bits[slot]
    return found


def _spread(bits: list[int], flows: _Flows) -> None:
    """Have what is known of sources hold of targets, until nothing changes."""
    flows = list(flows)
    changed = True
    while changed:
        changed = False
        for sources, targets in flows:
            found = _union(bits, sources)
            for target in targets:
                if found & ~bits[target]:
                    bits[target] |= found
                    changed = True
