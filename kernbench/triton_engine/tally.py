"""Counting: the sum of what an execution did."""

from __future__ import annotations

from collections.abc import Sequence

from .binding import Binding
from .counts import Counts, TensorTraffic
from .frontend.program import ForBack, ForHead
from .runners import Ready


def count(
    binding: Binding, ready: Ready, block_lanes: Sequence[Sequence[int]], programs: int, only: int | None = None
) -> Counts:
    """What the launches of ``binding`` did so far, together, or ``only`` the one of that number, without its lines.

    Args:
        ready: their program.
        block_lanes: lanes of each launch that entered each block.
        programs: how many programs ran, of those launches.
    """
    launches = range(binding.n_ranks) if only is None else (only,)
    out = Counts(programs=programs, atomics=sum(binding.atomics[launch] for launch in launches))
    entered = [sum(lanes) for lanes in zip(*(block_lanes[launch] for launch in launches), strict=True)]
    for block, n, work in zip(binding.program.blocks, entered, ready.work, strict=True):
        if not n:
            continue
        for info, amount, kind in work:
            out.flops[kind] = out.flops.get(kind, 0) + amount * n
            if kind[1] == "special":
                out.transcendentals += amount * n
            if only is None:
                out.add_to_line(info.loc.user, 0, amount * n)
        for product in ready.products[block.index]:
            out.products[product] = out.products.get(product, 0) + n
        if isinstance(block.term, ForBack):
            head = binding.program.blocks[block.term.head].term
            assert isinstance(head, ForHead)
            where = str(head.loop.loc)
            out.trips[where] = out.trips.get(where, 0) + n
    if out.products:
        out.waiting = ready.waiting
    for launch in launches:
        updates = binding.updates[launch]
        found = None if updates is None else updates.contention(binding.programs / max(programs / len(launches), 1))
        if found is not None:
            out.contention = found if out.contention is None else out.contention.beside(found)
    by_base: dict[int, TensorTraffic] = {}
    moved = binding.traffic()
    for launch in launches:
        for base, traffic in moved[launch].items():
            by_base[base] = traffic if base not in by_base else by_base[base].beside(traffic)
    for traffic in by_base.values():
        out.bytes_read += traffic.read
        out.bytes_written += traffic.written
        out.unique_bytes_read += traffic.unique_read
        out.unique_bytes_written += traffic.unique_written
        name = traffic.name
        while name in out.by_tensor:
            name += "'"
        out.by_tensor[name] = traffic
    for index, nbytes in {} if only is not None else binding.bytes.items():
        out.add_to_line(binding.program.ops[index].loc.user, nbytes, 0)
    return out
