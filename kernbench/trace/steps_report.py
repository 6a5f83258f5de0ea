"""The lines of a run's summary about its steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kernbench.plurals import counted
from kernbench.trace.step_times import TOLERANCE, Achieved, StepTime, StepTimes, mean_seconds, percentile

_MOST_ROWS = 16
_FEWEST = 4  # steps after the first of which percentiles say more than the table


def steps_report(
    times: StepTimes, figures: Achieved | None, *, extrapolate: int | None = None, wanted: bool = False
) -> Iterator[str]:
    """Yield a table of the steps, which of them are equal, what they achieve, and how long ``extrapolate`` of them take.

    ``wanted``: whether an option is about steps, so that there being none is worth a line.
    """
    if not times.steps:
        if times.stopped is None and (wanted or extrapolate is not None):
            vain = "nothing to count" if extrapolate is None else "nothing to extrapolate"
            yield f"no optimizer step was seen (kernbench.report_step marks others): {vain}"
        return
    yield f"{'step':>9} {'time':>12} {'compute':>9} {'comm':>9} {'idle':>9}"
    groups = times.equal()
    left_out = len(groups) - _MOST_ROWS
    for number, group in enumerate(groups):
        if left_out > 0 and _MOST_ROWS // 2 <= number < len(groups) - _MOST_ROWS // 2:
            if number == _MOST_ROWS // 2:
                yield f"{'...':>9}"
            continue
        yield f"{_numbers(group):>9} {duration(mean_seconds(group)):>12} {_shares(group)}"
    for group in groups:
        if len(group) > 1:
            yield f"steps {_numbers(group)} are equal (within {TOLERANCE:.1%}): {duration(mean_seconds(group))} each"
    later = times.steps[1:]
    if len(later) >= _FEWEST and len(groups) > 2:
        figures_of = (duration(percentile(later, share)) for share in (0.5, 0.9))
        yield "steps {}: p50 {}, p90 {}".format(_numbers(later), *figures_of)
    if times.stopped is not None:
        yield f"stopped after {counted(times.stopped, 'step')}"
    yield from times.notes
    if figures is not None:
        yield from _performance(figures, times.typical)
    if extrapolate is not None:
        yield _extrapolated(times, extrapolate)


def _performance(figures: Achieved, steps: Sequence[StepTime]) -> Iterator[str]:
    for name, count in (("tokens", figures.tokens), ("samples", figures.samples)):
        if count:
            rate = count / figures.seconds
            yield f"{count:,.6g} {name} per step: {_rate(rate)} {name}/s, {_rate(rate / figures.gpus)} {name}/s per GPU"
    flops = sum(figures.flops.values())
    if not flops:
        return
    which = f"step {_numbers(steps)}" if len(steps) == 1 else f"steps {_numbers(steps)}"
    line = f"{which}: model {scaled(flops)}FLOP per step, {scaled(figures.flops_per_gpu)}FLOP/s per GPU"
    yield f"{line}; MFU {100 * figures.mfu:.3g}%, HFU {100 * figures.hfu:.3g}% of {peak(figures)}"


def peak(figures: Achieved) -> str:
    """What the utilization is a share of, in words: the matrix peak of each format with FLOPs."""
    total = sum(figures.flops.values()) + sum(figures.recomputed.values())
    parts = []
    for fmt, rate in figures.peaks.items():
        share = (figures.flops.get(fmt, 0) + figures.recomputed.get(fmt, 0)) / total if total else 0.0
        of = "" if len(figures.peaks) == 1 else f", {share:.2g} of the FLOPs"
        parts.append(f"{scaled(rate)}FLOP/s ({fmt}{of})")
    return " and ".join(parts)


def _extrapolated(times: StepTimes, count: int) -> str:
    seconds = times.extrapolate(count)
    if seconds is None:
        return f"{counted(count, 'step')}: one step does not say what the next takes: let it make two at least"
    if count <= len(times.steps) or times.steady:
        return f"{counted(count, 'step')}: {duration(seconds)}"
    if len(times.typical) == 1:
        return (
            f"{counted(count, 'step')}: about {duration(seconds)}, if all to come are as step {times.typical[0].number}"
        )
    shortest, longest = (pick(step.seconds for step in times.typical) for pick in (min, max))
    return f"{counted(count, 'step')}: about {duration(seconds)}; they differ: {duration(shortest)} to {duration(longest)} each"


def _numbers(steps: Sequence[StepTime]) -> str:
    first, last = steps[0].number, steps[-1].number
    return f"{first}" if first == last else f"{first}-{last}"


def _shares(steps: Sequence[StepTime]) -> str:
    cells = []
    for name in ("compute", "communication", "idle"):
        known = [share for step in steps if (share := getattr(step, name)) is not None]
        cells.append(f"{sum(known) / len(known):9.1%}" if known else f"{'-':>9}")
    return " ".join(cells)


def duration(seconds: float) -> str:
    """``"41.23 ms"``: four digits or more in the unit that suits, up to days."""
    for limit, factor, unit in ((1e-3, 1e6, "us"), (1.0, 1e3, "ms"), (600.0, 1.0, "s"), (36e3, 1 / 60, "min")):
        if seconds < limit:
            return f"{seconds * factor:.4g} {unit}"
    return f"{seconds / 3600:.4g} h" if seconds < 864e3 else f"{seconds / 86400:.4g} days"


def scaled(count: float) -> str:
    """``"989.4 T"``: four digits, with the prefix of the unit that follows."""
    for limit, factor, prefix in (
        (1e3, 1.0, ""),
        (1e6, 1e3, "k"),
        (1e9, 1e6, "M"),
        (1e12, 1e9, "G"),
        (1e15, 1e12, "T"),
    ):
        if count < limit:
            return f"{count / factor:.4g} {prefix}"
    return f"{count / 1e15:.4g} P"


def _rate(per_second: float) -> str:
    return f"{per_second:,.4g}" if per_second < 1e4 else f"{per_second:,.0f}"
