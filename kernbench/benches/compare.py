"""What a change makes faster or slower: two trees, measured in turns by the same benches.

    python -m kernbench.benches.compare main HEAD
    python -m kernbench.benches.compare v0.2.0 . runtime_speed triton_speed --only gemm

OLD and NEW are revisions of this repository, or folders of trees. The benches are those of the tree that this is run from; of
the two trees they measure ``kernbench`` and ``configs``. Each tree has a process of its own, and the processes take turns. A
figure has changed where it is further from the other tree's than the spread, at two looks in succession; what a tree cannot run
is said. Exit code 1 if something is slower.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from kernbench.benches.harness import history
from kernbench.benches.harness.speed_command import SpeedRun, record, speed_options
from kernbench.benches.harness.turn_worker import TurnWorker
from kernbench.benches.harness.turns import MISSED, REACHED, UNITS, Comparison, Outcome, Side, measure
from kernbench.errors import ConfigError

BENCHES = ("runtime_speed", "distributed_speed", "triton_speed", "order_cost", "tp_speed", "cost_speed")
SAID = {REACHED: "faster", MISSED: "slower"}


@contextmanager
def assembled(tree: str, root: Path = history.ROOT) -> Iterator[Path]:
    """A folder with the package of ``tree``, but the benches of this one; ConfigError if there is no such tree."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kernbench-compare-")))
        source = Path(tree).resolve()
        if not source.is_dir():
            source = folder / "tree"
            stack.callback(_git, root, "worktree", "remove", "--force", str(source))
            done = _git(root, "worktree", "add", "--detach", str(source), tree)
            if done.returncode:
                raise ConfigError(f"{tree}: neither a folder nor a revision of {root}: {done.stderr.strip()}")
        if not (source / "kernbench" / "__init__.py").exists():
            raise ConfigError(f"{tree}: there is no package kernbench in {source}")
        room = folder / "room"
        (room / "kernbench").mkdir(parents=True)
        (room / "configs").symlink_to(source / "configs", target_is_directory=True)
        parts = {path.name: path for path in (source / "kernbench").iterdir()}
        for name, part in (parts | {"benches": root / "kernbench" / "benches"}).items():
            (room / "kernbench" / name).symlink_to(part, target_is_directory=part.is_dir())
        yield room


def _git(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True)


def compared(bench: str, old: Path, new: Path, speed: SpeedRun) -> list[Outcome]:
    """Every figure of a bench that both trees can run."""
    budget = replace(speed.budget, looks=2)
    found = []
    with TurnWorker(bench, old) as before, TurnWorker(bench, new) as after:
        for name, unit in after.figures().items():
            if not speed.only or any(part in name for part in speed.only):

                def sides(name: str = name) -> dict[str, Side]:
                    return {"new": after.ours(name), "old": before.ours(name)}

                found.append(measure(Comparison(name, unit, sides, {"old": 1.0}), budget))
    return found


def rows(outcome: Outcome) -> tuple[str, ...]:
    """Cells of a figure: name, old, new, ratio, interval, what is said, rounds."""
    unit = outcome.comparison.unit
    values = [
        f"{outcome.samples[side].minimum() / UNITS[unit]:.3g} {unit}" if side in outcome.samples else "cannot"
        for side in ("old", "new")
    ]
    estimate = outcome.estimate("old")
    if estimate is None:
        return outcome.comparison.name, *values, "", "", "; ".join(outcome.cannot.values()), ""
    said = outcome.verdicts()["old"]
    return (
        outcome.comparison.name, *values, f"{estimate.value:.2f}", f"{estimate.low:.2f} to {estimate.high:.2f}",
        SAID.get(said, "no difference seen (spread)"), str(outcome.rounds),
    )  # fmt: skip


@click.command(help=__doc__)
@click.argument("old")
@click.argument("new")
@click.argument("benches", nargs=-1, type=click.Choice(BENCHES))
@speed_options
@click.pass_context
def main(context: click.Context, speed: SpeedRun, old: str, new: str, benches: tuple[str, ...]) -> None:
    """Measure, print, keep."""
    every: list[Outcome] = []
    try:
        with assembled(old) as before, assembled(new) as after:
            for bench in benches or BENCHES:
                table = Table(
                    "figure", "old", "new", "new / old", "interval", "", "rounds", title=f"{bench}: {old}, {new}"
                )
                outcomes = compared(bench, before, after, speed)
                for outcome in outcomes:
                    table.add_row(*rows(outcome))
                if outcomes:
                    Console(width=150, markup=False).print(table)
                every += outcomes
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    speed.keep_records([record(outcome) for outcome in every], f"compare {old} {new}")
    context.exit(int(any(MISSED in outcome.verdicts().values() for outcome in every)))


if __name__ == "__main__":
    main()
