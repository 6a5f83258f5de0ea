"""Counting: the sum of what an execution did."""

from __future__ import annotations

from .binding import Binding
from .counts import Counts
from .frontend.program import ForBack, ForHead
from .runners import Ready


def count(binding: Binding, ready: Ready, block_lanes: list[int], programs: int) -> Counts:
    """What the launches of ``binding`` did so far, together.

    Args:
        ready: their program.
        block_lanes: lanes that entered each block.
        programs: how many programs ran, of all ranks.
    """
    out = Counts(programs=programs, atomics=binding.atomics)
    for block, n, work in zip(binding.program.blocks, block_lanes, ready.work, strict=True):
        if not n:
            continue
        for info, amount, kind in work:
            out.flops[kind] = out.flops.get(kind, 0) + amount * n
            if kind[1] == "special":
                out.transcendentals += amount * n
            out.add_to_line(info.loc.user, 0, amount * n)
        if isinstance(block.term, ForBack):
            head = binding.program.blocks[block.term.head].term
            assert isinstance(head, ForHead)
            where = str(head.loop.loc)
            out.trips[where] = out.trips.get(where, 0) + n
    for traffic in binding.settled_traffic().values():
        out.bytes_read += traffic.read
        out.bytes_written += traffic.written
        out.unique_bytes_read += traffic.unique_read
        out.unique_bytes_written += traffic.unique_written
        name = traffic.name
        while name in out.by_tensor:
            name += "'"
        out.by_tensor[name] = traffic
    for index, nbytes in binding.bytes.items():
        out.add_to_line(binding.program.ops[index].loc.user, nbytes, 0)
    return out
