"""Exhaustive search: every order that matters, the fewest answers first.

A run tells where another answer could matter (:mod:`kernbench.order.conflicts`). Each such answer is a schedule: what was
answered before, this one, and 0 from there on. Of runs in which all that matters came in the same order, one alone is gone on
from. So the schedules are gone through by the number of answers that are not 0, up to a bound, until none is left.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from kernbench.errors import ConfigError
from kernbench.explore.search import FoundTrouble, Runs
from kernbench.explore.trial import Trial, compared
from kernbench.order import DEFAULT, GivenAnswer, schedule_of


@dataclass
class SearchedOrders:
    """How far a search has come.

    Attributes:
        found: what it has found; None: nothing.
        runs: how many runs there were.
        distinct: in how many orders of what matters.
        alike: answers that were left out, as their runs would be equivalent to one that was made.
        beyond: schedules that were left out for the bound.
        left: schedules that were left when there had been as many runs as there may be.
    """

    found: FoundTrouble | None = None
    runs: int = 0
    distinct: int = 0
    alike: int = 0
    beyond: int = 0
    left: int = 0

    @property
    def exhausted(self) -> bool:
        """Whether nothing was left out that could differ."""
        return self.found is None and not self.beyond and not self.left

    def __str__(self) -> str:
        if self.found is not None:
            return f"{self.runs} runs"
        told = (
            f"{self.runs} runs, {self.distinct} orders that differ; {self.alike} answers left out, which change nothing"
        )
        if self.exhausted:
            return f"all orders: {told}"
        if self.left:
            return f"not all orders: {told}; {self.left} schedules were not run (--runs)"
        return f"all orders up to the bound: {told}; {self.beyond} schedules are beyond it"


def bound_of(how: str) -> int | None:
    """The bound of ``"exhaustive"`` (None) or ``"exhaustive:BOUND"``. Raises :class:`ConfigError` for another."""
    name, _, bound = how.partition(":")
    if name != "exhaustive" or (":" in how and not bound.isdecimal()):
        raise ConfigError(f"how to explore: {how!r}: expected exhaustive or exhaustive:BOUND, such as exhaustive:2")
    return int(bound) if bound else None


def searched(run: Runs, how: str, runs: int, *, differences: bool = True) -> SearchedOrders:
    """Run a program under all schedules that can differ, until something is found.

    Args:
        run: gives trials that were followed.
        how: see :func:`bound_of`.
        runs: at most.
        differences: values and output that are not those of the default run are something, too.
    """
    bound = bound_of(how)
    state = SearchedOrders()
    usual: Trial | None = None
    level: dict[tuple[GivenAnswer, ...], None] = {(): None}
    known = set(level)
    seen: set[Hashable] = set()
    while level:
        following: dict[tuple[GivenAnswer, ...], None] = {}
        state.left = max(0, len(level) - (runs + 1 - state.runs))
        within = list(level)[: runs + 1 - state.runs]
        for trial in run(schedule_of(answers) if answers else DEFAULT for answers in within):
            state.runs += 1
            usual = usual or trial
            trouble = trial.trouble or (compared(usual, trial) if differences else None)
            if trouble is not None:
                state.found = FoundTrouble(trial, trouble, state.runs, usual)
                return state
            if trial.signature in seen:
                continue
            seen.add(trial.signature)
            state.distinct += 1
            state.alike += trial.alike
            for answers in _others(trial):
                if answers in known:
                    continue
                known.add(answers)
                if bound is not None and len(answers) > bound:
                    state.beyond += 1
                else:
                    following[answers] = None
        if state.left:
            return state
        level = following
    return state


def _others(trial: Trial) -> list[tuple[GivenAnswer, ...]]:
    """The schedules that give another answer at a point where that may matter."""
    taken = [choice for choice, _ in trial.taken]
    return [
        (*taken[: each.before], *([GivenAnswer(each.point, each.number, answer)] if answer else []))
        for each in trial.open
        for answer in range(each.options)
        if answer != each.taken
    ]
