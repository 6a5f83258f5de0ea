"""Lines that sum up rows of published steps: how wrong times and memory are, and what changing one thing does."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from kernbench.validation.end_to_end.pairs import Pair
from kernbench.validation.end_to_end.results import StepResult, score


def scores(title: str, by_group: Mapping[str, Sequence[StepResult]], width: int) -> Iterator[str]:
    """How wrong step times are, by group, whose names have ``width`` columns."""
    yield f"{title:{width}}{'rows':>6}{'median':>9}{'worst':>9}{'signed':>9}{'in 80 %':>9}"
    for name, members in by_group.items():
        found = score(members)
        if found is not None:
            figures = f"{found.rows:6}{found.median:9.1%}{found.worst:9.1%}{found.signed:+9.1%}{found.covered:9.0%}"
            yield f"{name:{width}}{figures}"


def peaks(kind: str, results: Sequence[StepResult]) -> Iterator[str]:
    """How wrong the peak is of the memory that is allocated or reserved (``kind``), where it is published."""
    sizes = sorted(
        abs(result.memory_error) for result in results if result.seconds is not None and result.memory_error is not None
    )
    if sizes:
        yield f"peak memory {kind}, {len(sizes)} rows: median {statistics.median(sizes):.1%}, worst {sizes[-1]:.1%}"


def changes(by_change: Mapping[str, Sequence[Pair]]) -> Iterator[str]:
    """Speed-ups from changing one thing, by what is changed; nothing of rows that make no pair."""
    if any(by_change.values()):
        yield f"{'tokens/s by changing one thing':34}{'pairs':>6}{'right sign':>12}{'median error':>14}{'worst':>9}"
    for change, found in by_change.items():
        if found:
            sizes = [abs(pair.error) for pair in found]
            telling = [pair for pair in found if pair.told]
            signs = f"{sum(pair.right_sign for pair in telling)} of {len(telling)}"
            yield f"{change:34}{len(found):6}{signs:>12}{statistics.median(sizes):14.1%}{max(sizes):9.1%}"
