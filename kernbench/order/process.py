"""One rank's strands: what its host launches, what its streams wait for, what it gives back.

Everything is said as the host does it, in the order of the program. An operation on a stream happens after what its host
has done or waited for, after the operation before it, and after what the stream has to wait for. A collective begins
after what the stream that it is called on has done, and ends after all its members have begun.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager

from kernbench.order.findings import MemoryAccess, Place, Race, Races, RaceSide, excuse_of
from kernbench.order.graphs import GraphOrder
from kernbench.order.regions import ByteRegion
from kernbench.order.shadow import Cell, Shadow
from kernbench.order.signal_words import joined
from kernbench.order.strands import Moment, Strand
from kernbench.order.undefined import UndefinedRead
from kernbench.order.weak import WeakMemory


class RankOrder:
    """What one rank does, and what happened before it.

    Args:
        rank: its number.
        world: of the ranks that run together.
        races: receives those that are found.
        locate: says where in the program the host is.
        weak: as the attribute.

    Attributes:
        host: the strand of its host.
        streams: those of its streams and of its groups' collectives, by name.
        one: whether streams and host are one strand still: a program without GPUs computes on the host.
        weak: says what it sees that nothing orders; None: what was written last.
        capturing: the graph that it captures now; None: it captures none.
        replaying: the one that it replays now.
    """

    def __init__(
        self, rank: int, world: object, races: Races, locate: Callable[[], Place], weak: WeakMemory | None = None
    ) -> None:
        self.rank = rank
        self.weak = weak
        self.world = world
        self.host = Strand("host", rank, world)
        self.streams: dict[str, Strand] = {}
        self.one = True
        self.capturing: GraphOrder | None = None
        self.replaying: GraphOrder | None = None
        self._locate = locate
        self._races = races
        self._returned: list[_Returned] = []
        self._posted: dict[str, Moment] = {}
        self._let_go: dict[str, set[int]] = {}
        """By strand of collectives: those whose library has let go of their memory."""

    def locate(self) -> Place:
        """Where in the program the host is; in a replay, where it captured what it replays, too."""
        return self._locate() if self.replaying is None else self.replaying.place

    def stream(self, name: str) -> Strand:
        """The strand of a stream that computes."""
        if self.replaying is not None:
            return self.replaying.strand(name)
        return self.host if self.one else self.queue(name)

    def queue(self, name: str) -> Strand:
        """The strand of a stream, also where those that compute are the host's."""
        found = self.streams.get(name)
        if found is None:
            found = self.streams[name] = Strand(name, self.rank, self.world, self.host)
        return found

    # -- what happens ------------------------------------------------------------------------------------------------

    def enqueued(self, stream: str) -> Moment:
        """The host has put an operation on a stream; gives its end."""
        strand = self.stream(stream)
        if strand.host is not None:
            strand.launched()
        strand.n += 1
        return Moment(strand, strand.n, strand.clock)

    def kernel(self, end: Moment) -> Moment:
        """An operation that has been enqueued is a kernel that signals, or waits, while it runs; gives its end."""
        end.runs = True
        if self.replaying is not None:
            end.replayed = self.replaying.place
        end.strand.pending = (*end.strand.pending, end)
        return end

    def posted(self, queue: str, stream: str) -> Moment:
        """The host, on ``stream``, has called a collective, or one side of a message, that runs on ``queue``.

        Gives its end, which is not known before all members have come: until then it says when it can begin.
        """
        caller, strand = self.stream(stream), self.queue(queue)
        if caller.host is not None:
            caller.launched()
        strand.launched()
        strand.collective = True
        strand.meet(caller.now())
        strand.n += 1
        end = Moment(strand, strand.n, strand.everything())
        end.before, self._posted[queue] = self._posted.get(queue), end
        return end

    def host_waits(self, end: Moment | None) -> None:
        """The host has waited for an operation."""
        if end is not None:
            self.host.meet(end)

    def ends(self, streams: Container[str]) -> list[Moment]:
        """The ends of all that the host has put on streams of these names by now, for :meth:`host_waits`."""
        found = []
        for name, strand in self.streams.items():
            if name not in streams:
                continue
            end = self._posted.get(strand.name) if strand.collective else strand.now()
            if end is not None:
                found.append(end)
        return found

    def stream_waits(self, stream: str, ends: Iterable[Moment | None]) -> None:
        """What is enqueued next on a stream starts after these operations."""
        strand = self.stream(stream)
        for end in ends:
            if end is not None:
                strand.meet(end)

    def stream_waits_for_work(self, stream: str, end: Moment | None) -> None:
        """As :meth:`stream_waits`, for a collective or a message: from now on its library holds no tensor of it."""
        if end is not None:
            self.stream_waits(stream, (end,))
            self._let_go.setdefault(end.strand.name, set()).add(end.n)

    def mark(self, stream: str) -> Moment:
        """An event on a stream."""
        return self.stream(stream).now()

    # -- graphs ------------------------------------------------------------------------------------------------------

    def capture(self) -> GraphOrder:
        """The host begins to capture a graph; it has ended when :attr:`capturing` is None again."""
        self.capturing = GraphOrder(self.host, self.queue, self._locate)
        return self.capturing

    @contextmanager
    def replay(self, graph: GraphOrder, stream: str) -> Iterator[None]:
        """For the length of a block, a graph is replayed on a stream."""
        self.one = False
        with graph.replaying(stream):
            self.replaying = graph
            try:
                yield
            finally:
                self.replaying = None

    # -- what is touched ---------------------------------------------------------------------------------------------

    @property
    def follows(self) -> bool:
        """Whether a listener receives what is not ordered, and no race."""
        return self._races.unordered is not None

    def of_host(self, name: str) -> MemoryAccess:
        """What the host itself does to memory now."""
        host = self.host
        host.n += 1
        return self.access(host, name)

    def access(self, strand: Strand, name: str) -> MemoryAccess:
        """What the operation does that was put on a strand last."""
        access = MemoryAccess(strand, strand.n, name, self.locate())
        strand.recent.append(access)
        return access

    def handed_out(self, shadow: Shadow, address: int) -> None:
        """A storage has been given the memory at an address: what was done to it before may not have ended."""
        if self.capturing is not None:
            return  # a graph has memory of its own
        for each in self._returned:
            each.hand_over(shadow, address)

    def returned(self, shadow: Shadow, address: int, stream: str, recorded: Collection[str]) -> None:
        """Memory has been given back to the pool of ``stream``, and may be given out again at once.

        Who used it on that stream, on one for which the pool waits (``recorded``) or that one of these has waited for, or in a
        collective that no stream has waited for, whose library holds on to it until then, is no danger.
        """
        owner = self.stream(stream)
        if self._returned:
            self._returned = [each for each in self._returned if not each.over()]
        where: Place | None = None
        for cell in shadow.cells:
            for access in cell.accesses:
                strand = access.strand if access.strand.launch is None else access.strand.launch.strand
                if strand is owner or strand.host is None or strand.world is not self.world:
                    continue
                if strand.collective and access.n not in self._let_go.get(strand.name, ()):
                    continue
                if any(name == strand.name or self.stream(name).knows(strand, access.n) for name in recorded):
                    continue
                if owner.knows(access.strand, access.n) or self.host.knows(access.strand, access.n):
                    continue
                where = self.locate() if where is None else where
                late = MemoryAccess(access.strand, access.n, access.name, access.where, where)
                self._returned.append(_Returned(late, access is cell.write, cell.region, address, owner))

    def lost(self, shadow: Shadow, stream: str) -> None:
        """The program has dropped memory that a collective or a message may use, whose library does not keep it. Raises
        RaceError."""
        strand = self.stream(stream)
        for cell in shadow.cells:
            for access in cell.accesses:
                if (
                    access.strand.collective
                    and access.strand.world is self.world
                    and not strand.knows(access.strand, access.n)
                ):
                    late = MemoryAccess(strand, strand.n, "a new .data", self.locate())
                    self.report(shadow, cell.region, access, access is cell.write, late, True, does="frees")

    def looked(self, shadow: Shadow, region: ByteRegion, access: MemoryAccess, does: str = "reads") -> None:
        """A reader to which their values matter reads bytes. Raises UndefinedMemoryError if some are unwritten (unless
        that is only collected)."""
        undefined = shadow.undefined
        if undefined is not None and undefined.any(region):
            what = _memory(shadow, region)
            origin, through = undefined.origin, undefined.through
            shadow.undefined = None  # once is enough
            self._races.add(UndefinedRead(access, does, what, origin, through, excuse_of((access, origin))))

    # -- reports -----------------------------------------------------------------------------------------------------

    def report(
        self,
        shadow: Shadow,
        region: ByteRegion,
        old: MemoryAccess,
        writes: bool,
        access: MemoryAccess,
        new_writes: bool,
        does: str = "",
    ) -> None:
        """Tell of a race (:data:`~kernbench.order.shadow.Found`). Raises RaceError, unless races are only collected.

        ``does``: what the later access does, if a word says it better than "reads" or "writes".

        Those that may meet are no race, but one of them came first.
        """
        if self._races.unordered is not None:
            self._races.unordered(old, access)
        if (old.atomic and access.atomic) or old.polls or access.polls:
            return
        did, then = ("writes" if each else "reads" for each in (writes, new_writes))
        kind = f"{then[:-1]} after {did[:-1]}"
        self._races.add(
            Race(
                kind, _memory(shadow, region), old, access, did, does or then, tuple(_knowledge(old, access)),
                _remedy(old, access), "" if shadow.made is None else f"first used by {shadow.made}", excuse_of((old, access)),
                (_side(old, access), _side(access, old)),
            )
        )  # fmt: skip


