"""Which of the runnable greenlets runs next.

A policy owns the ready queue, so that the default, round robin, is a bare deque: a switch costs one ``popleft``.
Every policy is deterministic: the same seed gives the same interleaving on any host.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol

from kernbench.errors import ConfigError

Entry = tuple[Any, "BaseException | None"]
"""A greenlet to resume, and the exception to raise inside it (None: just resume)."""


class Policy(Protocol):
    """A queue of runnable greenlets."""

    def append(self, entry: Entry) -> None:
        """Add an entry that may run."""

    def popleft(self) -> Entry:
        """Remove and return the entry that runs next."""

    def clear(self) -> None:
        """Forget every entry."""

    def __len__(self) -> int: ...


class RoundRobin(deque[Entry]):
    """First come, first served: the default."""


class SeededRandom:
    """Picks uniformly among the runnable greenlets: another seed, another legal interleaving.

    Useful to find programs whose result depends on the order in which ranks happen to run.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._entries: list[Entry] = []

    def append(self, entry: Entry) -> None:
        """Add an entry that may run."""
        self._entries.append(entry)

    def popleft(self) -> Entry:
        """Remove and return any one of the entries."""
        entries = self._entries
        index = self._random.randrange(len(entries))
        entries[index], entries[-1] = entries[-1], entries[index]
        return entries.pop()

    def clear(self) -> None:
        """Forget every entry."""
        self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)


class ChosenOrder:
    """Asks who runs next.

    Args:
        pick: gives an index into the ranks that can run, which are in the order in which they became ready; -1 is a greenlet
            that is no rank's. Asked at a point that is called ``"r"``.

    Attributes:
        rank_of: the ranks of greenlets (the scheduler's).
    """

    def __init__(self, pick: Callable[[str, Sequence[Hashable]], int]) -> None:
        self.rank_of: Mapping[object, int] = {}
        self._pick = pick
        self._entries: list[Entry] = []

    @property
    def waiting(self) -> list[int]:
        """The ranks that can run."""
        return [self.rank_of.get(target, -1) for target, _ in self._entries]

    def append(self, entry: Entry) -> None:
        """Add an entry that may run."""
        self._entries.append(entry)

    def popleft(self) -> Entry:
        """Remove and return the entry that is chosen."""
        return self._entries.pop(self._pick("r", self.waiting) if len(self._entries) > 1 else 0)

    def clear(self) -> None:
        """Forget every entry."""
        self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)


def make_policy(name: str, seed: int) -> Policy:
    """Build the policy called ``name``: ``"round_robin"`` or ``"random"`` (seeded by ``seed``)."""
    if name == "round_robin":
        return RoundRobin()
    if name == "random":
        return SeededRandom(seed)
    raise ConfigError(f"unknown scheduling policy {name!r}: expected 'round_robin' or 'random'")
