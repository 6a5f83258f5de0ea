"""How much memory each rank needed, what for, and where in the program it needed most: what ``kernbench run`` prints."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kernbench.errors import message_of, notes_of
from kernbench.memory.ledger import CATEGORIES, Composition
from kernbench.memory.limits import format_size
from kernbench.plurals import counted
from kernbench.simulation.memory.process_memory import ProcessMemory
from kernbench.simulation.ranks.rank_spans import named
from kernbench.simulation.simulation import Simulation
from kernbench.trace.rank_tables import RankRow, table_lines

_SHORT = {
    "parameters": "params", "gradients": "grads", "optimizer state": "optimizer", "unsharded parameters": "unsharded",
    "communication buffers": "comm", "temporaries": "temp", "workspaces": "workspace",
}  # fmt: skip
_TABLE = ("allocated", "reserved", "device", "step")
"""Columns that every such table has. That of the device has units of its own: it is often a thousand times more."""


class MemorySource(Protocol):
    """A context, as far as this report reads it."""

    simulation: Simulation


@dataclass(frozen=True)
class RankMemory:
    """One rank's memory on one SIP. Three figures say how much, by these names in every output: **allocated**, **reserved**,
    and what the **device** must have.

    Attributes:
        rank: of the process.
        device: the SIP, as torch counts them.
        peak: allocated: most bytes in use at one time, ``torch.cuda.max_memory_allocated``.
        peak_reserved: reserved: most bytes that the allocator held, ``torch.cuda.max_memory_reserved``.
        limit: bytes that it could have had, after what is stated; None: no limit.
        step: step of the optimizer in which the peak was reached, counted from 0; it is shown from 1, as steps are.
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

    @property
    def on_device(self) -> int:
        """What the device must have for this process, bytes: what is reserved, and what is stated besides."""
        return self.peak_reserved + sum(self.overhead.values())


def memory_of_ranks(simulation: Simulation) -> list[RankMemory]:
    """The memory of the ranks of the last world, by rank; those that allocated nothing are left out."""
    used = [each for each in simulation.memories.of_last_world() if each.ledger.peak]
    return [_of_process(each) for each in sorted(used, key=lambda each: (each.host.rank or 0, each.index))]


def fullest_of_ranks(simulation: Simulation) -> dict[int, RankMemory]:
    """By rank, its memory on the SIP of which it needs most."""
    return {each.rank: each for each in sorted(memory_of_ranks(simulation), key=lambda each: each.on_device)}


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
    limits = _of_each(ranks, lambda each: each.limit, _limit, " on each rank")
    yield f"memory at each rank's peak, {name}; {limits}"
    rows = []
    for each in ranks:
        own = each.device == each.rank or len({one.rank for one in ranks}) == len(ranks)
        figures = (
            f"{each.peak / unit:.2f}",
            f"{each.peak_reserved / unit:.2f}",
            format_size(each.on_device),
            f"{each.step + 1}",
        )
        uses = (f"{each.composition.categories.get(what, 0) / unit:.2f}" for what in shown)
        place = f"{each.place or '(not known)'}{'' if own else f' (GPU {each.device})'}"
        rows.append(RankRow(each.rank, (*figures, place, *uses), (each.on_device, each.peak)))
    lines = [*table_lines(rows, "fullest", "emptiest")]
    whole, several = [line for line in lines if len(line.cells) > 1], [line for line in lines if len(line.cells) == 1]
    tables = (
        (
            (*_TABLE, "reached at"),
            [[*line.cells[:4], line.cells[4] + (line.mark and f"  {line.mark}")] for line in whole],
        ),
        ([_SHORT.get(each, each) for each in shown], [line.cells[5:] for line in whole]),
    )
    names = [line.name for line in whole]
    yield from _columns(names, *tables[0], last_is_text=True)
    yield from (f"{line.name:>6} {line.cells[0]}" for line in several)
    if shown:
        yield f"in use then, {name}"
        yield from _columns(names, *tables[1])
    retries, failures = sum(each.retries for each in ranks), sum(each.failures for each in ranks)
    if retries or failures:
        yield f"caches given back for want of memory: {counted(retries, 'time')}; out of memory: {counted(failures, 'time')}"
    if any(each.overhead for each in ranks):
        parts = _of_each(ranks, lambda each: tuple(each.overhead.items()), _stated, " per rank")
        yield f"device: reserved and, stated (docs/memory.md), {parts}"


def _columns(
    names: Sequence[str], heads: Sequence[str], rows: Sequence[Sequence[str]], *, last_is_text: bool = False
) -> Iterator[str]:
    """Lines of a table, each column as wide as it needs to be; the last one to the left if it is text."""
    table = [["rank", *heads], *([name, *row] for name, row in zip(names, rows, strict=True))]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    widths[0] = max(widths[0], 6)
    for row in table:
        cells = [f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)]
        if last_is_text:
            cells[-1] = f" {row[-1]}"
        yield " ".join(cells)


def _of_each(
    ranks: Sequence[RankMemory], what: Callable[[RankMemory], Hashable], words: Callable[[Any], str], of_all: str
) -> str:
    """Something about ranks in words: once if it is the same for all, else with the ranks that it is the same for."""
    alike: dict[Hashable, list[int]] = {}
    for each in ranks:
        alike.setdefault(what(each), []).append(each.rank)
    if len(alike) == 1:
        (only,) = alike
        return f"{words(only)}{of_all if only is not None else ''}"
    return "; ".join(f"{named(numbers)}: {words(each)}" for each, numbers in alike.items())


def _limit(nbytes: int | None) -> str:
    return "no limit" if nbytes is None else f"at most {format_size(nbytes)} reserved"


def _stated(parts: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{what} {format_size(nbytes)}" for what, nbytes in parts)


_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def notes_that_python_hides(errors: Iterable[BaseException], shown: str) -> Iterator[str]:
    """Reports on errors that were ``shown`` which their tracebacks do not have, each once: before Python 3.11 a traceback
    knows no notes, unless a package has taught it to (``exceptiongroup``, which pytest imports there)."""
    notes = (note for error in errors if message_of(error) in shown for note in notes_of(error))
    yield from dict.fromkeys(note for note in notes if note not in shown)
