"""Which schedules to run, and how to shrink one that has found something."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from kernbench.errors import ConfigError
from kernbench.explore.trial import Trial, Trouble, compared
from kernbench.input_files import whole_number
from kernbench.order import DEFAULT, GivenAnswer, schedule_of

Runs = Callable[[Iterable[str]], Iterator[Trial]]
"""Runs a program under schedules, and gives what each came to, in their order; some of them may run at a time."""


@dataclass(frozen=True)
class FoundTrouble:
    """Something was found.

    Attributes:
        trial: the run that found it.
        trouble: what it is.
        runs: how many runs that took, the default one and this one among them.
        usual: the run under the default schedule.
    """

    trial: Trial
    trouble: Trouble
    runs: int
    usual: Trial


def schedules(how: str, runs: int, steps: int) -> list[str]:
    """The schedules of ``runs`` runs after the default one, in which ranks came to ``steps`` steps.

    Args:
        how: ``"random"`` or ``"pct:DEPTH"``. Raises :class:`ConfigError` for another.
    """
    name, _, depth = how.partition(":")
    if how == "random":
        return [f"random:{seed}" for seed in range(1, runs + 1)]
    if name == "pct" and whole_number(depth):
        return [f"pct:{depth}:{max(steps, 1)}:{seed}" for seed in range(1, runs + 1)]
    raise ConfigError(f"how to explore: {how!r}: expected random or pct:DEPTH, such as pct:3")


def explored(run: Runs, how: str, runs: int, *, differences: bool = True) -> tuple[FoundTrouble | None, int]:
    """Run a program under its default schedule and others until something is found.

    Args:
        how, runs: see :func:`schedules`.
        differences: values and output that are not those of the default run are something, too.

    Returns what was found, and how many runs there were.
    """
    schedules(how, 0, 0)  # what cannot be understood is said before anything runs
    usual = next(iter(run([DEFAULT])))
    if usual.trouble is not None:
        return FoundTrouble(usual, usual.trouble, 1, usual), 1
    count = 1
    for trial in run(schedules(how, runs, usual.steps)):
        count += 1
        trouble = trial.trouble or (compared(usual, trial) if differences else None)
        if trouble is not None:
            return FoundTrouble(trial, trouble, count, usual), count
    return None, count


def shrunk(run: Runs, found: FoundTrouble, most: int = 200) -> tuple[list[tuple[GivenAnswer, str]], int]:
    """The fewest answers other than the default ones that find the same: none of them can be left out.

    Delta debugging (Zeller, Hildebrandt: Simplifying and Isolating Failure-Inducing Input, IEEE TSE 2002), in at most ``most``
    runs. Returns the answers, with the places where they were asked for, and the number of runs.
    """
    runs = 0

    def finds(choices: Sequence[tuple[GivenAnswer, str]]) -> list[tuple[GivenAnswer, str]] | None:
        """The answers that were in fact given, if they find the same."""
        nonlocal runs
        runs += 1
        trial = next(iter(run([schedule_of(choice for choice, _ in choices)])))
        trouble = trial.trouble or compared(found.usual, trial)
        return trial.taken if trouble is not None and trouble.same_as(found.trouble) else None

    left = finds(found.trial.taken)
    if left is None:  # what a generator chose, stated, does the same
        return found.trial.taken, runs
    parts = 2
    while left and runs < most:
        size = max(1, -(-len(left) // parts))
        for begin in range(0, len(left), size):
            if runs >= most:
                break
            fewer = finds([*left[:begin], *left[begin + size :]])
            if fewer is not None and len(fewer) < len(left):
                left, parts = fewer, max(parts - 1, 2)
                break
        else:
            if size == 1:
                break
            parts = min(parts * 2, len(left))
    return left, runs
