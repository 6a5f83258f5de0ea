"""Schedules: what goes first, wherever several things could.

A run asks at *points*: which rank goes on, which kernel is computed next, whose message a receive from any source gets. A point
has a name (:data:`POINTS`) and a number that counts how often it was asked; an answer is an index into what could go first, 0
being what a run without a schedule does. A schedule says the answers, and has a name that says it whole:

- ``default``: 0, always;
- ``random:SEED``: any one, by a generator;
- ``pct:DEPTH:STEPS:SEED``: priorities, the highest goes first, and ``DEPTH - 1`` times in about ``STEPS`` steps the current one
  gets the lowest one (Burckhardt, Kothari, Musuvathi, Nagarakatte: A Randomized Scheduler with Probabilistic Guarantees of
  Finding Bugs, ASPLOS 2010). A bug that needs ``DEPTH`` things to come in one order is found with probability
  ``1 / (n * STEPS ** (DEPTH - 1))`` or more, of ``n`` that run;
- ``w1.4=2,r.0=1``: these answers, and 0 elsewhere. So what was answered under any other can be written, too
  (:func:`schedule_of`).
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from random import Random
from typing import ClassVar, NamedTuple, Protocol

from kernbench.errors import ConfigError
from kernbench.input_files import whole_number

VARIABLE = "KERNBENCH_SCHEDULE"
"""The variable of the environment that says the schedule of simulations which do not."""

DEFAULT = "default"

POINTS = {
    "r": "which of the ranks that can run goes on",
    "w": "before a rank's next operation: it goes on (0), ranks that can run go first (1), or all that can happen (2)",
    "d": "a kernel begins, or goes on after it has waited, now (0), or when ranks have run on (1)",
    "k": "which kernels are computed next: by rank and stream",
    "h": "kernels that waited go on (0), or new ones begin first (1)",
    "b": "the same kernel of several ranks is computed in one batch (0), or one of them first",
    "p": "programs of a launch run together (0), or some of them first",
    "a": "memory that other streams have used, too, is free again when they have ended (0), or not yet (1)",
    "m": "whose message a receive from any source gets",
    "v": "where memory is weak: a read that nothing orders sees what was written last (0), or what was there before",
}
"""The points. The rank that is asked stands behind ``w``, ``a``, ``m`` and ``v``: ``w3``."""

EVERYTHING = "everything"
"""Of a point ``w``: the last of the options."""

_LETS_OTHERS_GO = 0.25
_APART = 0.5

_ANSWER = re.compile(r"(?P<point>[a-z]\d{0,9})\.(?P<number>\d{1,18})=(?P<taken>\d{1,18})")


class GivenAnswer(NamedTuple):
    """An answer.

    Attributes:
        point: where.
        number: how often it had been asked before.
        taken: the index.
    """

    point: str
    number: int
    taken: int

    def __str__(self) -> str:
        return f"{self.point}.{self.number}={self.taken}"


class Strategy(Protocol):
    """Says what goes first."""

    def choose(self, point: str, number: int, options: Sequence[Hashable]) -> int:
        """The index of one of at least two ``options``, which are names of what could go first."""


class _Stated:
    """The answers that are given, 0 elsewhere, and where there are fewer options than the answer needs."""

    def __init__(self, choices: Iterable[GivenAnswer] = ()) -> None:
        self._taken = {(choice.point, choice.number): choice.taken for choice in choices}

    def choose(self, point: str, number: int, options: Sequence[Hashable]) -> int:
        taken = self._taken.get((point, number), 0)
        return taken if taken < len(options) else 0


class _Seeded:
    """Any one; ranks go on, and kernels stay together, most of the time."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def choose(self, point: str, number: int, options: Sequence[Hashable]) -> int:
        random = self._random
        if point[0] in "wd" and random.random() >= _LETS_OTHERS_GO:
            return 0
        if point[0] in "bpav" and random.random() >= _APART:
            return 0
        return random.randrange(1 if point[0] in "wdbpav" else 0, len(options))


class _Pct:
    """The one with the highest priority."""

    def __init__(self, depth: int, steps: int, seed: int) -> None:
        self._random = Random(seed)
        self._changes = frozenset(self._random.sample(range(steps), min(depth - 1, steps)))
        self._priorities: dict[Hashable, float] = {}
        self._step = 0

    def _priority(self, who: Hashable) -> float:
        found = self._priorities.get(who)
        if found is None:
            found = self._priorities[who] = 1 + self._random.random()
        return found

    def choose(self, point: str, number: int, options: Sequence[Hashable]) -> int:
        if point[0] in "pv":
            return 0 if self._random.random() >= _APART else self._random.randrange(1, len(options))
        if point[0] in "ha":
            return self._random.randrange(len(options))
        if point[0] in "wd":
            return self._goes_on(options)
        first = int(point[0] == "b")
        priorities = [self._priority(who) for who in options[first:]]
        return first + priorities.index(max(priorities))

    def _goes_on(self, options: Sequence[Hashable]) -> int:
        me, *others, _ = options
        step, self._step = self._step, self._step + 1
        if step in self._changes:
            self._priorities[me] = -step
            return len(options) - 1
        mine = self._priority(me)
        ready = [other for each in others if isinstance(each, tuple) for other in each]
        return int(any(self._priority(other) > mine for other in ready))


