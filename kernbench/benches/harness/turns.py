"""Measuring on a machine that others use: sides of a comparison take turns, and what is said of them is what the noise allows.

What else runs on a machine makes a sample slower, by any factor, and hardly ever faster, so a side's figure is the *minimum*
of its samples; the median and the spread stand beside it. In a *round* each side has a turn, in the order of the round before
it reversed, so that a slow minute of the machine, or its clock's, meets all sides. A turn lasts some milliseconds: of a short
piece of work it is the quickest of many calls, some of which were not disturbed.

The rounds are cut into four groups, each as long and one behind the other. A group has a minimum of each side and a ratio of
minima; the lowest and the highest of the four ratios are the *interval*, and the ratio of the minima over all rounds is always
within it. A verdict is given where that ratio is further from the goal than the interval is wide, both as factors; then the
goal is outside of the interval, too. Otherwise the rounds are doubled, until the budget is spent: undecided.

What this cannot see is what slows one side only, in every round: hence sides that differ in their use of several cores are
measured by the wall clock and depend on how many cores were free.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

GROUPS = 4
UNITS = {
    "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9,
    "B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30,
    "x": 1.0,
}  # fmt: skip
"""What a unit of the tables is, in seconds or in bytes."""

WALL = time.perf_counter
CPU = time.process_time
"""CPU seconds of this process: others on the machine move them less. For work that uses one core on every side."""

REACHED, MISSED, UNDECIDED = "reached", "missed", "undecided (spread)"

Sampler = Callable[[], float]
"""Does the work once, or many times; what one time took, in seconds (or bytes)."""


@dataclass(frozen=True)
class Side:
    """One side of a comparison.

    Attributes:
        sample: measures it.
        less: measures what is to be taken off, in the same turn; minima are subtracted, not samples.
    """

    sample: Sampler
    less: Sampler | None = None


@dataclass(frozen=True)
class Comparison:
    """A figure: what is measured, and what it should be at most.

    Attributes:
        name: of the figure.
        unit: of the values printed, one of :data:`UNITS`.
        sides: makes the sides, by name; the first is ours. Called when the figure is measured.
        goals: by side, how many times that side's value ours may be.
        limit: what ours may be, in ``unit``, where nothing stands beside it.
    """

    name: str
    unit: str
    sides: Callable[[], Mapping[str, Side]]
    goals: Mapping[str, float] = field(default_factory=dict)
    limit: float | None = None


@dataclass(frozen=True)
class Budget:
    """How long a figure may be measured.

    Attributes:
        rounds: at most.
        least: rounds before the first look, if ``seconds`` allow; at least :data:`GROUPS` are made.
        seconds: of wall time, after which no round begins.
        turn: seconds that a side's turn lasts, if one call does not last longer.
        looks: how many looks at the data in succession must come to the same verdict.
    """

    rounds: int = 1024
    least: int = 8
    seconds: float = 20.0
    turn: float = 0.02
    looks: int = 1


@dataclass(frozen=True)
class Estimate:
    """A ratio (or a value), the lowest and the highest of the groups."""

    value: float
    low: float
    high: float

    def verdict(self, goal: float) -> str:
        """Whether it is at most ``goal``, if it is further from it than the interval is wide."""
        if not 0 < self.low <= self.value <= self.high < math.inf:
            return UNDECIDED
        distance = math.log(self.value / goal)
        if abs(distance) <= math.log(self.high / self.low):
            return UNDECIDED
        return REACHED if distance < 0 else MISSED


@dataclass
class Samples:
    """What the turns of a side gave: one value per round, and what is to be taken off."""

    values: list[float] = field(default_factory=list)
    less: list[float] = field(default_factory=list)

    def minimum(self, rounds: slice = slice(None)) -> float:
        """Of those rounds."""
        return min(self.values[rounds]) - (min(self.less[rounds]) if self.less else 0.0)

    @property
    def differences(self) -> list[float]:
        """Values of the rounds, with what is to be taken off at its minimum."""
        off = min(self.less, default=0.0)
        return [value - off for value in self.values]

    @property
    def median(self) -> float:
        """Over rounds."""
        return statistics.median(self.differences)

    @property
    def spread(self) -> float:
        """Distance of the quartiles over rounds, as a share of the median."""
        first, _, third = statistics.quantiles(self.differences, n=4, method="inclusive")
        return (third - first) / abs(self.median) if self.median else 0.0


@dataclass(frozen=True)
class Outcome:
    """What a comparison gave.

    Attributes:
        comparison: the figure.
        sides: their names; the first is ours.
        samples: by side, in seconds or bytes.
        cannot: why sides are missing.
        unsure: sides of which the last looks did not say the same.
    """

    comparison: Comparison
    sides: tuple[str, ...]
    samples: Mapping[str, Samples]
    cannot: Mapping[str, str] = field(default_factory=dict)
    unsure: frozenset[str] = frozenset()

    @property
    def ours(self) -> str:
        """Name of the first side."""
        return self.sides[0]

    @property
    def rounds(self) -> int:
        """That were made."""
        return max((len(samples.values) for samples in self.samples.values()), default=0)

    def estimate(self, other: str = "") -> Estimate | None:
        """Ours as a multiple of another side, without one in the comparison's unit; None where one of them is missing."""
        if self.ours not in self.samples or (other and other not in self.samples):
            return None
        mine, theirs = self.samples[self.ours], self.samples.get(other)
        unit = UNITS[self.comparison.unit]

        def value(rounds: slice) -> float:
            denominator = unit if theirs is None else theirs.minimum(rounds)
            return mine.minimum(rounds) / denominator if denominator > 0 else math.inf

        groups = [value(slice(self.rounds * i // GROUPS, self.rounds * (i + 1) // GROUPS)) for i in range(GROUPS)]
        whole = value(slice(None))
        return Estimate(whole, min(whole, *groups), max(whole, *groups))

    def goals(self) -> dict[str, float]:
        """By side, and the limit by the name of none."""
        limit = self.comparison.limit
        return {**self.comparison.goals, **({} if limit is None else {"": limit})}

    def verdicts(self) -> dict[str, str]:
        """Of the goals, except where a side is missing."""
        found = {}
        for other, goal in self.goals().items():
            estimate = self.estimate(other)
            if estimate is not None:
                found[other] = UNDECIDED if other in self.unsure else estimate.verdict(goal)
        return found


def measure(comparison: Comparison, budget: Budget | None = None, *, clock: Callable[[], float] = WALL) -> Outcome:
    """Sample the sides in turns until every goal is decided, or the budget is spent.

    Each side is called once before, which does not count (imports, compilation, caches); one that raises is left out, and the
    outcome says why. ``clock`` is for the budget only.
    """
    budget = budget or Budget()
    sides = dict(comparison.sides())
    cannot = {name: trouble for name, side in sides.items() if (trouble := _warmed(side))}
    able = {name: side for name, side in sides.items() if name not in cannot}
    outcome = Outcome(comparison, tuple(sides), {name: Samples() for name in able}, cannot)
    if outcome.ours in cannot:
        return replace(outcome, samples={})
    end, next_look, said = clock() + budget.seconds, budget.least, list[dict[str, str]]()
    while True:
        _round(able, outcome, budget.turn, clock)
        spent = outcome.rounds >= budget.rounds or clock() >= end
        if outcome.rounds < GROUPS or (outcome.rounds < next_look and not spent):
            continue
        said.append(outcome.verdicts())
        last = said[-budget.looks :]
        same = {name for name in said[-1] if len(last) == budget.looks and len({look[name] for look in last}) == 1}
        if spent or (same == set(said[-1]) and UNDECIDED not in said[-1].values()):
            return replace(outcome, unsure=frozenset(set(said[-1]) - same))
        next_look *= 2


def _warmed(side: Side) -> str:
    """Call the samplers of a side once; what is wrong, if something is."""
    try:
        side.sample()
        if side.less is not None:
            side.less()
    except Exception as error:
        return f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}"
    return ""


def _round(sides: Mapping[str, Side], outcome: Outcome, turn: float, clock: Callable[[], float]) -> None:
    """One turn of each side, in the order of the round before it reversed."""
    order = list(sides)
    for name in reversed(order) if outcome.rounds % 2 else order:
        side, begin = sides[name], clock()
        values, less = list[float](), list[float]()
        while not values or clock() - begin < turn:
            values.append(side.sample())
            if side.less is not None:
                less.append(side.less())
        outcome.samples[name].values.append(min(values))
        if less:
            outcome.samples[name].less.append(min(less))


def seconds(work: Callable[[], object], calls: int = 1, clock: Callable[[], float] = WALL) -> Sampler:
    """A sampler: seconds of one of ``calls`` calls."""

    def sample() -> float:
        begin = clock()
        for _ in range(calls):
            work()
        return (clock() - begin) / calls

    return sample
