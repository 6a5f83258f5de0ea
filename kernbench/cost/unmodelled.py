"""Operators that no model knows: what a run has counted by bytes alone, named once each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kernbench.plurals import counted


@dataclass(frozen=True, slots=True)
class UnmodelledOperator:
    """One of them.

    Attributes:
        name: with its namespace (``"mylib::x"``).
        calls: how many there were.
        where: file:line of the first one, empty if it is not known.
    """

    name: str
    calls: int
    where: str

    def __str__(self) -> str:
        place = f", first at {self.where}" if self.where else ""
        return f"not modelled: {self.name}, counted by its bytes ({counted(self.calls, 'call')}{place})"


class Unmodelled:
    """The operators of one simulation that no model knows, in the order in which they were met.

    Args:
        where: says where the user's program is.
    """

    def __init__(self, where: Callable[[], str] | None = None) -> None:
        self._where = where
        self._first: dict[str, str] = {}
        self._calls: dict[str, int] = {}
        self._said: dict[str, None] = {}

    def note(self, name: str) -> None:
        """One more call of an operator."""
        if name not in self._calls:
            self._first[name] = self._where() if self._where is not None else ""
        self._calls[name] = self._calls.get(name, 0) + 1

    def say(self, sentence: str) -> None:
        """Something else that is assumed or stood in for: said once."""
        self._said[sentence] = None

    def portable(self) -> Unmodelled:
        """What was met, without who says where: for another process."""
        copy = Unmodelled()
        copy._first, copy._calls, copy._said = dict(self._first), dict(self._calls), dict(self._said)
        return copy

    def add(self, others: Unmodelled) -> None:
        """Also what was met elsewhere, after it."""
        for name, calls in others._calls.items():
            self._first.setdefault(name, others._first[name])
            self._calls[name] = self._calls.get(name, 0) + calls
        self._said.update(others._said)

    def clear(self) -> None:
        """Nothing was met."""
        self._first.clear()
        self._calls.clear()
        self._said.clear()

    @property
    def sentences(self) -> tuple[str, ...]:
        """All that there is to say: a sentence for each operator, and what was said besides."""
        return (*map(str, self.operators), *self._said)

    @property
    def operators(self) -> tuple[UnmodelledOperator, ...]:
        """Those that were met, in the order of their first calls."""
        return tuple(UnmodelledOperator(name, calls, self._first[name]) for name, calls in self._calls.items())
