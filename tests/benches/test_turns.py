"""Sides in turns: the order, the estimate, and what is said, on samplers that need no clock."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator

import pytest

from kernbench.benches.harness.turns import (
    GROUPS,
    MISSED,
    REACHED,
    UNDECIDED,
    Budget,
    Comparison,
    Estimate,
    Outcome,
    Samples,
    Side,
    measure,
    seconds,
)  # fmt: skip

ONCE = Budget(turn=0.0, seconds=math.inf)


def noisy(best: float, seed: int, disturbed: float) -> Callable[[], float]:
    """A sampler as a busy machine has them: at least ``best``, a bit more as a rule, up to three times where disturbed."""
    draw = random.Random(seed)

    def sample() -> float:
        value = best * (1 + draw.expovariate(50))
        return value * (1 + 2 * draw.random()) if draw.random() < disturbed else value

    return sample


def told(ratio: float, goal: float, seed: int, *, disturbed: float = 0.5, budget: Budget = ONCE) -> Outcome:
    """Ours at ``ratio`` times the other side, measured."""
    sides = {"ours": Side(noisy(ratio, seed, disturbed)), "other": Side(noisy(1.0, seed + 1000, disturbed))}
    return measure(Comparison("figure", "s", lambda: sides, {"other": goal}), budget)


def test_sides_take_turns_in_alternating_order() -> None:
    calls = []

    def side(name: str) -> Side:
        return Side(lambda: float(calls.append(name) or 1))  # type: ignore[func-returns-value]

    comparison = Comparison("figure", "s", lambda: {name: side(name) for name in "abc"}, {"b": 1.0})
    outcome = measure(comparison, Budget(rounds=4, turn=0.0, seconds=math.inf))
    assert "".join(calls) == "abc" + "abccba" * 2  # once each before the first round
    assert outcome.rounds == 4
    assert outcome.verdicts() == {"b": UNDECIDED}  # equal, and the goal is to be equal


def test_a_turn_is_the_quickest_of_its_calls() -> None:
    now = itertools.count(0.0, 0.5)  # each look at the clock is half a second later
    values = iter([9.0, *[5.0, 3.0, 4.0] * 4])
    comparison = Comparison("figure", "s", lambda: {"ours": Side(lambda: next(values))})
    outcome = measure(comparison, Budget(rounds=4, turn=1.5, seconds=math.inf), clock=lambda: next(now))
    assert outcome.samples["ours"].values == [3.0] * 4


def test_the_interval_is_of_the_groups_minima() -> None:
    ours = Samples([4.0, 9.0, 6.0, 7.0, 5.0, 9.0, 8.0, 4.5])
    other = Samples([2.0, 3.0, 2.0, 9.0, 2.0, 2.0, 2.0, 9.0])
    outcome = Outcome(
        Comparison("figure", "s", dict, {"other": 2.5}), ("ours", "other"), {"ours": ours, "other": other}
    )
    assert outcome.estimate("other") == Estimate(2.0, 2.0, 3.0)  # groups of two rounds: 4/2, 6/2, 5/2, 4.5/2
    assert outcome.estimate() == Estimate(4.0, 4.0, 6.0)
    assert outcome.verdicts() == {"other": UNDECIDED}
    assert ours.median == 6.5
    assert ours.spread == pytest.approx((8.25 - 4.875) / 6.5)


def test_what_is_taken_off_has_its_own_minimum() -> None:
    samples = Samples([5.0, 4.0, 6.0, 5.0], [1.0, 3.0, 2.0, 2.0])
    assert samples.minimum() == 3.0
    assert samples.median == 4.0
    outcome = Outcome(Comparison("figure", "ms", dict, limit=3500.0), ("ours",), {"ours": samples})
    assert outcome.estimate() == Estimate(3000.0, 1000.0, 4000.0)


@pytest.mark.parametrize(
    ("estimate", "goal", "said"),
    [
        (Estimate(1.0, 0.9, 1.1), 1.5, REACHED),
        (Estimate(1.0, 0.9, 1.1), 1.2, UNDECIDED),  # outside of the interval, but nearer than it is wide
        (Estimate(2.0, 2.0, 2.1), 1.5, MISSED),
        (Estimate(2.0, 1.4, 2.1), 1.5, UNDECIDED),
        (Estimate(1.0, 1.0, 1.0), 1.0, UNDECIDED),
        (Estimate(1.0, -0.5, 1.0), 2.0, UNDECIDED),  # less was taken off than there was
        (Estimate(1.0, 1.0, math.inf), 2.0, UNDECIDED),
    ],
)
def test_a_verdict_needs_a_margin_larger_than_the_spread(estimate: Estimate, goal: float, said: str) -> None:
    assert estimate.verdict(goal) == said


@pytest.mark.parametrize("disturbed", [0.0, 0.3, 0.6])
def test_a_busy_machine_changes_what_is_left_open_never_what_is_said(disturbed: float) -> None:
    for ratio, said in ((0.7, REACHED), (1.4, MISSED)):
        found = [told(ratio, 1.0, seed, disturbed=disturbed).verdicts()["other"] for seed in range(50)]
        assert set(found) == {said}


def test_equal_sides_are_hardly_ever_said_to_differ() -> None:
    """With two looks in succession, as ``benches.compare`` has them, 0 to 3 of 1000 (a simulation); with one, about 50."""
    twice = Budget(turn=0.0, seconds=math.inf, looks=2)
    found = [told(1.0, 1.0, seed, budget=twice) for seed in range(100)]
    assert {outcome.verdicts()["other"] for outcome in found} == {UNDECIDED}
    assert {outcome.rounds for outcome in found} == {twice.rounds}


def test_sampling_ends_as_soon_as_all_is_decided() -> None:
    assert told(3.0, 1.0, 0).rounds == ONCE.least
    assert told(3.0, 1.0, 0, budget=Budget(turn=0.0, seconds=math.inf, looks=2)).rounds == 2 * ONCE.least
    sides = {"ours": Side(lambda: 1.0), "near": Side(noisy(1.0, 3, 0.5)), "far": Side(lambda: 9.0)}
    both = measure(Comparison("figure", "s", lambda: sides, {"near": 1.0, "far": 1.0}), ONCE)
    assert (both.rounds, both.verdicts()) == (ONCE.rounds, {"near": UNDECIDED, "far": REACHED})


def test_what_only_the_last_look_says_is_not_said() -> None:
    quiet = iter([*[1.0, 2.0] * 12, *[0.2] * 100])  # ours gets quicker when the sampling is nearly over

    comparison = Comparison(
        "figure", "s", lambda: {"ours": Side(lambda: next(quiet)), "other": Side(lambda: 1.0)}, {"other": 1.0}
    )
    outcome = measure(comparison, Budget(rounds=32, turn=0.0, seconds=math.inf, looks=2))
    assert outcome.verdicts() == {"other": UNDECIDED}
    assert outcome.rounds == 32


def test_the_budgets_seconds_end_it_but_not_before_every_group_has_a_round() -> None:
    now = itertools.count(0.0, 100.0)
    sides = {"ours": Side(lambda: 1.0), "other": Side(lambda: 1.0)}
    comparison = Comparison("figure", "s", lambda: sides, {"other": 1.0})
    assert measure(comparison, Budget(turn=0.0), clock=lambda: next(now)).rounds == GROUPS


def test_a_side_that_cannot_is_left_out_and_says_why() -> None:
    def broken() -> float:
        raise ValueError("not today\nnor tomorrow")

    sides = {"ours": Side(lambda: 2.0), "other": Side(broken), "third": Side(lambda: 1.0, less=lambda: 0.5)}
    outcome = measure(Comparison("figure", "s", lambda: sides, {"other": 1.0, "third": 1.0}), ONCE)
    assert outcome.cannot == {"other": "ValueError: not today"}
    assert outcome.verdicts() == {"third": MISSED}
    assert outcome.estimate("third") == Estimate(4.0, 4.0, 4.0)
    nothing = measure(
        Comparison("figure", "s", lambda: {"ours": Side(broken), "other": Side(lambda: 1.0)}, {"other": 1.0})
    )
    assert (nothing.rounds, nothing.verdicts(), nothing.estimate()) == (0, {}, None)


def test_seconds_are_of_one_call() -> None:
    def ticks() -> Iterator[float]:
        yield from (3.0, 11.0)

    clock, calls = ticks(), []
    assert seconds(lambda: calls.append(1), 4, lambda: next(clock))() == 2.0
    assert len(calls) == 4
