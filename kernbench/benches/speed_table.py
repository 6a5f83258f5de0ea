"""The figures of docs/speed.md: what has a goal beside torch's own ways, measured in one run.

    python -m kernbench.benches.speed_table [--markdown FILE] [--json FILE]

A choice from the other speed benches, and nothing of its own. Take the machine for oneself if possible; a busy one leaves more
undecided.
"""

from __future__ import annotations

from pathlib import Path

import click

from kernbench.benches import distributed_speed, runtime_speed, triton_speed
from kernbench.benches.harness.speed_command import SpeedRun, speed_options
from kernbench.benches.harness.turns import UNITS, Comparison, Outcome
from kernbench.benching import OUTPUT
from kernbench.output_files import write_file

NAME = "speed_table"
CHOSEN = (
    "start to first all_reduce", "all_reduce 1 KiB", "added to a torch operation", "added on a GPU",
    "hollow operation", "DTensor training step", "switch of",
    "gemm fp16 512, tiles", "in one batch", "softmax", "layer norm", "dropout", "grouped gemm", "persistent gemm",
    "warm launch",
)  # fmt: skip
"""What the names of the figures begin with, or have in them."""


def figures() -> list[Comparison]:
    """In the order of the table."""
    every = [*distributed_speed.figures(), *runtime_speed.figures(), *triton_speed.figures()]
    return [each for each in every if any(part in each.name for part in CHOSEN)]


def markdown(outcomes: list[Outcome]) -> str:
    """A table with a row per goal."""
    lines = [
        "| figure | ours | beside | ratio | interval | goal | |",
        "|---|---|---|---|---|---|---|",
    ]
    for outcome in outcomes:
        unit = outcome.comparison.unit
        for other, said in outcome.verdicts().items():
            estimate, samples = outcome.estimate(other), outcome.samples
            if estimate is None:
                continue
            value = f"{_short(samples[outcome.ours].minimum() / UNITS[unit])} {unit}"
            beside = f"{other}, {_short(samples[other].minimum() / UNITS[unit])} {unit}" if other else ""
            ratio = _short(estimate.value) if other else ""
            interval = f"{_short(estimate.low)} to {_short(estimate.high)}"
            lines.append(
                f"| {outcome.comparison.name} | {value} | {beside} | {ratio} | {interval} "
                f"| {outcome.goals()[other]:.3g}{'' if other else ' ' + unit} | {said} |"
            )
    return "\n".join(lines) + "\n"


def _short(value: float) -> str:
    """Three digits, without an exponent up to a million."""
    return f"{float(f'{value:.3g}'):g}"


def run(ctx: object = None, speed: SpeedRun | None = None) -> list[Outcome]:
    """Measure and print. ``ctx`` is not used: every measurement opens a simulation of its own."""
    return (speed or SpeedRun()).run(NAME, figures())


@click.command(name=NAME, help=__doc__)
@click.option("--markdown", "page", type=OUTPUT, metavar="FILE", help="Also write a Markdown table.")
@speed_options
def command(speed: SpeedRun, page: Path | None) -> None:
    """Measure and print."""
    found = run(speed=speed)
    if page is not None:
        write_file(page, markdown(found))


if __name__ == "__main__":
    command()
