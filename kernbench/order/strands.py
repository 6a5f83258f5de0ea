"""Strands and clocks: what happens before what.

A **strand** is what runs in order by itself: the host of a rank, a stream, the side of a group's collectives, a program of a
launch. It counts what it does, and knows of each other strand how far that one had come when they last met: its **clock**. What
a strand did as its n-th thing happened before another's next one exactly if the other's clock says at least n.

The clocks are vector clocks with epochs (Flanagan, Freund: FastTrack, PLDI 2009): an access is remembered as (strand, n), so
that a comparison is one look-up. A clock is a dictionary that is replaced and never changed: a holder of a moment keeps
the one of then. Every launch tells a stream how far its host is, which would be a new dictionary each; the host's part is a
number of its own, therefore.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import Any

_RECENT = 32
"""Accesses of a strand that are kept to say what another one knew of it last."""


class Strand:
    """What happens one after the other.

    Attributes:
        name: ``"host"``, or the name of the stream.
        rank: whose it is.
        world: of the ranks that run together; what an earlier world did has ended.
        collective: whether it is the side of a group's collectives, or of messages.
        host: the strand of the host that launches what is on this one; None: it is one.
        n: things that it has done.
        clock: how far others had come, as far as it knows, but its own host.
        seen: how far its host had.
        told: the host's clock as it was when it launched something here last.
        recent: its last accesses, for reports.
        siblings: all strands of this rank, this one too; programs are not among them.
        launch: of a program: the end of its launch, before which all happens that it does.
        fenced: what a program knew at the last fence that all its threads came to.
        threads_of: of what threads of a program did that one of them has not released: the program; None: it is no such strand.
        pending: kernels after which it comes and which have not run: what they learn of others, it will know.
        joins: of a branch of a graph: the stream on which that was replayed last; None: it is no branch.
    """

    __slots__ = (
        "_fenced_by", "_signals_unfenced", "_unfenced", "clock", "collective", "fenced", "host", "joins", "launch", "n", "name",
        "pending", "rank", "recent", "seen", "siblings", "threads_of", "told", "world",
    )  # fmt: skip

    def __init__(
        self, name: str, rank: int, world: object, host: Strand | None = None, launch: Moment | None = None
    ) -> None:
        self.name = name
        self.rank = rank
        self.world = world
        self.collective = False
        self.host = host
        self.n = 0
        self.clock: Mapping[Strand, int] = {}
        self.seen = 0
        self.told: Mapping[Strand, int] | None = None
        self.recent: deque[Any] = deque(maxlen=_RECENT)
        self.launch = launch
        self.fenced: Mapping[Strand, int] | None = None
        self._signals_unfenced = False
        self._fenced_by: dict[int, Mapping[Strand, int]] = {}
        self._unfenced: list[tuple[int, Mapping[Strand, int]]] = []
        self.pending: tuple[Moment, ...] = ()
        self.siblings: list[Strand] = []
        self.threads_of: Strand | None = None
        self.joins: Strand | None = None
        if launch is not None:
            self.siblings = launch.strand.siblings
            self.clock = {**launch.known(), launch.strand: launch.n - 1}
            return
        if host is not None:
            self.siblings = host.siblings
        self.siblings.append(self)
        if host is not None:
            self.launched()

    def launched(self) -> None:
        """The host puts something here: it happens after all that the host has done, or knows of."""
        host = self.host
        assert host is not None
        self.seen = host.n
        if self.told is not host.clock:
            self.told = host.clock
            self.acquire(host.clock)
        if host.pending:
            self.await_kernels(host.pending)

    def knows(self, other: Strand, n: int) -> bool:
        """Whether the ``n``-th thing that ``other`` did happened before what this strand does now."""
        if other is self:
            return True
        if other is self.host:
            return self.seen >= n
        if self.clock.get(other, 0) >= n:
            return True
        launch = other.launch
        return launch is not None and (other.threads_of is self or self.knows(launch.strand, launch.n))

    def acquire(self, clock: Mapping[Strand, int]) -> None:
        """What this strand does from now on happens after what a clock says."""
        mine = self.clock
        if clock is mine:
            return
        news = {}
        for other, n in clock.items():
            if other is self:
                continue
            if other is self.host:
                self.seen = max(self.seen, n)
            elif mine.get(other, 0) < n:
                news[other] = n
        if news:
            self.clock = {**mine, **news}

    def meet(self, moment: Moment) -> None:
        """What this strand does from now on happens after a moment of another one."""
        if moment.strand is not self:
            self.acquire(moment.clock)
            self.acquire({moment.strand: moment.n})
            if moment.pending or moment.runs:
                self.await_kernels((*moment.pending, moment) if moment.runs else moment.pending)

    def await_kernels(self, kernels: Iterable[Moment]) -> None:
        """It comes after kernels, some of which have not run yet."""
        for kernel in kernels:
            if not kernel.runs:
                self.acquire(kernel.clock)
            elif kernel not in self.pending:
                self.pending = (*self.pending, kernel)

    def heard(self, known: Mapping[Strand, int], thread: int) -> None:
        """A thread of a program has seen something without learning what came before it, unless a fence of its own follows."""
        self._unfenced.append((thread, known))

    def fence(self, threads: Collection[int] | None = None) -> None:
        """Threads of a program, None: all, order what it has done before what they do now."""
        left = []
        for thread, known in self._unfenced:
            if threads is None or thread in threads:
                self.acquire(known)
            else:
                left.append((thread, known))
        self._unfenced = left
        everything = self.everything()
        if threads is None:
            self.fenced = everything
            self._fenced_by.clear()
        else:
            self._fenced_by.update(dict.fromkeys(threads, everything))
        self.n += 1

    def relaxed(self, thread: int) -> Mapping[Strand, int] | None:
        """A thread of a program signals: gives what that knew at the thread's last fence; None: it has come to none."""
        if self._fenced_by and thread not in self._fenced_by:
            self._signals_unfenced = True
        return self._fenced_by.get(thread, self.fenced)

    @property
    def lacks_fence(self) -> bool:
        """Whether some of a program's threads have signalled, or heard, without a fence that others of them have come to."""
        return self._signals_unfenced or bool(self._fenced_by and self._unfenced)

    def now(self) -> Moment:
        """How far it has come."""
        return Moment(self, self.n, self.clock)

    def everything(self) -> dict[Strand, int]:
        """How far each host and strand had come, as far as it knows: for strands of other ranks."""
        known = {**self.clock, self: self.n}
        if self.host is not None:
            known[self.host] = max(known.get(self.host, 0), self.seen)
        return known

    def __repr__(self) -> str:
        return f"<{self} at {self.n}>"

    def __str__(self) -> str:
        return f"rank {self.rank}, {self.called}"

    @property
    def called(self) -> str:
        """What reports call it."""
        if self.launch is not None:
            return self.name
        if self.host is None:
            return "host"
        if self.name.startswith("compute"):  # that of another GPU than the rank's own goes on
            return self.name.replace("compute", "the default stream", 1)
        return f"collectives ({self.name})" if self.collective else self.name