class _Returned:
    """An access to memory that was given back before the stream whose memory it is knew of it."""

    def __init__(self, access: MemoryAccess, writes: bool, region: ByteRegion, address: int, owner: Strand) -> None:
        self._access = access
        self._writes = writes
        self._lo = address + region.lo
        self._hi = address + region.hi
        self._owner = owner

    def over(self) -> bool:
        """Whether the stream whose memory it is knows of it now."""
        return self._owner.knows(self._access.strand, self._access.n)

    def hand_over(self, shadow: Shadow, address: int) -> None:
        """Let the storage that has got the memory know."""
        lo, hi = max(self._lo - address, 0), min(self._hi - address, shadow.nbytes)
        if lo < hi and not self.over():
            access = self._access
            shadow.remember(Cell(ByteRegion(lo, hi), access if self._writes else None,
                                 None if self._writes else {access.strand: access}))  # fmt: skip


def _memory(shadow: Shadow, region: ByteRegion) -> str:
    """The part of a storage that was touched, in words."""
    title, size = "memory", 1
    if shadow.tensor is not None:
        dtype, shape = shadow.tensor
        title, size = f"{str(dtype).removeprefix('torch.')} {list(shape)}", dtype.itemsize
    whole = region.dense and region.lo == 0 and region.hi >= shadow.nbytes
    part = "all" if whole else f"elements {region.lo // size} to {(region.hi - 1) // size}"
    return f"{part} of {title}, {shadow.nbytes} bytes"


