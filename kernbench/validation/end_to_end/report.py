"""The table that ``kernbench validate --end-to-end`` prints and ``docs/accuracy.md`` holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kernbench.validation.end_to_end.left_out import left_out
from kernbench.validation.end_to_end.pairs import speedups
from kernbench.validation.end_to_end.published import GIB
from kernbench.validation.end_to_end.results import StepResult, groups
from kernbench.validation.end_to_end.summaries import changes, peaks, scores

_SHORT = {
    "H100 SXM 96GB HBM2e 2.4TB/s 500W (Grand Teton), 400 Gb/s RDMA per GPU": "H100 96GB 500W",
    "H100 80GB BF16": "H100",
}


def report(results: Sequence[StepResult]) -> str:
    """All of it."""
    folds = left_out(results)
    unseen = {**folds, "all": [each for fold in folds.values() for each in fold]}
    return "\n".join([
        *rows(results), "", *scores("step time", groups(results), 28), "", *scores("leaving out one source", unseen, 28), "",
        *peaks("reserved", results), "", *changes(speedups(results)),
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
