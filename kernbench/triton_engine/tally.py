"""Counting: the work of an instruction, and the sum over an execution."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .counts import Counts
from .lift.program import ForBack, ForHead, Instr
from .ops.registry import lookup

if TYPE_CHECKING:
    from .machine import Execution


def work(instr: Instr) -> tuple[int, tuple[str, str]]:
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


def count(x: Execution) -> Counts:
    """What the execution did so far, for all its launches together."""
    out = Counts(programs=x.programs * x.n_ranks if x.sampled is None else x.sampled)
    for index, n in enumerate(x.block_lanes):
        if not n:
            continue
        for key, amount in x.ready.flops[index]:
            out.flops[key] = out.flops.get(key, 0) + amount * n
        out.transcendentals += x.ready.specials[index] * n
        term = x.program.blocks[index].term
        if isinstance(term, ForBack):
            head = x.program.blocks[term.head].term
            assert isinstance(head, ForHead)
            where = str(head.loop.loc)
            out.trips[where] = out.trips.get(where, 0) + n
    x.settle_traffic()
    for t in x.traffic.values():
        out.bytes_read += t.read
        out.bytes_written += t.written
        out.unique_bytes_read += t.unique_read
        out.unique_bytes_written += t.unique_written
        name = t.name
        while name in out.by_tensor:
            name += "'"
        out.by_tensor[name] = t
    out.atomics = x.atomics
    for index, nbytes in x.bytes.items():
        info = x.program.ops[index]
        where = f"{info.loc.user.file}:{info.loc.user.line}"
        had = out.by_line.get(where, (0, 0))
        out.by_line[where] = (had[0] + nbytes, had[1])
    for block in x.program.blocks:
        n = x.block_lanes[block.index]
        for instr in block.instrs:
            amount, _ = work(instr) if n else (0, None)
            if amount:
                user = instr.info.loc.user
                where = f"{user.file}:{user.line}"
                had = out.by_line.get(where, (0, 0))
                out.by_line[where] = (had[0], had[1] + amount * n)
    return out
