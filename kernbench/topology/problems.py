"""What is wrong with a description, said so that the reader can mend it: file, line, key path, found, expected."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kernbench.errors import ConfigError
from kernbench.input_files import shortened, shown_path

_LONGEST_KEY = 200  # characters of a key path

MOST_PROBLEMS = 20
"""Complaints about one file that are shown."""


@dataclass(frozen=True)
class Mark:
    """A place in a file: ``line`` counts from 1, ``path`` are the keys that lead there."""

    file: str
    line: int
    path: tuple[str | int, ...]

    def child(self, keys: tuple[str | int, ...]) -> Mark:
        """The place on the same line to which further ``keys`` lead."""
        return Mark(self.file, self.line, self.path + keys)

    @property
    def key(self) -> str:
        """The path as people write it: ``system.sips.count``."""
        return shortened(".".join(shortened(part) for part in self.path), _LONGEST_KEY)


@dataclass(frozen=True)
class Problem:
    """One complaint. ``hint`` is an optional further sentence (the nearest known key, where it belongs)."""

    mark: Mark
    found: str
    expected: str
    hint: str = ""

    def __str__(self) -> str:
        key = f"{self.mark.key}: " if self.mark.path else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{shown_path(self.mark.file)}:{self.mark.line}: {key}{self.found}; expected {self.expected}{hint}"


def raise_problems(problems: Iterable[Problem], *, title: str) -> None:
    """Raise one ConfigError that lists ``problems`` in the order of the file, a line each; do nothing when there are none."""
    ordered = sorted(set(problems), key=lambda each: (each.mark.file, each.mark.line, str(each)))
    if not ordered:
        return
    if len(ordered) == 1:
        raise ConfigError(str(ordered[0]))
    more = [f"  ... and {len(ordered) - MOST_PROBLEMS} more"] if len(ordered) > MOST_PROBLEMS else []
    shown = [f"  {problem}" for problem in ordered[:MOST_PROBLEMS]]
    raise ConfigError("\n".join([f"{len(ordered)} problems in {shown_path(title)}:", *shown, *more]))


def describe(value: object) -> str:
    """A value as a reader of the file would call it."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case dict():
            return "a mapping"
        case list():
            return "a list"
    if isinstance(value, int) and abs(value) >= 2**128:
        return f"a number of {value.bit_length()} bits"
    return shortened(repr(value[:80] if isinstance(value, str) else value))