_BEFORE, _BEHIND = 3, 2
"""Accesses of a strand that are kept beside the one that meets."""


def _side(access: MemoryAccess, other: MemoryAccess) -> RaceSide:
    recent: list[MemoryAccess] = [each for each in access.strand.recent if each.n != access.n]
    before, behind = ([each for each in recent if (each.n < access.n) is early] for early in (True, False))
    _, knew = _known(access.strand, other.strand)
    return RaceSide((*before[-_BEFORE:], access, *behind[:_BEHIND]), knew)


def _known(who: Strand, whom: Strand) -> tuple[int, MemoryAccess | None]:
    """How far a strand knows another, and the last access that it knows of it, if that is remembered."""
    whom = whom.threads_of or whom
    known = who.seen if whom is who.host else who.clock.get(whom, 0)
    return known, next((each for each in reversed(whom.recent) if each.n <= known), None)


def _knowledge(first: MemoryAccess, second: MemoryAccess) -> Iterable[str]:
    """The last that the second side knew of the first."""
    who, whom = second.strand, first.strand
    if who is whom:
        yield "a thread waits for the others of its program at a barrier, or where they give each other values, and not before."
        return
    known, told = _known(who, whom)
    if told is not None:
        yield f"the last of {whom} that {who.called} has waited for is {told}."
    else:
        of = whom.called if who.rank == whom.rank else whom
        yield f"{who} has waited for nothing of {of}" + (" lately." if known else ".")


