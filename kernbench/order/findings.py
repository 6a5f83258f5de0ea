"""Findings: two accesses that nothing orders, described in words.

A report has the voice of the deadlock report: what, who twice, why nothing orders them, and what would.
"""

from __future__ import annotations

import linecache
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kernbench.errors import ConfigError, RaceError, UndefinedMemoryError
from kernbench.order.strands import Strand

MODES = ("off", "warn", "error")
"""What to do about a race: nothing, collect it, or raise :class:`RaceError` at the second access."""

VARIABLE = "KERNBENCH_RACES"
"""The variable of the environment that says it for simulations which do not."""

_EXCUSE = re.compile(r"#\s*kernbench:\s*ordered\b[:,]?\s*(?P<reason>.*)")
"""A comment on a line that does one of the accesses, with the reason why they cannot meet."""


class Place(Protocol):
    """A line of the user's program."""

    @property
    def file(self) -> str:
        """Its path."""

    @property
    def line(self) -> int:
        """Its number, from 1."""


class MemoryAccess:
    """What one operation does to memory.

    Attributes:
        strand, n: who, as its n-th thing.
        name: of the operation.
        where: the line that called it.
        freed: of memory that was given back since then: where; None: it was not.
        atomic: whether it may meet others that are.
        polls: whether it is one of many looks at a word that is to change: it may meet all others.
    """

    __slots__ = ("atomic", "freed", "n", "name", "polls", "strand", "where")

    def __init__(
        self, strand: Strand, n: int, name: str, where: Place, freed: Place | None = None, *, atomic: bool = False
    ) -> None:
        self.atomic = atomic
        self.strand = strand
        self.n = n
        self.name = name
        self.where = where
        self.freed = freed
        self.polls = False

    def __str__(self) -> str:
        return f"{self.name} at {getattr(self.where, 'at', self.where)}"  # of a replay, what was captured

    def as_record(self, does: str) -> dict[str, object]:
        """As JSON has it; ``does``: what it does to the memory."""
        strand = self.strand
        replayed = getattr(self.where, "replayed", None)
        more = {} if replayed is None else {"replayed": {"file": replayed.file, "line": replayed.line}}
        return {
            "rank": strand.rank, "strand": "host" if strand.host is None else strand.name, "operation": self.name,
            "does": does, "file": self.where.file, "line": self.where.line, **more,
        }  # fmt: skip


class FoundReport(Protocol):
    """A reported finding: a :class:`Race`, or a read of unwritten memory."""

    @property
    def kind(self) -> str:
        """What it is."""

    @property
    def where(self) -> Place:
        """The line that shows it."""

    @property
    def key(self) -> tuple[Any, ...]:
        """The same for all of the same lines."""

    @property
    def excuse(self) -> str | None:
        """The reason that a comment gives why it is none; None: there is no such comment."""

    @property
    def record(self) -> dict[str, Any]:
        """As JSON has it."""


@dataclass(frozen=True, slots=True)
class RaceSide:
    """What one of the two strands of a race had done, and knew of the other, when the race was found.

    Attributes:
        accesses: its last ones, in order, the one that meets among them.
        knew: the last access of the other strand that it had waited for; None: of none, or of none that is remembered.
    """

    accesses: tuple[MemoryAccess, ...]
    knew: MemoryAccess | None


@dataclass(frozen=True, slots=True)
class Race:
    """Two accesses to the same bytes that nothing orders, of which at least one writes.

    Attributes:
        kind: ``"write after read"``, ``"read after write"`` or ``"write after write"``, in the order in which they were issued.
        what: the memory, and which part of it.
        first, second: the accesses; :attr:`first_does` and :attr:`second_does`: what they do.
        known: the last that the second knew of the first, in words.
        remedy: what would order them.
        made: where the memory was first used; empty if that is not known.
        excuse: the reason that a comment beside one of them gives; None: there is none.
        sides: of the first and the second access, for pictures.
    """

    kind: str
    what: str
    first: MemoryAccess
    second: MemoryAccess
    first_does: str
    second_does: str
    known: tuple[str, ...]
    remedy: str
    made: str
    excuse: str | None = None
    sides: tuple[RaceSide, ...] = ()

    def __str__(self) -> str:
        return "\n".join(
            [
                f"race: {self.kind} of {self.what}, and nothing orders the two.",
                f"  first:  {self.first.strand}: {self.first.name} {self.first_does} it, at {self.first.where}",
                f"  second: {self.second.strand}: {self.second.name} {self.second_does} it, at {self.second.where}",
                *(f"  {line}" for line in self.known),
                f"To order them: {self.remedy}",
                *([f"The memory: {self.made}"] if self.made else []),
            ]
        )

    @property
    def where(self) -> Place:
        """The line of the second access."""
        return self.second.where

    @property
    def key(self) -> tuple[Any, ...]:
        """The same for all races of the same two lines."""
        first, second = self.first, self.second
        return (first.where, first.name, self.first_does, second.where, second.name, self.second_does)

    @property
    def record(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "kind": self.kind, "what": self.what, "known": list(self.known), "remedy": self.remedy, "made": self.made,
            "accesses": [self.first.as_record(self.first_does), self.second.as_record(self.second_does)],
        }  # fmt: skip


@dataclass
class Races:
    """The races of one simulation, and its reads of unwritten memory.

    Args:
        mode: of :data:`MODES`. Raises :class:`ConfigError` for another.

    Attributes:
        found: one for each pair of lines, in the order in which they were found.
        excused: those beside which a comment says why they are none.
        unordered: receives accesses that nothing orders, those too that may meet; None: no listener.
    """

    mode: str = "error"
    found: list[FoundReport] = field(default_factory=list)
    excused: list[FoundReport] = field(default_factory=list)
    unordered: Callable[[MemoryAccess, MemoryAccess], None] | None = None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ConfigError(f"races={self.mode!r}: expected {', '.join(map(repr, MODES))}, or True or False")
        self._seen: dict[tuple[object, ...], int] = {}

    def add(self, race: FoundReport) -> None:
        """Note a race or a look, if they are looked for. Raises :class:`RaceError`, or :class:`UndefinedMemoryError` unless
        they are only collected, or it is excused."""
        if self.mode == "off":
            return
        seen = self._seen.get(race.key, 0)
        self._seen[race.key] = seen + 1
        if race.excuse is not None:
            if not seen:
                self.excused.append(race)
            return
        if not seen:
            self.found.append(race)
        if self.mode == "error":
            raise (RaceError if isinstance(race, Race) else UndefinedMemoryError)(str(race))

    def count(self, race: FoundReport) -> int:
        """How often the lines of a race have met."""
        return self._seen[race.key]


def mode_of(races: bool | str | None) -> str:
    """The mode that an option asks for; None: that of the environment (:data:`VARIABLE`). Raises :class:`ConfigError`."""
    if isinstance(races, bool):
        return "error" if races else "off"
    mode = os.environ.get(VARIABLE, "off") if races is None else races
    if mode not in MODES:
        asked = f"{VARIABLE}={mode}" if races is None else f"races={races!r}"
        raise ConfigError(f"{asked}: expected True, False, {', '.join(map(repr, MODES))}")
    return mode


def excuse_of(accesses: Sequence[MemoryAccess]) -> str | None:
    """The reason that a comment on a line of one of the accesses gives; None: there is no such comment, or no reason in it."""
    for access in accesses:
        for where in (access.where, getattr(access.where, "replayed", None)):
            found = None if where is None else _EXCUSE.search(linecache.getline(where.file, where.line))
            if found is not None and found["reason"].strip():
                return found["reason"].strip()
    return None
