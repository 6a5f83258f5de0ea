"""What went wrong in a run, as the data of pictures: deadlocks, mismatches, races, and allocations that had no room."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from kernbench.errors import CollectiveMismatchError, DeadlockError
from kernbench.html_report.memory import owners_of
from kernbench.memory.report import OutOfMemoryReport
from kernbench.order import FoundReport, MemoryAccess, Race
from kernbench.scheduler import find_cycle
from kernbench.simulation.matching.history import History
from kernbench.simulation.simulation import Simulation

MOST_ROWS = 64
"""Races, and ranks out of memory, of which there are pictures."""
_CALLS_BEFORE = 4
"""Collectives before the one that does not match that are shown, and as many of those behind it."""

Findings = list[dict[str, Any]]


def findings_of(simulation: Simulation, errors: Mapping[int, BaseException]) -> Findings:
    """The pictures of a run: each a mapping with its ``kind``; ``errors``: what ranks failed with."""
    history = simulation.matcher.history
    races = [] if simulation.order is None else simulation.order.races.found
    deadlock = next((each for each in errors.values() if isinstance(each, DeadlockError) and each.waits_for), None)
    mismatches = {
        str(each): each for each in errors.values() if isinstance(each, CollectiveMismatchError) and each.sides
    }
    reports = [report for each in errors.values() for report in _memory_reports(each)]
    return [
        *([] if deadlock is None else [_deadlock(deadlock)]),
        *(_mismatch(each, history) for each in mismatches.values()),
        *(_race(each) for each in races[:MOST_ROWS]),
        *(_out_of_memory(each) for each in reports[:MOST_ROWS]),
    ]


def _deadlock(error: DeadlockError) -> dict[str, object]:
    cycle = find_cycle(error.waits_for)
    return {
        "kind": "deadlock", "waits_for": list(error.waits_for.items()), "doing": list(error.doing.items()),
        "cycle": cycle,
    }  # fmt: skip


def _mismatch(error: CollectiveMismatchError, history: History) -> dict[str, object]:
    """Who called what: ``columns`` of ranks that called the same, with their calls by number."""
    alike: dict[tuple[Any, ...], list[int]] = {}
    for rank, words in error.sides.items():
        calls = {error.sequence: dict(words)}
        if error.sequence >= 0:
            for call in history.of(rank):
                if call.group.name == error.group and abs(call.sequence - error.sequence) <= _CALLS_BEFORE:
                    calls.setdefault(call.sequence, call.signature.as_words(call.location))
        key = tuple((number, tuple(words.items())) for number, words in sorted(calls.items()))
        alike.setdefault(key, []).append(rank)
    return {
        "kind": "mismatch", "group": error.group, "sequence": error.sequence,
        "differs": _differing(list(error.sides.values()), {"at"} if error.sequence >= 0 else {"at", "operation"}),
        "columns": [
            {"ranks": sorted(ranks), "calls": [(number, dict(words)) for number, words in key]}
            for key, ranks in sorted(alike.items(), key=lambda item: min(item[1]))
        ],
    }  # fmt: skip


def _differing(sides: Sequence[Mapping[str, str]], but: Collection[str]) -> list[str]:
    names = dict.fromkeys(name for words in sides for name in words if name not in but)
    return [name for name in names if len({words.get(name) for words in sides}) > 1]


def _race(found: FoundReport) -> dict[str, object]:
    """Two accesses on their strands; of a read of unwritten memory, the steps to it."""
    told = {**found.record, "kind": "race", "title": found.kind}
    if isinstance(found, Race):
        told["sides"] = [
            {
                "strand": str(access.strand), "does": does, "meets": access.n,
                "accesses": [_access(each) for each in side.accesses],
                "knew": None if side.knew is None else _access(side.knew),
            }
            for access, does, side in zip(
                (found.first, found.second), (found.first_does, found.second_does), found.sides, strict=True
            )
        ]  # fmt: skip
    return told


def _access(access: MemoryAccess) -> tuple[int, str, str]:
    return access.n, access.name, str(access.where)


def _memory_reports(error: BaseException) -> Iterator[OutOfMemoryReport]:
    """That of an error, or of the one that it was raised from."""
    cause: BaseException | None = error
    seen: set[int] = set()
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        report = getattr(cause, "memory_report", None)
        if isinstance(report, OutOfMemoryReport):
            yield report
            return
        cause = cause.__cause__ or cause.__context__


def _out_of_memory(report: OutOfMemoryReport) -> dict[str, object]:
    """What the memory was in use for (``parts``, which with ``room`` are ``whole``), and the request that had no room."""
    whole = report.capacity if report.limit is None else report.limit
    parts = list(report.composition.categories.items())
    parts.append(("reserved, not in use", report.reserved - report.allocated))
    if report.limit is None:
        parts += report.overhead.items()
    others = whole - report.room - sum(nbytes for _, nbytes in parts)
    if others > 0:
        parts.append(("others on the device", others))
    return {
        "kind": "out of memory", "rank": report.rank, "step": report.step + 1, "operation": report.operation,
        "place": str(report.place), "requested": report.requested, "wanted": report.wanted, "room": report.room,
        "missing": report.missing, "whole": whole, "limited": report.limit is not None, "allocated": report.allocated,
        "parts": [(name, nbytes) for name, nbytes in parts if nbytes > 0], **owners_of(report.composition),
        "remedies": list(report.remedies()),
    }  # fmt: skip
