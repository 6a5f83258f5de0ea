"""Memory of ranks for a report: by category over time, and what was in use at the peak."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernbench.memory.ledger import CATEGORIES, Composition, Ledger, category_of
from kernbench.memory.modules import by_layer
from kernbench.plurals import counted
from kernbench.simulation.simulation import Simulation
from kernbench.trace.memory_report import RankMemory, memory_of_ranks

MOST_RANKS = 16
"""Ranks whose memory is shown: those with the highest peaks."""
MOST_MOMENTS = 1500
"""Moments of a rank that are kept: of those that lie close together, the one with the most in use."""
_MOST_LINES = 24
"""Lines and modules that are kept distinct."""


def memory_of(simulation: Simulation) -> list[dict[str, object]]:
    """The ranks with the highest peaks, by rank. Seconds and bytes."""
    used = [each for each in simulation.memories.of_last_world() if each.ledger.peak]
    used.sort(key=lambda each: (each.host.rank or 0, each.index))
    ranks = list(zip(memory_of_ranks(simulation), used, strict=True))
    highest = sorted(ranks, key=lambda each: (-each[0].peak, each[0].rank))[:MOST_RANKS]
    capacity = simulation.topology.device.hbm.size
    shown = sorted(highest, key=lambda each: (each[0].rank, each[0].device))
    return [_shown(memory, process.ledger, capacity) for memory, process in shown]


def _shown(memory: RankMemory, ledger: Ledger, capacity: int) -> dict[str, Any]:
    moments, categories = _over_time(ledger)
    composition = memory.composition
    return {
        "rank": memory.rank, "device": memory.device, "allocated": memory.peak, "reserved": memory.peak_reserved,
        "device_bytes": memory.on_device, "limit": memory.limit, "capacity": capacity, "stated": memory.overhead,
        "peak_time": memory.time, "peak_step": memory.step + 1, "peak_place": str(memory.place or "not known"),
        "moments": moments, "categories": categories,
        "at_peak": {
            "category": _largest(composition.categories), **owners_of(composition),
        },
    }  # fmt: skip


def owners_of(composition: Composition) -> dict[str, list[tuple[str, int]]]:
    """Bytes by module, and by line of the program, largest first."""
    places = {str(place or "too small to look for"): size for place, size in composition.places.items()}
    return {"module": _largest(by_layer(composition.owners, composition.total)), "line": _largest(places)}


def _largest(sizes: Mapping[Any, int]) -> list[tuple[str, int]]:
    rows = sorted(((str(name), size) for name, size in sizes.items()), key=lambda row: -row[1])
    rest = sum(size for _, size in rows[_MOST_LINES:])
    return [*rows[:_MOST_LINES], *([(counted(len(rows) - _MOST_LINES, "other"), rest)] if rest else [])]


def _over_time(ledger: Ledger) -> tuple[list[float], dict[str, list[int]]]:
    """Moments (s), and the bytes in use for each category from then on."""
    now = dict.fromkeys(CATEGORIES, 0)
    moments: list[float] = []
    states: list[tuple[int, ...]] = []
    for at, entry, change in ledger.changes():
        now[category_of(entry)] += change
        if moments and at == moments[-1]:
            states[-1] = max(states[-1], tuple(now.values()), key=sum)
        else:
            moments.append(at)
            states.append(tuple(now.values()))
    size = -(-len(moments) // MOST_MOMENTS) or 1
    kept = [
        max(range(first, min(first + size, len(moments))), key=lambda place: sum(states[place]))
        for first in range(0, len(moments), size)
    ]
    if moments and kept[-1] != len(moments) - 1:
        kept.append(len(moments) - 1)
    columns = {name: [states[place][number] for place in kept] for number, name in enumerate(CATEGORIES)}
    return [moments[place] for place in kept], {name: column for name, column in columns.items() if any(column)}