def _remedy(first: MemoryAccess, second: MemoryAccess) -> str:
    """What would order two accesses, the first of which was issued before."""
    one, other = first.strand, second.strand
    if one is other:
        return (
            f"they have the same bytes at different places of their tiles, which other threads of the program hold: put "
            f"tl.debug_barrier() between {first} and {second}."
        )
    if one.threads_of is not None and other.knows(one.threads_of, first.n):
        return (
            f"one thread of the program has released what all of them have done, without waiting for them: put "
            f"tl.debug_barrier() between {first} and the release."
        )
    outer, inner = one.joins or one, other.joins or other
    if outer is not inner:  # who waits for a graph waits for where it is replayed
        one, other = outer, inner
    if first.freed is not None:
        who = f"the stream that waits for {one.called}" if one.collective else one.called
        return (
            f"its memory was given back at {first.freed} while {one.called} used it, and is used again now: call "
            f"record_stream() on the tensor for {who}, or let {other.called} wait for {who} before that."
        )
    if one.lacks_fence or other.lacks_fence:
        lacking = one if one.lacks_fence else other
        return (
            f"some threads of {lacking.called} signal, or wait, and come to no fence, which orders what its own thread does "
            f"and nothing else: let all of them come to it."
        )
    if one.rank != other.rank:
        return (
            f"{second} must wait until rank {one.rank} has come past {first}: a barrier of the two ranks in between, or a "
            f"signal that one releases and the other acquires, both with the scope of the system."
        )
    if one.launch is not None and other.launch is not None and one.launch is other.launch:
        return (
            f"programs of one launch run in any order: make both accesses atomic, or signal from {first} to {second}."
        )
    if one.collective:
        return f"call wait() on the work that {first} returned, before {second}."
    if other.collective:
        waits = f"let the current stream wait for {one.called} (wait_stream)"
        return f"call {second.name} on {one.called}, or {waits} before {second}."
    if other.host is None:
        return f"synchronize {one.called}, or an event recorded behind {first}, before {second}."
    return (
        f"let {other.called} wait for {one.called} (wait_stream, or an event recorded behind {first}) before {second}."
    )


def met(members: Sequence[Moment | None], *, sender: int | None = None) -> None:
    """All members of a collective have come (None: one that is not watched): each ends after all have begun.

    Of a message, the side with the number ``sender`` ends by itself: what it sends may be on its way before it is received.
    """
    known: dict[Strand, int] = {}
    for moment in [each for each in members if each is not None]:
        for clock in (moment.clock, {} if moment.before is None else moment.before.clock):
            for strand, n in clock.items():
                if known.get(strand, 0) < n:
                    known[strand] = n
    for number, member in enumerate(members):
        if member is not None:
            member.before = None
            if number != sender:
                member.clock = known
                member.strand.acquire(known)


def kernel_ended(end: Moment, programs: Iterable[Strand]) -> None:
    """A kernel has run: what follows it on its stream knows what its programs have learned of others."""
    known: dict[Strand, int] = {}
    for program in programs:
        known = joined(
            known,
            {
                strand: n
                for strand, n in program.clock.items()
                if strand.rank != end.strand.rank or strand.launch is None
            },
        )
    known.pop(end.strand, None)
    end.clock = joined(end.clock, joined(end.known(), known))
    end.runs, end.pending = False, ()
    for strand in end.strand.siblings:
        if end in strand.pending:
            strand.pending = tuple([each for each in strand.pending if each is not end])
            strand.clock = joined(strand.clock, {other: n for other, n in known.items() if other is not strand})
