"""The table of ``kernbench validate --end-to-end --parallel``: steps by generation and layout, and what changing one does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from kernbench.validation.end_to_end.pairs import Pair
from kernbench.validation.end_to_end.published import GIB, Published
from kernbench.validation.end_to_end.results import StepResult
from kernbench.validation.end_to_end.summaries import changes, peaks, scores

_KINDS = ("product", "attention", "memory", "communication")


def parallel_report(results: Sequence[StepResult]) -> str:
    """All of it."""
    by_change = {title: list(_pairs(results, *how)) for title, how in _CHANGES.items()}
    blocks = (
        rows(results), scores("step time", _groups(results), 32), peaks("allocated", results), changes(by_change),
    )  # fmt: skip
    return "\n\n".join("\n".join(lines) for lines in map(list, blocks) if lines)


def what(result: StepResult) -> str:
    """Model, GPUs and layout, in short."""
    row = result.row
    degrees = " ".join(f"{name}{degree}" for name, degree in row.layout.items() if degree > 1)
    return f"{row.model}, {row.gpus} {_gpu(row)}, {row.seq}, {degrees}, {row.accumulate} x {row.batch}"


def rows(results: Sequence[StepResult]) -> Iterator[str]:
    """A line for each: seconds of a step, their error, what the modelled ones are spent on, and the memory."""
    width = max((len(what(result)) for result in results), default=0)
    yield (
        f"{'row':5}{'what':{width}}  {'model s':>8} {'publ. s':>8}  {'error':>6}  {'80 %':>14}"
        f"  {'prod.':>5} {'att.':>5} {'mem.':>5} {'comm.':>5}  {'GiB':>6} {'error':>6}  {'host':>5}"
    )
    for result in results:
        begin = f"{result.row.id:5}{what(result):{width}}  "
        if result.seconds is None:
            yield f"{begin}{result.problem}"
            continue
        low, high = result.interval
        spent = {part.kind: part.seconds / result.seconds for part in result.parts}
        shares = " ".join(f"{spent.get(kind, 0.0):5.0%}" for kind in _KINDS)
        error = result.memory_error
        size = f"{result.allocated / GIB:6.1f} {'' if error is None else f'{error:+6.1%}':>6}"
        mark = " " if result.covered else "!"
        yield (
            f"{begin}{result.seconds:8.3f} {result.row.seconds:8.3f}  {result.error:+6.1%}  {f'{low:.3f}-{high:.3f}':>13}{mark}"
            f"  {shares}  {size}  {result.host_seconds:3.0f} s"
        )


def _gpu(row: Published) -> str:
    return row.gpu.replace("DGX ", "").split(" ")[0]


def _groups(results: Sequence[StepResult]) -> Mapping[str, list[StepResult]]:
    found: dict[str, list[StepResult]] = defaultdict(list)
    for result in results:
        row = result.row
        found["all"].append(result)
        found[_gpu(row)].append(result)
        found[f"{_gpu(row)}, {row.dtype}"].append(result)
        spread = [name for name in ("PP", "CP") if row.layout[name] > 1]
        layout = ", ".join(f"{name} {row.layout[name]}" for name in ("TP", *spread))
        found[f"{_gpu(row)}, {layout}"].append(result)
    return found


Key = Callable[[Published], Any]


def _kept(*without: str) -> Key:
    """All of a row's shape but for some degrees and what follows from them."""
    return lambda row: (
        row.model, row.gpus, _gpu(row), row.seq, row.dtype, row.accumulate,
        *(degree for name, degree in row.layout.items() if name not in without),
    )  # fmt: skip


_CHANGES: Mapping[str, tuple[Key, Key]] = {
    "TP twice as much instead of DP": (lambda row: row.layout["TP"], _kept("TP", "DP")),
    "PP 2 instead of TP 2": (lambda row: (row.layout["PP"], -row.layout["TP"]), _kept("TP", "PP")),
    "TP 2 instead of CP": (lambda row: -row.layout["CP"], _kept("TP", "CP")),
    "sequence four times as long": (lambda row: row.seq, lambda row: (row.model, row.gpus, tuple(row.layout.values()))),
    "microbatches twice as many": (
        lambda row: row.accumulate, lambda row: (row.model, row.gpus, row.seq, row.dtype, tuple(row.layout.values())),
    ),
    "GPUs eight times as many": (
        lambda row: row.gpus, lambda row: (row.model, row.seq, row.dtype, row.batch, row.layout["TP"], row.layout["PP"]),
    ),
}  # fmt: skip


def _pairs(results: Sequence[StepResult], changed: Key, kept: Key) -> Iterator[Pair]:
    alike: dict[object, list[StepResult]] = defaultdict(list)
    for result in results:
        if result.seconds is not None:
            alike[kept(result.row)].append(result)
    for members in alike.values():
        for first, second in pairwise(sorted(members, key=lambda each: changed(each.row))):
            if changed(first.row) != changed(second.row):
                yield Pair(
                    first, second, second.row.tokens_per_second / first.row.tokens_per_second,
                    second.tokens_per_second / first.tokens_per_second,
                )  # fmt: skip
