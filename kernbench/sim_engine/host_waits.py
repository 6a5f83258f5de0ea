"""The waits of hosts, kept in columns: two times and a number of who waited for what, 20 bytes each."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple, overload

from kernbench.sim_engine.condition import Condition
from kernbench.sim_engine.operation import Operation


class WaitedFor(NamedTuple):
    """What a host has waited for, as a log keeps it."""

    name: str
    kind: str


HostWait = tuple[int | None, float, float, Operation | Condition | WaitedFor, int]
"""A host that waited: rank (None: main), from and until when (s), for what, and its SIP. A plain tuple: waits are many."""


class HostWaits(Sequence[HostWait]):
    """Waits in the order in which they ended.

    Attributes:
        recent: those that have come lately, as they come.
    """

    def __init__(self) -> None:
        self.recent: list[HostWait] = []
        self._times = array("d")  # two of each
        self._who = array("I")
        self._known: dict[tuple[int | None, WaitedFor, int], int] = {}

    def fold(self) -> None:
        """Put what has come lately into the columns: what was waited for need not be kept alive."""
        known = self._known
        for rank, _, _, awaited, sip in self.recent:
            key = rank, WaitedFor(awaited.name, awaited.kind), sip
            self._who.append(known.setdefault(key, len(known)))
        self._times.extend(chain.from_iterable([wait[1:3] for wait in self.recent]))
        self.recent.clear()

    def keep(self, begin: int) -> None:
        """Forget all before the one at ``begin``."""
        self.fold()
        del self._times[: 2 * begin], self._who[:begin]

    def keep_since(self, time: float) -> None:
        """Forget those that ended before ``time`` (s)."""
        self.fold()
        ends = self._times[1::2]
        kept = [at for at, end in enumerate(ends) if end >= time]
        if len(kept) < len(ends):
            self._times = array("d", chain.from_iterable([self._times[2 * at : 2 * at + 2] for at in kept]))
            self._who = array("I", [self._who[at] for at in kept])

    def __len__(self) -> int:
        return len(self._who) + len(self.recent)

    @overload
    def __getitem__(self, at: int) -> HostWait: ...
    @overload
    def __getitem__(self, at: slice) -> list[HostWait]: ...
    def __getitem__(self, at: int | slice) -> HostWait | list[HostWait]:
        if isinstance(at, slice):
            return [*self][at]
        number = at + len(self) if at < 0 else at
        if not 0 <= number < len(self):
            raise IndexError(at)
        if number >= len(self._who):
            return self.recent[number - len(self._who)]
        return self._folded(number, [*self._known])

    def __iter__(self) -> Iterator[HostWait]:
        self.fold()
        keys = [*self._known]
        return (self._folded(number, keys) for number in range(len(self._who)))

    def _folded(self, number: int, keys: Sequence[tuple[int | None, WaitedFor, int]]) -> HostWait:
        rank, what, sip = keys[self._who[number]]
        begin, end = self._times[2 * number : 2 * number + 2]
        return rank, begin, end, what, sip
