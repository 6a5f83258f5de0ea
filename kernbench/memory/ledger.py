"""What was allocated when, for what, and where in the program: of one process on one device.

An **entry** is a plain list, made at each allocation, where a list is a third of the price of an object; the names of its
fields are the constants below. What it was for is often known only later (a gradient, once it is one), so it is noted in the
entry when it is known, and everything else is computed on request: the ledger keeps births and deaths in order, and
what was alive at the peak follows from them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

Entry = list[Any]
EXTENT, SIZE, REQUESTED, BORN, PHASE, PLACE, CATEGORY, OWNER, DIED, DEATH_PHASE, MODULE = range(11)
"""Fields: the block while it is alive; its bytes; bytes asked for; when (s); in which phase; line of the program (None: too
small to look for); what it was for (None: not known); the module it belongs to; until when; in which phase it died; the
:class:`~kernbench.memory.modules.ModuleUse` that allocated it (None: none did, or too small to look for)."""

PARAMETERS, BUFFERS, GRADIENTS, OPTIMIZER, UNSHARDED, COMMUNICATION, ACTIVATIONS, TEMPORARIES, WORKSPACES = CATEGORIES = (
    "parameters", "buffers", "gradients", "optimizer state", "unsharded parameters", "communication buffers", "activations",
    "temporaries", "workspaces",
)  # fmt: skip

FORWARD, BACKWARD, STEP = range(3)
"""What a program does: backward passes, steps of optimizers, and all else. A phase is a number whose remainder by
:data:`PHASES` is one of these, and which no other stretch of the program has."""
PHASES = 4

KEPT = 1 << 20
"""Births and deaths that are kept in order; older ones are forgotten, a quarter at a time."""


def next_phase(phase: int, kind: int) -> int:
    """The phase that follows ``phase``."""
    return (phase // PHASES + 1) * PHASES + kind


def category_of(entry: Entry) -> str:
    """What an allocation was for. What is unclaimed is classified by when it lived: what a forward pass leaves behind are
    activations, the rest temporaries."""
    found: str | None = entry[CATEGORY]
    if found is not None:
        return found
    if entry[PHASE] % PHASES == FORWARD and entry[DEATH_PHASE] != entry[PHASE]:
        return ACTIVATIONS
    return TEMPORARIES


def claim(entry: Entry | None, category: str, owner: str | None = None) -> None:
    """Note what an allocation is for. The first to know is believed, but for communication: anything may take part in that."""
    if entry is not None:
        if entry[CATEGORY] in (None, COMMUNICATION):
            entry[CATEGORY] = category
        if owner is not None and entry[CATEGORY] == category:
            entry[OWNER] = owner


@dataclass(frozen=True)
class Composition:
    """What memory was in use for.

    Attributes:
        total: bytes.
        categories: bytes by category, largest first.
        places: bytes by line of the program, largest first; None: allocations too small to look for.
        owners: bytes by module, largest first: of what is known to belong to one, and of activations and temporaries that one
            allocated (in a backward pass: the one whose forward pass is gone through).
        activations: of activations alone, bytes by the module that allocated them.
    """

    total: int
    categories: dict[str, int]
    places: dict[Any, int]
    owners: dict[str, int]
    activations: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Composition:
        """Sum up allocations."""
        categories: Counter[str] = Counter()
        places: Counter[Any] = Counter()
        owners: Counter[str] = Counter()
        activations: Counter[str] = Counter()
        for entry in entries:
            size, category, module = entry[SIZE], category_of(entry), entry[MODULE]
            categories[category] += size
            places[entry[PLACE]] += size
            if entry[OWNER] is not None:
                owners[entry[OWNER]] += size
            elif module is not None and category in (ACTIVATIONS, TEMPORARIES):
                owners[module.name] += size
                if category == ACTIVATIONS:
                    activations[module.name] += size
        sums = (categories, places, owners, activations)
        return cls(sum(categories.values()), *(dict(each.most_common()) for each in sums))


class Ledger:
    """Births and deaths of one process's allocations on one device.

    Attributes:
        rank: whose they are, None for main.
        sip: the device.
        events: each allocation when it was born, and again when it died.
        peak: most bytes that were in use at one time.
        peak_time: when, s.
        peak_step: which step of the optimizer it was in, counted from 0.
        peak_place: line of the program whose allocation reached it.
    """

    def __init__(self, rank: int | None, sip: int) -> None:
        self.rank = rank
        self.sip = sip
        self.events: list[Entry] = []
        self.peak = 0
        self.peak_time = 0.0
        self.peak_step = 0
        self.peak_place: object = None
        self._peak_length = 0
        self._at_peak: dict[int, Entry] | None = None
        self._before: dict[int, Entry] = {}

    def __getstate__(self) -> dict[str, Any]:
        """For another process: entries by themselves, without the blocks that are alive here."""
        state = dict(vars(self))
        kept = {id(entry): [None, *entry[1:]] for entry in (*self.events, *self._before.values())}
        at_peak = None if self._at_peak is None else list(self._at_peak)
        kept.update({key: [None, *entry[1:]] for key, entry in (self._at_peak or {}).items() if key not in kept})
        state["events"] = [kept[id(entry)] for entry in self.events]
        state["_before"] = [kept[key] for key in self._before]
        state["_at_peak"] = None if at_peak is None else [kept[key] for key in at_peak]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        for name in ("_before", "_at_peak"):
            if state[name] is not None:
                setattr(self, name, {id(entry): entry for entry in state[name]})

    def reach(self, peak: int) -> None:
        """More is in use than ever, now that the last event has happened."""
        self.peak = peak
        self._peak_length = len(self.events)
        self._at_peak = None

    def alive(self) -> list[Entry]:
        """What is in use."""
        return list(self._replay(len(self.events)).values())

    def at_peak(self) -> list[Entry]:
        """What was in use when most was."""
        if self._at_peak is not None:
            return list(self._at_peak.values())
        return list(self._replay(self._peak_length).values())

    def _replay(self, length: int) -> dict[int, Entry]:
        alive = dict(self._before)
        for entry in self.events[:length]:
            key = id(entry)
            if alive.pop(key, None) is None:
                alive[key] = entry
        return alive

    def forget(self) -> None:
        """Drop the oldest quarter, if there are too many."""
        if len(self.events) < KEPT:
            return
        count = KEPT // 4
        if self._at_peak is None and self._peak_length < count:
            self._at_peak = self._replay(self._peak_length)
        self._before = self._replay(count)
        del self.events[:count]
        self._peak_length -= count

    def changes(self) -> Iterator[tuple[float, Entry, int]]:
        """When, which, and by how many bytes: in order."""
        alive = dict(self._before)
        for entry in alive.values():
            yield entry[BORN], entry, entry[SIZE]
        for entry in self.events:
            if alive.pop(id(entry), None) is None:
                alive[id(entry)] = entry
                yield entry[BORN], entry, entry[SIZE]
            else:
                yield entry[DIED], entry, -entry[SIZE]
