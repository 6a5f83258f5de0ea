"""How much memory each rank needed, what for, and where in the program it needed most: what ``kernbench run`` prints."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kernbench.memory.ledger import CATEGORIES, Composition
from kernbench.memory.limits import format_size
from kernbench.simulation.process_memory import ProcessMemory
from kernbench.simulation.simulation import Simulation

_SHORT = {
    "parameters": "params", "gradients": "grads", "optimizer state": "optimizer", "unsharded parameters": "unsharded",
    "communication buffers": "comm", "temporaries": "temp",
}  # fmt: skip
_MOST = 16
"""Ranks that a table has; of more, the first and the last."""


class MemorySource(Protocol):
    """A context, as far as this is told of it."""

    simulation: Simulation


@dataclass(frozen=True)
class RankMemory:
    """One rank's memory on one SIP.

    Attributes:
        rank: of the process.
        device: the SIP, as torch counts them.
        peak: most bytes in use at one time.
        peak_reserved: most bytes that the allocator held.
        limit: bytes that it could have had, after what is stated; None: no limit.
        step: step of the optimizer in which the peak was reached, counted from 0.
        time: when, s.
        place: line of the program whose allocation reached it.
        composition: what was in use for what then.
        overhead: bytes besides, stated, by what they are.
        retries, failures: how often the cache had to be given back, and memory did not suffice nevertheless.
    """

    rank: int
    device: int
    peak: int
    peak_reserved: int
    limit: int | None
    step: int
    time: float
    place: Any
    composition: Composition
    overhead: dict[str, int]
    retries: int
    failures: int


def memory_of_ranks(simulation: Simulation) -> list[RankMemory]:
    """The memory of the ranks of the last world, by rank; those that allocated nothing are left out."""
    used = [each for each in simulation.memories.of_last_world() if each.ledger.peak]
    return [_of_process(each) for each in sorted(used, key=lambda each: (each.host.rank or 0, each.index))]


def _of_process(memory: ProcessMemory) -> RankMemory:
    memory.claim_all()
    ledger, counters = memory.ledger, memory.allocator.statistics.counters
    return RankMemory(
        rank=memory.host.rank or 0, device=memory.index, peak=ledger.peak, peak_reserved=memory.allocator.peak_reserved,
        limit=memory.room, step=ledger.peak_step, time=ledger.peak_time, place=ledger.peak_place,
        composition=Composition.of(ledger.at_peak()), overhead=dict(memory.overhead.parts),
        retries=counters["num_alloc_retries"], failures=counters["num_ooms"],
    )  # fmt: skip


def memory_lines(source: MemorySource) -> Iterator[str]:
    """The report, line by line; nothing if no rank has used a GPU."""
    ranks = memory_of_ranks(source.simulation)
    if not ranks:
        return
    most = max(each.peak_reserved for each in ranks)
    unit, name = next((unit, name) for unit, name in _UNITS if most >= 10 * unit or unit == 1 << 10)
    shown = [name for name in CATEGORIES if any(each.composition.categories.get(name) for each in ranks)]
    limits = {each.limit for each in ranks}
    capacity = ", ".join(
        sorted("no limit" if limit is None else f"at most {format_size(limit)} each" for limit in limits)
    )
    yield f"memory at each rank's peak, {name}; {capacity}"
    heads = ("peak", "reserved", *(_SHORT.get(each, each) for each in shown))
    yield f"{'rank':>6} " + " ".join(f"{head:>10}" for head in heads) + "  step  reached at"
    for each in _some(ranks):
        if each is None:
            yield f"{'...':>6}"
            continue
        numbers = (each.peak, each.peak_reserved, *(each.composition.categories.get(what, 0) for what in shown))
        cells = " ".join(f"{number / unit:10.2f}" for number in numbers)
        device = (
            ""
            if each.device == each.rank or len({one.rank for one in ranks}) == len(ranks)
            else f" (GPU {each.device})"
        )
        yield f"{each.rank:>6} {cells} {each.step:>5}  {each.place or '(not known)'}{device}"
    retries, failures = sum(each.retries for each in ranks), sum(each.failures for each in ranks)
    if retries or failures:
        yield f"caches given back for want of memory: {retries} times; out of memory: {failures} times"
    first = ranks[0].overhead
    if first:
        parts = ", ".join(f"{what} {format_size(nbytes)}" for what, nbytes in first.items())
        yield f"besides, stated per rank (docs/memory.md): {parts}"


_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def _some(ranks: Sequence[RankMemory]) -> Sequence[RankMemory | None]:
    return ranks if len(ranks) <= _MOST else [*ranks[: _MOST // 2], None, *ranks[-_MOST // 2 :]]


def notes_that_python_hides(errors: Iterable[BaseException]) -> Iterator[str]:
    """Reports on errors that a traceback does not show: before Python 3.11 it knows no notes."""
    if sys.version_info < (3, 11):
        for error in errors:
            yield from getattr(error, "__notes__", ())
