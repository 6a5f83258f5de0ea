"""The lines of a run's summary about the requests of a serving engine."""

from __future__ import annotations

from collections.abc import Iterator

from kernbench.plurals import counted
from kernbench.trace.serving_figures import MEASURES, ServingResult
from kernbench.trace.steps_report import duration

NAMES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "latency": "latency"}


def serving_report(result: ServingResult | None) -> Iterator[str]:
    """Yield a table of latencies, rates, what the engine's steps and cache were used for, and goodput; nothing for None."""
    if result is None:
        return
    left = "" if result.ended == result.requests else f", of which {result.ended} ended"
    yield (
        f"{counted(result.requests, 'request')}{left}: {result.prompt_tokens:,} tokens of prompts, "
        f"{result.generated_tokens:,} generated, in {duration(result.seconds)}"
    )
    yield f"{'':>9} {'mean':>12} {'p50':>12} {'p90':>12} {'p99':>12} {'most':>12}"
    for name in MEASURES:
        found = getattr(result, name)
        if found is not None:
            cells = (found.mean, found.p50, found.p90, found.p99, found.most)
            yield f"{NAMES[name]:>9} " + " ".join(f"{duration(each):>12}" for each in cells)
    yield (
        f"{_rate(result.requests_per_second)} requests/s, {_rate(result.generated_tokens_per_second)} generated tokens/s, "
        f"{_rate(result.generated_tokens_per_second_per_gpu)} per GPU, {_rate(result.tokens_per_second)} tokens/s in all"
    )
    if result.steps:
        preempted = f", {result.preemptions} preemptions" if result.preemptions else ""
        cache = f"; cache: at most {result.most_blocks_used:,} of {result.blocks:,} blocks" if result.blocks else ""
        yield (
            f"{counted(result.steps, 'step')} of {result.prefill_tokens_per_step:.4g} prefill and "
            f"{result.decode_tokens_per_step:.4g} decode tokens on average{preempted}{cache}"
        )
    if result.goodput is not None:
        limits = ", ".join(f"{NAMES[name]} {duration(limit)}" for name, limit in result.goodput.limits.items())
        yield (
            f"goodput within {limits}: {counted(result.goodput.requests, 'request')} ({result.goodput.share:.0%}), "
            f"{_rate(result.goodput.requests_per_second)} requests/s"
        )


def _rate(per_second: float) -> str:
    return f"{per_second:,.4g}" if per_second < 1e4 else f"{per_second:,.0f}"
