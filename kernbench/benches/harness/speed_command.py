"""What the speed benches have in common: options, table, JSON, history."""

from __future__ import annotations

import functools
import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.table import Table

import kernbench
from kernbench.benches.harness import history
from kernbench.benches.harness.progress import ProgressBar
from kernbench.benches.harness.turns import REACHED, UNITS, Budget, Comparison, Estimate, Outcome, measure
from kernbench.benching import OUTPUT
from kernbench.output_files import write_file

F = TypeVar("F", bound=Callable[..., Any])

HEADINGS = ("figure", "side", "minimum", "median", "spread", "ours / side", "interval", "goal", "verdict", "rounds")


@dataclass(frozen=True)
class SpeedRun:
    """How a bench is to be run, as the command line says.

    Attributes:
        budget: of each figure.
        only: parts of the names of figures to measure; empty: all.
        json: file for the figures, if any.
        history: file that lines are added to; None: the tree's own.
        keep: whether the history is written.
    """

    budget: Budget = field(default_factory=Budget)
    only: tuple[str, ...] = ()
    json: Path | None = None
    history: Path | None = None
    keep: bool = True

    def run(self, bench: str, comparisons: Iterable[Comparison]) -> list[Outcome]:
        """Measure, print, keep."""
        every = list(comparisons)
        wanted = [each for each in every if not self.only or any(part in each.name for part in self.only)]
        if not wanted:
            names = ", ".join(repr(each.name) for each in every)
            raise click.UsageError(f"--only {' '.join(self.only)}: no figure has that in its name; there are {names}")
        found = []
        with ProgressBar(len(wanted), bench) as progress:
            for comparison in wanted:
                found.append(measure(comparison, self.budget))
                progress.advance()
        self.tell(bench, found)
        return found

    def tell(self, bench: str, outcomes: Sequence[Outcome]) -> None:
        """Print outcomes, write the JSON, add to the history."""
        report(bench, outcomes)
        self.keep_records([record(outcome) for outcome in outcomes], bench)

    def keep_records(self, records: Sequence[dict[str, object]], bench: str) -> None:
        """Write the JSON, add to the history."""
        if self.json is not None:
            write_file(self.json, json.dumps(records, indent=1) + "\n")
        if self.keep and (path := history.append(records, bench, path=self.history)) is not None:
            click.echo(f"# {len(records)} lines added to {path}")


def speed_options(function: F) -> F:
    """Decorate a click command: it gets a :class:`SpeedRun` as ``speed``."""
    options = (
        click.option("--only", multiple=True, metavar="TEXT", help="Figures with this in their names; may be repeated."),
        click.option(
            "--seconds", type=click.FloatRange(min=0), default=Budget.seconds, show_default=True,
            help="Wall seconds that a figure may take; four rounds are always made.",
        ),
        click.option(
            "--rounds", type=click.IntRange(min=1), default=Budget.rounds, show_default=True,
            help="Rounds at most.",
        ),
        click.option("--json", type=OUTPUT, metavar="FILE", help="Also write the figures to this file."),
        click.option("--history", type=OUTPUT, metavar="FILE", help="History.  [default: .benches/history.jsonl]"),
        click.option("--no-history", is_flag=True, help="Keep no history."),
    )  # fmt: skip

    @functools.wraps(function)
    def command(**values: Any) -> Any:
        own = {name: values.pop(name) for name in ("only", "json", "history")}
        budget = Budget(rounds=values.pop("rounds"), seconds=values.pop("seconds"))
        return function(speed=SpeedRun(budget, **own, keep=not values.pop("no_history")), **values)

    for option in reversed(options):
        command = option(command)
    return command  # type: ignore[return-value]


def record(outcome: Outcome) -> dict[str, Any]:
    """An outcome for JSON; values in the comparison's unit."""
    comparison, unit = outcome.comparison, UNITS[outcome.comparison.unit]
    ratios = {name: outcome.estimate(name) for name in outcome.samples if name != outcome.ours}
    return {
        "figure": comparison.name,
        "unit": comparison.unit,
        "ours": outcome.ours,
        "rounds": outcome.rounds,
        "sides": {
            name: {"minimum": each.minimum() / unit, "median": each.median / unit, "spread": each.spread}
            for name, each in outcome.samples.items()
        },
        "value": _numbers(outcome.estimate()),
        "ratios": {name: _numbers(found) for name, found in ratios.items()},
        "goals": outcome.goals(),
        "verdicts": outcome.verdicts(),
        "cannot": dict(outcome.cannot),
    }


def _numbers(estimate: Estimate | None) -> list[float] | None:
    """Value, lowest, highest; None where they are not all finite."""
    numbers = [] if estimate is None else [estimate.value, estimate.low, estimate.high]
    return numbers if numbers and all(map(math.isfinite, numbers)) else None


def report(bench: str, outcomes: Iterable[Outcome]) -> None:
    """Print the table: a row per side, ours first."""
    of = history.machine()
    title = f"{bench}: kernbench {kernbench.__version__}, {of['cores']} cores of {of['cpu']}, load {of['load']}"
    table = Table(*HEADINGS, title=title)
    for outcome in outcomes:
        for row in rows(outcome):
            table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 190).print(table)


def rows(outcome: Outcome) -> list[tuple[str, ...]]:
    """Cells of a figure's rows, in the order of :data:`HEADINGS`."""
    unit, verdicts, goals = outcome.comparison.unit, outcome.verdicts(), outcome.goals()
    found: list[tuple[str, ...]] = []
    for name in outcome.sides:
        mine = name == outcome.ours
        label = outcome.comparison.name if mine else ""
        if name in outcome.cannot:
            found.append((label, name, "cannot", "", "", "", outcome.cannot[name][:60], "", "", ""))
            continue
        samples = outcome.samples.get(name)
        if samples is None:  # ours could not be measured, and no other tree was
            continue
        other = "" if mine else name
        estimate = outcome.estimate(other)
        numbers = ("", "")
        if estimate is not None and (other or other in goals):
            numbers = ("" if mine else f"{estimate.value:.3g}", f"{estimate.low:.3g} to {estimate.high:.3g}")
        goal = f"<= {goals[other]:.3g}" + ("" if other else f" {unit}") if other in goals else ""
        found.append((
            label, name, f"{samples.minimum() / UNITS[unit]:.3g} {unit}", f"{samples.median / UNITS[unit]:.3g} {unit}",
            f"{samples.spread:.0%}", *numbers, goal, coloured(verdicts.get(other, "")), str(outcome.rounds) if mine else "",
        ))  # fmt: skip
    return found


def coloured(verdict: str) -> str:
    """For rich: what is reached in green, the rest that is decided in red."""
    if not verdict or verdict.startswith("undecided"):
        return verdict
    return f"[{'green' if verdict == REACHED else 'red'}]{verdict}[/]"