class Moment:
    """A strand as it was once: what an event, a stream's last operation, or the end of a collective stand for.

    Attributes:
        strand, n: what had been done by then.
        clock: what was known by then. Of a collective, what all members knew when they began, once all have come.
        before: of a collective, the one before it on its side, until all members have come.
        pending: kernels before it that had not run.
        runs: whether it is the end of a kernel that has not run yet.
        seen: how far the host of its strand had come.
        replayed: of a kernel of a graph: where it was captured, and where that is replayed; None: it is in no graph.
    """

    __slots__ = ("before", "clock", "n", "pending", "replayed", "runs", "seen", "strand")

    def __init__(self, strand: Strand, n: int, clock: Mapping[Strand, int]) -> None:
        self.strand = strand
        self.n = n
        self.clock = clock
        self.seen = strand.seen
        self.pending = strand.pending
        self.runs = False
        self.replayed: Any = None
        self.before: Moment | None = None

    def known(self) -> dict[Strand, int]:
        """What is known when it begins: by the stream when it was launched, and by the kernels before it."""
        known = dict(self.clock)
        for kernel in self.pending:
            known.update({strand: n for strand, n in kernel.clock.items() if known.get(strand, 0) < n})
        host = self.strand.host
        if host is not None:
            known[host] = max(known.get(host, 0), self.seen)
        return known
