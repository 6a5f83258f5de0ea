"""Conflicts: what of a run could have come the other way round, and would have mattered.

Accesses to the same bytes, words, or keys of a store that nothing orders, of which one changes something, and which are no
race: atomic updates, polls, looks into a store. Only where one of these came first can the next schedule differ; all other
answers lead to runs that are equivalent (Flanagan, Godefroid: Dynamic Partial-Order Reduction for Model Checking Software,
POPL 2005).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple

from kernbench.order.findings import MemoryAccess
from kernbench.order.strands import Strand

_OF_KERNELS = "dkbp"


MetPair = tuple[str, str]
"""Two accesses that nothing orders, in the order in which they came: each by rank, strand, count, operation and line."""


class OpenPoint(NamedTuple):
    """A point at which other answers may lead to another run.

    Attributes:
        point, number: which.
        options: how many answers there are.
        taken: the answer that was given.
        before: how many answers other than 0 had been given by then.
        turns: what another answer is to turn round, if that is all that it is for.
        reached: how far ranks had come by then, where it is for that.
    """

    point: str
    number: int
    options: int
    taken: int
    before: int
    turns: tuple[MetPair, ...] = ()
    reached: frozenset[tuple[str, int]] = frozenset()


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
        self._pairs: dict[MetPair, tuple[MemoryAccess, MemoryAccess]] = {}
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
    def pairs(self) -> frozenset[MetPair]:
        """What has met."""
        return frozenset(self._pairs)

    @property
    def signature(self) -> tuple[Hashable, ...]:
        """Equal for runs in which everything that matters came in the same order."""
        values = [each for each in self.asked if each.point[0] in "mv"]
        return tuple(sorted(self._pairs)), tuple((each.point, each.number, each.taken) for each in values)

    def open(self) -> tuple[list[OpenPoint], int]:
        """The points at which other answers may matter, and how many answers there are elsewhere."""
        of_hosts: dict[int, list[MetPair]] = {}
        ranks: set[int] = set()
        for pair, (old, new) in self._pairs.items():
            for side in (old, new):
                if side.strand.launch is not None:
                    ranks.add(side.strand.rank)
            if old.strand.rank != new.strand.rank:
                for at in self._before(old):
                    of_hosts.setdefault(at, []).append(pair)
        found, left = [], 0
        reached = Counter[str]()
        for at, each in enumerate(self.asked):
            kind = each.point[0]
            if at in of_hosts:
                found.append(each._replace(turns=tuple(of_hosts[at]), reached=frozenset(reached.items())))
            elif kind in "mv" or (kind == "h" and ranks) or (kind in _OF_KERNELS and _named(self._names[at], ranks)):
                found.append(each)
            else:
                left += each.options - 1
            if kind == "w":
                reached[each.point] += 1
        return found, left

    def _before(self, access: MemoryAccess) -> Iterator[int]:
        """The points at which the operation that an access is of could have been put off: before it, and, where its rank has
        let others go first, where it was that rank's turn again."""
        step, rank = self._step_of(access), access.strand.rank
        yield step
        if step < 0 or not self.asked[step].taken:
            return
        for at in range(step + 1, len(self.asked)):
            each = self.asked[at]
            if each.point == f"w{rank}":
                return
            if each.point == "r" and self._names[at][each.taken] == rank:
                yield at

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


def _named(options: Iterable[Hashable], ranks: Collection[int]) -> bool:
    """Whether one of the options is of a kernel of one of the ranks; parts of a launch do not say whose they are."""
    words = [str(each) for each in options]
    if any(each.startswith("those ") for each in words):
        return bool(ranks)
    return any(each.startswith(f"rank {rank},") for rank in ranks for each in words)


def _label(access: MemoryAccess) -> str:
    strand = access.strand
    launch = 0 if strand.launch is None else strand.launch.n
    return f"{strand.rank}, {strand.name}, {launch}, {access.n}, {access.name}, {access.where.line}"
