"""The table that ``kernbench validate --end-to-end`` prints and ``docs/accuracy.md`` holds."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from kernbench.end_to_end.left_out import left_out
from kernbench.end_to_end.pairs import speedups
from kernbench.end_to_end.published import GIB
from kernbench.end_to_end.results import StepResult, groups, score

_SHORT = {
    "H100 SXM 96GB HBM2e 2.4TB/s 500W (Grand Teton), 400 Gb/s RDMA per GPU": "H100 96GB 500W",
    "H100 80GB BF16": "H100",
}


def report(results: Sequence[StepResult]) -> str:
    """All of it."""
    return "\n".join([
        *rows(results), "", *pooled(results), "", *unseen(results), "", *memory(results), "", *pairs(results)
    ])  # fmt: skip


def rows(results: Sequence[StepResult]) -> Iterator[str]:
    """A line for each row."""
    width = max(len(what(result)) for result in results)
    head = f"{'row':5}{'what':{width}}  {'tokens/s per GPU':>17}  {'error':>6}  {'80 %':>14}  {'GiB':>11}  {'error':>6}"
    yield f"{head}  {'host':>6}"
    yield f"{'':5}{'':{width}}  {'model':>8} {'publ.':>8}  {'step':>6}  {'':14}  {'model':>5} {'publ.':>5}"
    for result in results:
        yield line(result, width)


def line(result: StepResult, width: int) -> str:
    """One row: what was modelled and published, errors of the step's time and of the memory, host seconds."""
    row = result.row
    begin = f"{row.id:5}{what(result):{width}}  "
    if result.seconds is None:
        return f"{begin}{'-':>8} {row.tokens_per_second:8,.0f}  not run: {result.problem}"
    low, high = result.interval
    per_second = row.tokens_per_second * row.seconds
    band = f"{per_second / high:,.0f}-{per_second / low:,.0f}"
    miss = " " if result.covered else "!"
    text = f"{begin}{result.tokens_per_second:8,.0f} {row.tokens_per_second:8,.0f}  {result.error:+6.1%}  {band:>13}{miss}  "
    if row.memory is None or result.memory_error is None:
        text += f"{'':19}"
    else:
        text += f"{result.reserved / GIB:5.1f} {row.memory / GIB:5.1f}  {result.memory_error:+6.1%}"
    return f"{text}  {result.host_seconds:4.0f} s"


def what(result: StepResult) -> str:
    """A row in one column."""
    row = result.row
    compiled = {True: " compiled", False: " eager", None: ""}[row.compiled]
    again = {"none": "", "full": " full", "selective": " selective"}[row.checkpointing]
    narrow = " float8" if "float8" in row.dtype else ""
    return f"{row.model}, {row.gpus} {_SHORT.get(row.gpu, row.gpu)}, {row.batch} x {row.seq}{again}{narrow}{compiled}"


def pooled(results: Sequence[StepResult]) -> Iterator[str]:
    """How wrong step times are, by group."""
    yield f"{'step time':28}{'rows':>6}{'median':>9}{'worst':>9}{'signed':>9}{'in 80 %':>9}"
    for title, members in groups(results).items():
        found = score(members)
        if found is not None:
            yield (
                f"{title:28}{found.rows:6}{found.median:9.1%}{found.worst:9.1%}{found.signed:+9.1%}{found.covered:9.0%}"
            )


def unseen(results: Sequence[StepResult]) -> Iterator[str]:
    """The same of each source without what it had a say in."""
    yield f"{'leaving out one source':28}{'rows':>6}{'median':>9}{'worst':>9}{'signed':>9}{'in 80 %':>9}"
    folds = left_out(results)
    for title, members in {**folds, "all": [each for fold in folds.values() for each in fold]}.items():
        found = score(members)
        if found is not None:
            yield (
                f"{title:28}{found.rows:6}{found.median:9.1%}{found.worst:9.1%}{found.signed:+9.1%}{found.covered:9.0%}"
            )


def memory(results: Sequence[StepResult]) -> Iterator[str]:
    """How wrong the memory is, where it is published."""
    errors = [
        result.memory_error for result in results if result.seconds is not None and result.memory_error is not None
    ]
    if errors:
        sizes = sorted(map(abs, errors))
        yield f"peak memory reserved, {len(sizes)} rows: median {statistics.median(sizes):.1%}, worst {sizes[-1]:.1%}"


def pairs(results: Sequence[StepResult]) -> Iterator[str]:
    """Speed-ups from changing one thing, by what is changed; nothing of rows that make no pair."""
    by_change = speedups(results)
    if by_change:
        yield f"{'tokens/s by changing one thing':34}{'pairs':>6}{'right sign':>12}{'median error':>14}{'worst':>9}"
    for change, found in by_change.items():
        sizes = [abs(pair.error) for pair in found]
        telling = [pair for pair in found if pair.told]
        right = sum(pair.right_sign for pair in telling)
        signs = f"{right} of {len(telling)}"
        yield f"{change:34}{len(found):6}{signs:>12}{statistics.median(sizes):14.1%}{max(sizes):9.1%}"
