"""Speed-ups: rows that differ in one thing, and whether the models get their ratio right."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from kernbench.validation.end_to_end.published import Published
from kernbench.validation.end_to_end.results import StepResult

_TELLING = 0.02
"""Ratios of published figures that are closer to one than this say nothing about a sign."""


class Pair(NamedTuple):
    """Two rows that differ in one thing.

    Attributes:
        first, second: of the table.
        published, modelled: ratio of their tokens/s per GPU, the second's to the first's.
    """

    first: StepResult
    second: StepResult
    published: float
    modelled: float

    @property
    def error(self) -> float:
        """Of the ratio, as a share."""
        return self.modelled / self.published - 1.0

    @property
    def told(self) -> bool:
        """Whether the published figures differ by enough to have a sign."""
        return abs(self.published - 1.0) > _TELLING

    @property
    def right_sign(self) -> bool:
        """Whether the models say, too, which of the two is quicker."""
        return (self.modelled > 1.0) == (self.published > 1.0)


Key = Callable[[Published], tuple[Any, ...]]

# What is changed, and what has to be equal. Batches may differ: who has more memory or shorter sequences makes use of it.
_CHANGES: dict[str, tuple[Key, Key]] = {
    "compile off to on": (
        lambda row: (row.compiled,),
        lambda row: (row.source, row.model, row.gpu, row.gpus, row.seq, row.batch, row.dtype),
    ),
    "A100 to H100": (
        lambda row: (row.gpu.split(" ")[0],),
        lambda row: (row.source, row.model, row.gpus, row.seq, row.checkpointing),  # FSDP's precision differs in all of them
    ),
    "A100 of 40 GB to 80 GB": (
        lambda row: (row.gpu,),
        lambda row: (row.source, row.model, row.gpu.split(" ")[0], row.gpus, row.seq, row.checkpointing),
    ),
    "sequence twice as long": (
        lambda row: (row.seq,),
        lambda row: (row.source, row.model, row.gpu, row.gpus, row.checkpointing, row.dtype, row.compiled),
    ),
    "GPUs twice as many": (
        lambda row: (row.gpus,),
        lambda row: (row.source, row.model, row.gpu, row.seq, row.batch, row.checkpointing, row.dtype, row.compiled,
                     row.accumulate),
    ),
}  # fmt: skip
_DOUBLED = {"sequence twice as long": "seq", "GPUs twice as many": "gpus"}


def speedups(results: Sequence[StepResult]) -> dict[str, list[Pair]]:
    """Pairs of rows that were run, by what is changed."""
    ran = [result for result in results if result.seconds is not None]
    found: dict[str, list[Pair]] = {}
    for change, (changed, kept) in _CHANGES.items():
        alike: dict[tuple[object, ...], list[StepResult]] = defaultdict(list)
        for result in ran:
            alike[kept(result.row)].append(result)
        pairs = [
            _pair(first, second)
            for members in alike.values()
            for first, second in combinations(sorted(members, key=lambda each: changed(each.row)), 2)
            if changed(first.row) != changed(second.row) and _adjacent(change, first.row, second.row)
        ]
        if pairs:
            found[change] = pairs
    return found


def _adjacent(change: str, first: Published, second: Published) -> bool:
    name = _DOUBLED.get(change)
    return name is None or getattr(second, name) == 2 * getattr(first, name)


def _pair(first: StepResult, second: StepResult) -> Pair:
    return Pair(
        first, second, second.row.tokens_per_second / first.row.tokens_per_second,
        second.tokens_per_second / first.tokens_per_second,
    )  # fmt: skip
