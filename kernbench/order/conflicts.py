"""Conflicts: what of a run could have come the other way round, and would have mattered.

Accesses to the same bytes, words, or keys of a store that nothing orders, of which one changes something, and which are no
race: atomic updates, polls, looks into a store. Only where one of these came first can the next schedule differ; all other
answers lead to runs that are equivalent (Flanagan, Godefroid: Dynamic Partial-Order Reduction for Model Checking Software,
POPL 2005).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

from kernbench.order.findings import MemoryAccess
from kernbench.order.strands import Strand

_OF_KERNELS = "dkbp"


class OpenPoint(NamedTuple):
    """A point at which other answers may lead to another run.

    Attributes:
        point, number: which.
        options: how many answers there are.
        taken: the answer that was given.
        before: how many answers other than 0 had been given by then.
    """

    point: str
    number: int
    options: int
    taken: int
    before: int


class _KeyUse:
    """Who has used one key of a store."""

    def __init__(self) -> None:
        self.written: MemoryAccess | None = None
        self.times = 0
        self.read: dict[Strand, MemoryAccess] = {}


class Conflicts:
    """Follows one run.

    Attributes:
        asked: all points, in the order in which they were asked.
    """

    def __init__(self) -> None:
        self.asked: list[OpenPoint] = []
        self._names: list[Sequence[Hashable]] = []
        self._steps: dict[int, list[tuple[int, dict[Strand, int]]]] = {}
        self._pairs: dict[tuple[Hashable, Hashable], tuple[MemoryAccess, MemoryAccess]] = {}
        self._keys: dict[Hashable, _KeyUse] = {}

    def ask(self, point: str, number: int, options: Sequence[Hashable], taken: int, before: int) -> None:
        """A point has been asked (:class:`OpenPoint`), with these options."""
        self.asked.append(OpenPoint(point, number, len(options), taken, before))
        self._names.append(options)

    def step(self, host: Strand) -> None:
        """The rank with this host is about to be asked whether it goes on with its next operation."""
        come = {strand: strand.n for strand in host.siblings}
        self._steps.setdefault(host.rank, []).append((len(self.asked), come))
        host.n += 1

    def met(self, old: MemoryAccess, new: MemoryAccess) -> None:
        """Two accesses that nothing orders, in the order in which they came."""
        self._pairs.setdefault((_label(old), _label(new)), (old, new))

    def uses(self, key: Hashable, access: MemoryAccess, *, writes: bool, waits: bool = False) -> None:
        """A host looks at a key of a store, or changes it. ``waits``: until it is there, whenever that is."""
        use = self._keys.setdefault(key, _KeyUse())
        strand, last = access.strand, use.written
        if last is not None and last.strand is not strand and not (waits and use.times == 1):
            self.met(last, access)
        if not writes:
            use.read[strand] = access
            return
        for read in use.read.values():
            if read.strand is not strand:
                self.met(read, access)
        use.written, use.times, use.read = access, use.times + 1, {}

    @property
    def signature(self) -> tuple[Hashable, ...]:
        """Equal for runs in which everything that matters came in the same order."""
        values = [each for each in self.asked if each.point[0] in "mv"]
        return tuple(sorted(map(repr, self._pairs))), tuple((each.point, each.number, each.taken) for each in values)

    def open(self) -> tuple[list[OpenPoint], int]:
        """The points at which other answers may matter, and how many answers there are elsewhere."""
        of_hosts: set[int] = set()
        ranks: set[int] = set()
        for old, new in self._pairs.values():
            for side in (old, new):
                if side.strand.launch is not None:
                    ranks.add(side.strand.rank)
            if old.strand.rank != new.strand.rank:
                of_hosts.add(self._step_of(old))
        found, left = [], 0
        for at, each in enumerate(self.asked):
            kind = each.point[0]
            if (
                at in of_hosts
                or kind in "mv"
                or (kind == "h" and ranks)
                or (kind in _OF_KERNELS and _named(self._names[at], ranks))
            ):
                found.append(each)
            else:
                left += each.options - 1
        return found, left

    def _step_of(self, access: MemoryAccess) -> int:
        """The point before the operation that an access is of; -1 if there is none."""
        launch = access.strand.launch
        strand, n = (access.strand, access.n) if launch is None else (launch.strand, launch.n)
        found = -1
        for at, come in self._steps.get(strand.rank, ()):
            if come.get(strand, 0) >= n:
                break
            found = at
        return found


def _named(options: Iterable[Hashable], ranks: Iterable[int]) -> bool:
    """Whether one of the options is of a kernel of one of the ranks; parts of a launch do not say whose they are."""
    words = [str(each) for each in options]
    if any(each.startswith("those ") for each in words):
        return bool(set(ranks))
    return any(each.startswith(f"rank {rank},") for rank in ranks for each in words)


def _label(access: MemoryAccess) -> tuple[Any, ...]:
    strand = access.strand
    launch = 0 if strand.launch is None else strand.launch.n
    return strand.rank, strand.name, launch, access.n, access.name, access.where.line
