"""Exhaustive search: every order that matters, the fewest answers first.

A run tells where another answer could matter (:mod:`kernbench.order.conflicts`). Each such answer is a schedule: what was
answered before, this one, and 0 from there on. Of runs in which all that matters came in the same order, one alone is gone on
from. So the schedules are gone through by the number of answers that are not 0, up to a bound, until none is left.

Answers to one question are tried one after the other. Once one has turned round what it was asked for, the others sleep: what
they turn round besides is turned round from there (sleep sets: Godefroid, Partial-Order Methods for the Verification of
Concurrent Systems, LNCS 1032, 1996; ADR 0150).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from kernbench.errors import ConfigError
from kernbench.explore.search import FoundTrouble, Runs
from kernbench.explore.trial import Trial, compared
from kernbench.input_files import whole_number
from kernbench.order import GivenAnswer, MetPair, schedule_of
from kernbench.plurals import counted


@dataclass
class SearchedOrders:
    """How far a search has come.

    Attributes:
        found: what it has found; None: nothing.
        runs: how many runs there were.
        distinct: in how many orders of what matters.
        alike: answers that were left out, as their runs would be equivalent to one that was made.
        asleep: answers that were left out, as another one to the same question had done what they are for.
        beyond: schedules that were left out for the bound.
        left: schedules that were left when there had been as many runs as there may be.
    """

    found: FoundTrouble | None = None
    runs: int = 0
    distinct: int = 0
    alike: int = 0
    asleep: int = 0
    beyond: int = 0
    left: int = 0

    @property
    def exhausted(self) -> bool:
        """Whether nothing was left out that could differ."""
        return self.found is None and not self.beyond and not self.left

    def __str__(self) -> str:
        if self.found is not None:
            return counted(self.runs, "run")
        told = (
            f"{counted(self.runs, 'run')}, {self.distinct} orders that differ; {self.alike} answers left out, which change "
            "nothing" + (f", and {self.asleep} whose work others had done" if self.asleep else "")
        )
        if self.exhausted:
            return f"all orders: {told}"
        if self.left:
            return f"not all orders: {told}; {self.left} schedules were not run (--runs)"
        return f"all orders up to the bound: {told}; {self.beyond} schedules are beyond it"


def bound_of(how: str) -> int | None:
    """The bound of ``"exhaustive"`` (None) or ``"exhaustive:BOUND"``. Raises :class:`ConfigError` for another."""
    name, _, bound = how.partition(":")
    if name != "exhaustive" or (":" in how and whole_number(bound) is None):
        raise ConfigError(f"how to explore: {how!r}: expected exhaustive or exhaustive:BOUND, such as exhaustive:2")
    return int(bound) if bound else None


Answers = tuple[GivenAnswer, ...]


@dataclass(frozen=True)
class _Question:
    """A point at which other answers may matter, and what was answered before.

    Attributes:
        answers: schedules, one for each other answer.
        turns: what they are to turn round, if that is all that they are for.
    """

    answers: tuple[Answers, ...]
    turns: tuple[MetPair, ...]

    def done(self, trial: Trial) -> bool:
        """Whether a run that has given one of the answers has turned all of it round."""
        return bool(self.turns) and all((second, first) in trial.pairs for first, second in self.turns)


def searched(run: Runs, how: str, runs: int, *, differences: bool = True, sleep: bool = True) -> SearchedOrders:
    """Run a program under all schedules that can differ, until something is found.

    Args:
        run: gives trials that were followed.
        how: see :func:`bound_of`.
        runs: at most.
        differences: values and output that are not those of the default run are something, too.
        sleep: leave out answers whose work others have done. Within a bound none is: from there it would take an answer more.
    """
    bound = bound_of(how)
    search = _Search(SearchedOrders(), runs, bound, differences=differences)
    questions = [_Question(((),), ())]
    while questions:
        following: list[_Question] = []
        for turn in range(max(len(each.answers) for each in questions)):
            asked = [each for each in questions if len(each.answers) > turn]
            trials = search.run(run, [each.answers[turn] for each in asked])
            if search.over:
                return search.state
            following += [question for trial in trials for question in search.questions(trial)]
            slept = [
                each for each, trial in zip(asked, trials, strict=True) if sleep and bound is None and each.done(trial)
            ]
            search.state.asleep += sum(len(each.answers) - turn - 1 for each in slept)
            questions = [each for each in questions if each not in slept]
        questions = following
    return search.state


class _Search:
    """What has been run, and seen."""

    def __init__(self, state: SearchedOrders, runs: int, bound: int | None, *, differences: bool) -> None:
        self.state = state
        self._most = runs + 1
        self._bound = bound
        self._differences = differences
        self._usual: Trial | None = None
        self._known: set[Answers] = {()}
        self._seen: set[Hashable] = set()
        self._asked: set[Hashable] = set()

    @property
    def over(self) -> bool:
        """Whether something has been found, or there were as many runs as there may be."""
        return self.state.found is not None or self.state.left > 0

    def run(self, run: Runs, schedules: list[Answers]) -> list[Trial]:
        """What these schedules come to, until something is found."""
        state = self.state
        state.left = max(0, len(schedules) - (self._most - state.runs))
        trials = []
        for trial in run(schedule_of(answers) for answers in schedules[: self._most - state.runs]):
            state.runs += 1
            usual = self._usual = self._usual or trial
            trouble = trial.trouble or (compared(usual, trial) if self._differences else None)
            if trouble is not None:
                state.found = FoundTrouble(trial, trouble, state.runs, usual)
                break
            trials.append(trial)
        return trials

    def questions(self, trial: Trial) -> list[_Question]:
        """Where a run could have been another one; nothing, if it came to what another one has come to."""
        state = self.state
        new_order = trial.signature not in self._seen
        self._seen.add(trial.signature)
        if new_order:
            state.distinct += 1
            state.alike += trial.alike
        taken = [choice for choice, _ in trial.taken]
        found = []
        for point in trial.open:
            question = trial.signature, point.point, point.turns, point.reached
            if question in self._asked if point.turns else not new_order:
                continue
            self._asked.add(question)
            others = [
                GivenAnswer(point.point, point.number, answer)
                for answer in range(point.options)
                if answer != point.taken
            ]
            schedules = [(*taken[: point.before], *([each] if each.taken else [])) for each in others]
            new = [answers for answers in schedules if answers not in self._known]
            self._known.update(new)
            within = [answers for answers in new if self._bound is None or len(answers) <= self._bound]
            state.beyond += len(new) - len(within)
            if within:
                found.append(_Question(tuple(within), point.turns))
        return found