class Choices:
    """The answers of one run.

    Args:
        schedule: its name. Raises :class:`ConfigError` if it is none.

    Attributes:
        schedule: its name.
        taken: the answers so far that were not 0.
        places: for each of them, where the program was, or what goes first.
        asked: how often each point was asked.
        follow: receives every point that is asked, with its number, options, answer, and how many other than 0 were given
            before; None: no listener.
        made: of all that this process has made, how many.
    """

    made: ClassVar[int] = 0

    def __init__(self, schedule: str) -> None:
        self.schedule = schedule
        self.taken: list[GivenAnswer] = []
        self.places: list[str] = []
        self.asked: Counter[str] = Counter()
        self.follow: Callable[[str, int, Sequence[Hashable], int, int], None] | None = None
        self._strategy = strategy_of(schedule)
        Choices.made += 1

    def pick(self, point: str, options: Sequence[Hashable], place: Callable[[], object] | None = None) -> int:
        """What goes first: an index into ``options``. One alone is no question. ``place``: tells where the program is."""
        if len(options) < 2:
            return 0
        number = self.asked[point]
        self.asked[point] = number + 1
        taken = self._strategy.choose(point, number, options)
        if self.follow is not None:
            self.follow(point, number, options, taken, len(self.taken))
        if taken:
            self.taken.append(GivenAnswer(point, number, taken))
            self.places.append(str(options[taken] if place is None else place()))
        return taken

    @property
    def steps(self) -> int:
        """How often a rank, or a kernel, could have let others go first."""
        return sum(number for point, number in self.asked.items() if point[0] in "wd")


def strategy_of(schedule: str) -> Strategy:
    """What a schedule's name says. Raises :class:`ConfigError` if it is none."""
    if schedule == DEFAULT:
        return _Stated()
    name, *numbers = schedule.split(":")
    values = [value for value in map(whole_number, numbers) if value is not None]
    if len(values) == len(numbers):
        if name == "random" and len(values) == 1:
            return _Seeded(*values)
        if name == "pct" and len(values) == 3 and values[0] > 0 and values[1] > 0:
            return _Pct(*values)
    found = [_ANSWER.fullmatch(each) for each in schedule.split(",")]
    if any(each is None or each["point"][0] not in POINTS for each in found):
        raise ConfigError(
            f"{schedule!r} is no schedule: expected {DEFAULT}, random:SEED, pct:DEPTH:STEPS:SEED, or answers such as "
            "w1.4=2,r.0=1, as kernbench explore prints them"
        )
    return _Stated(
        GivenAnswer(each["point"], int(each["number"]), int(each["taken"])) for each in found if each is not None
    )


def told(choice: GivenAnswer, place: str) -> str:
    """An answer in words; ``place``: see :attr:`Choices.places`."""
    kind, rank = choice.point[0], choice.point[1:]
    return _WORDS.get((kind, choice.taken), _WORDS.get((kind, 0), "")).format(rank=rank, place=place)


_WORDS = {
    ("r", 0): "of the ranks that can run, rank {place} goes on",
    ("w", 1): "rank {rank} lets ranks that can run go first, at {place}",
    ("w", 2): "rank {rank} lets all that can happen go first, at {place}",
    ("d", 1): "a kernel of {place} waits until ranks have run on",
    ("k", 0): "of the kernels that can run, that of {place} goes first",
    ("h", 1): "new kernels go before those that have waited",
    ("b", 0): "of the kernels that could run as one batch, that of {place} goes first",
    ("p", 0): "programs of a launch are set apart: {place}",
    ("a", 1): "memory of rank {rank} that other streams have used, and have ended, is not free yet",
    ("v", 1): "rank {rank} sees what was there before: {place}",
    ("v", 2): "rank {rank} sees what was there before the last of several writes: {place}",
    ("m", 0): "the receive of rank {rank} gets the message of rank {place}",
}
"""By kind of point and answer, 0 for any."""


def schedule_asked(schedule: str | None) -> str | None:
    """The schedule that an option asks for; None: that of the environment (:data:`VARIABLE`), or none."""
    return os.environ.get(VARIABLE) or None if schedule is None else schedule


def schedule_of(choices: Iterable[GivenAnswer]) -> str:
    """The name of the schedule that gives these answers, and 0 elsewhere."""
    return ",".join(map(str, choices)) or DEFAULT
