"""Folding: ranks that do the same are run once.

In a large job most ranks do what others do: replicas and shards of data parallelism, places of tensor parallelism. Of each
class of such ranks one, the *representative*, runs; the others are its *stand-ins*: they take part in collectives when it
does. Groups keep their true members and places on the fabric.

Classes come from the process groups that the program makes. Those of a mesh are *axes*: a stride and a size, as the members of
rank 0's group have them. The rank that is first on every axis logs, saves and has whole shards: it runs, and so does the one
that is last on all, which has what is left of the shards and stands for all others. An axis whose members send each other
messages (the stages of a pipeline, a ring of context parallelism) is not folded: that is so for each of its places.

Rank 0 finds the axes out beforehand: it runs alone up to the end of its first optimizer step (the *scout*), while all others
stand in for it, and whatever it prints is dropped.

A stand-in brings what its representative brings, which says nothing of what it would bring itself. A call whose answer is that
(an object that a rank broadcasts, objects or known values that are gathered) runs those ranks too: the *roots* of such
broadcasts and scatters, at their place in the group of each rank that runs, and all places of an axis that is gathered over.
What the scout has not seen is refused (:meth:`Folding.need`), or said (:meth:`Folding.taken_for`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import NamedTuple

from kernbench.errors import ConfigError, KernbenchError
from kernbench.simulation.ranks.rank_spans import named, spans

MOST_STEPPED = 1 << 16
"""Transfers up to which collectives among folded ranks are stepped through; larger ones take their closed form."""


_ALIKE = 0.01
"""Share by which the compute of ranks that are taken to do the same may differ before it is said."""


class Axis(NamedTuple):
    """One dimension of the mesh that the ranks form: places are ``stride`` ranks apart."""

    stride: int
    size: int

    def place(self, rank: int) -> int:
        """Where a rank is on it."""
        return rank // self.stride % self.size

    @classmethod
    def of(cls, ranks: Sequence[int]) -> Axis | None:
        """The axis along which a group lies; None if its members are not equally far apart."""
        if len(ranks) < 2:
            return None
        stride = ranks[1] - ranks[0]
        return cls(stride, len(ranks)) if stride > 0 and tuple(ranks) == tuple(
            range(ranks[0], ranks[0] + stride * len(ranks), stride)
        ) else None  # fmt: skip


class ScoutEndedError(KernbenchError):
    """Rank 0 has seen what it was to find out."""


class StandInNeededError(KernbenchError):
    """A rank wants something of a rank that does not run, which no other rank can do for it."""


def chosen_ranks(text: str, world: int) -> str | tuple[int, ...]:
    """``"auto"``, ``"all"``, or ranks as ``"0,8-11"``. Raises :class:`ConfigError` for what is neither or not in the world."""
    if text in ("auto", "all"):
        return text
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        try:
            begin, end = int(first), int(last or first)
        except ValueError:
            raise ConfigError(f"ranks {text!r}: expected auto, all, or ranks such as 0,8-11") from None
        if end < begin:
            raise ConfigError(f"ranks {text!r}: {part.strip()} are none; the lower rank comes first")
        if end >= world:  # before a range is counted out
            raise ConfigError(f"ranks {text!r}: rank {max(begin, world)} is not one of a world of {world}")
        found.update(range(begin, end + 1))
    return tuple(sorted(found))


@dataclass(eq=False)
class Folding:
    """Which ranks of a world run, and who stands in for whom.

    Attributes:
        world: number of ranks.
        live: those that run.
        axes: of the program's groups, as far as they are known.
        unfolded: axes all of whose places run.
        scouting: whether this run is to find out the axes.
        strange: members of groups of rank 0 that are no axis.
        roots: places on axes whose ranks give what only they have; :attr:`required` are such ranks themselves.
        calls: what needs ranks that would not run, or takes others for them, in words.
    """

    world: int
    live: tuple[int, ...]
    axes: frozenset[Axis] = frozenset()
    unfolded: frozenset[Axis] = frozenset()
    scouting: bool = False
    strange: set[tuple[int, ...]] = field(default_factory=set)
    roots: frozenset[tuple[Axis, int]] = frozenset()
    required: frozenset[int] = frozenset()
    calls: dict[str, None] = field(default_factory=dict)
    _alive: frozenset[int] = field(init=False, repr=False)
    _by_class: dict[tuple[int, ...], int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._alive = frozenset(self.live)
        self._by_class = {self._class_of(rank): rank for rank in self.live}
        self._seen: set[Axis] = set(self.axes)
        self._needed: set[Axis] = set()
        self._roots = set(self.roots)
        self._required = set(self.required)
        self._met_absent = False
        self._own: set[tuple[int, ...]] = set()
        self._asked_for: dict[tuple[int, ...], str] = {}

    # -- who runs ----------------------------------------------------------------------------------------------------

    def runs(self, rank: int) -> bool:
        """Whether ``rank`` runs."""
        return rank in self._alive

    def _class_of(self, rank: int) -> tuple[int, ...]:
        places = [axis.place(rank) for axis in sorted(self.axes) if axis in self.unfolded]
        return (*places, int(any(axis.place(rank) for axis in self.axes if axis not in self.unfolded)))

    def representative(self, rank: int) -> int:
        """Who runs in the place of ``rank``."""
        if rank in self._alive:
            return rank
        found = self._by_class.get(self._class_of(rank))
        return self.live[-1] if found is None else found

    def stands_for(self, rank: int) -> int:
        """How many ranks, with itself, do what a rank that runs does, if it runs for others; else 1."""
        if all(other == rank or self.representative(other) != rank for other in range(self.world)):
            return 1
        place = self._class_of(rank)[:-1]
        return sum(self._class_of(other)[:-1] == place for other in range(self.world))

    def players(self, members: Sequence[int]) -> tuple[int, ...] | None:
        """Who takes part in a group for each of its members; None if all run, or none."""
        running = [rank for rank in members if rank in self._alive]
        if not running or len(running) == len(members):
            return None
        inside = set(running)
        return tuple([player if (player := self.representative(rank)) in inside else running[-1] for rank in members])

    # -- what a run finds out ----------------------------------------------------------------------------------------

    def made(self, members: Sequence[int]) -> None:
        """A group was made, by a rank that is one of its members."""
        if not self.scouting or len(members) in (1, self.world) or 0 not in members:
            return
        self._own.add(tuple(members))
        axis = Axis.of(members)
        if axis is None:
            self.strange.add(tuple(members))
        else:
            self._seen.add(axis)

    def asked_for(self, members: Sequence[int], what: str) -> None:
        """A rank has made a group of ``members``, of which it need not be one."""
        if self.scouting and len(members) > 1 and 0 not in members:
            self._asked_for.setdefault(tuple(members), what)

    def _require_unlike(self) -> None:
        """Groups that are not laid out as one of rank 0's: what their members do in them no representative does."""
        for members, what in self._asked_for.items():
            if tuple([rank - members[0] for rank in members]) not in self._own:
                self._required.update(members)
                self.calls.setdefault(f"{what} is of {named(members)}, as rank 0 has none: its members run, too")

    def need(self, rank: int, members: Sequence[int], what: str) -> None:
        """``rank`` wants something of ``members``, some of which may not run.

        Raises :class:`StandInNeededError` if one does not.
        """
        missing = [each for each in members if each not in self._alive]
        if not missing:
            return
        if self.scouting:
            self._needed.add(self._between(rank, missing[0]))
            raise ScoutEndedError("the scout has met a rank that must run")
        raise self._refused(rank, missing, what)

    def need_root(self, rank: int, root: int, members: Sequence[int], what: str) -> None:
        """``rank`` gets what ``root``, of the group of ``members``, alone has. Raises as :meth:`need` does."""
        if self.scouting:
            axis = Axis.of(members)
            if axis is None:
                self._required.add(root)
            elif (axis, axis.place(root)) not in self._roots:
                self._roots.add((axis, axis.place(root)))
        if root in self._alive:
            return
        if self.scouting:
            self._scouted(f"{what} gives what rank {root} has: the ranks at its place run, too")
        raise self._refused(rank, [root], what)

    def need_all(self, rank: int, members: Sequence[int], what: str) -> None:
        """``rank`` gets what each of a group's ``members`` alone has. Raises as :meth:`need` does."""
        missing = [each for each in members if each not in self._alive]
        if not missing:
            return
        if self.scouting:
            axis = Axis.of(members)
            if axis is None:
                self._required.update(members)
            else:
                self._needed.add(axis)
            self._scouted(f"{what} tells what each of {len(members)} ranks has: all of them run")
        raise self._refused(rank, missing, what)

    def taken_for(self, rank: int, members: Sequence[int], what: str) -> None:
        """``rank`` gets known values of ``members``, of which those that do not run have their representatives'."""
        missing = [each for each in members if each not in self._alive]
        if missing and not self.scouting:
            self.calls.setdefault(
                f"{what}: {named(missing)}, not run, {'is' if len(missing) == 1 else 'are'} taken to have the values of "
                f"{named(sorted(set(map(self.representative, missing))))}; --ranks runs others, too"
            )

    def _scouted(self, reason: str) -> None:
        self.calls.setdefault(reason)
        self._met_absent = True
        raise ScoutEndedError("the scout has met a rank that must run")

    def _refused(self, rank: int, missing: Sequence[int], what: str) -> StandInNeededError:
        wanted = sorted({*self.live, *missing})
        shown = "all" if len(wanted) == self.world else ",".join(spans(wanted))
        others = "" if shown == "all" else ", or all of them (--ranks all)"
        return StandInNeededError(
            f"{what} of rank {rank} needs {named(missing)}, which {'is' if len(missing) == 1 else 'are'} not run: "
            f"{named(sorted(set(map(self.representative, missing))))} stands in. Run what is needed: --ranks {shown}{others}"
        )

    def _between(self, one: int, other: int) -> Axis:
        """The shortest axis on which the places of two ranks differ, and nothing else does."""
        whole = Axis(1, self.world)
        along = [
            axis for axis in self._seen if axis.place(one) != axis.place(other) and (one - other) % axis.stride == 0
            and one // (axis.stride * axis.size) == other // (axis.stride * axis.size)
        ]  # fmt: skip
        return min(along, key=lambda axis: axis.size, default=whole)

    def refined(self) -> Folding:
        """What is known after this run: another scout if something is missing, else the folding to run with."""
        self._require_unlike()
        axes = self._seen or {Axis(1, self.world)}
        unfolded = self.unfolded | self._needed
        axes |= unfolded
        if self._needed - self.unfolded or self._met_absent:
            places = [range(axis.size) for axis in sorted(unfolded)]
            live = {
                sum(place * axis.stride for place, axis in zip(each, sorted(unfolded), strict=True))
                for each in product(*places)
            }
            return self._next(live & set(range(self.world)), axes, unfolded, scouting=True)
        if self.strange and not all(_is_block(members, axes) for members in self.strange):
            return self._next(set(range(self.world)), frozenset(), frozenset())
        if prod(axis.size for axis in axes) < self.world:
            axes.add(Axis(1, self.world))
        plain = Folding(self.world, (0,), frozenset(axes), frozenset(unfolded))
        last = {plain._class_of(rank): rank for rank in range(self.world)}
        return self._next(set(last.values()), axes, unfolded)

    def _next(
        self, live: set[int], axes: Iterable[Axis], unfolded: Iterable[Axis], *, scouting: bool = False
    ) -> Folding:
        """A folding in which ``live`` run, and who gives what they alone have."""
        live = live | self._required
        while True:  # a root is a member of groups of its own, which have roots
            found = {rank + (place - axis.place(rank)) * axis.stride for rank in live for axis, place in self._roots}
            if found <= live:
                break
            live |= found
        return Folding(
            self.world, tuple(sorted(live)), frozenset(axes), frozenset(unfolded), scouting, roots=frozenset(self._roots),
            required=frozenset(self._required), calls=self.calls,
        )  # fmt: skip

    def unlike(self, seconds: Mapping[int, float]) -> Iterator[str]:
        """What to say of representatives of one place that do not take the same, so that it matters who stands for whom.

        Args:
            seconds: that each rank which has run has computed.
        """
        by_place: dict[tuple[int, ...], list[int]] = {}
        for rank in self.live:
            if self._by_class[self._class_of(rank)] != rank:
                continue  # a root stands for itself alone
            by_place.setdefault(self._class_of(rank)[:-1], []).append(rank)
        for first, *others in by_place.values():
            for other in others:
                low, high = sorted((seconds.get(first, 0.0), seconds.get(other, 0.0)))
                if high - low > _ALIKE * high:
                    yield (
                        f"not the same: rank {first} computes for {seconds[first] * 1e3:.4g} ms, and rank {other}, which "
                        f"stands for the others of its place, for {seconds[other] * 1e3:.4g} ms; --ranks runs others, too"
                    )

    # -- what is said ------------------------------------------------------------------------------------------------

    def __str__(self) -> str:
        shown = ", ".join(map(str, self.live[:12])) + (", ..." if len(self.live) > 12 else "")
        axes = ", ".join(
            f"{axis.size} ranks {axis.stride} apart{' (not folded)' if axis in self.unfolded else ''}"
            for axis in sorted(self.axes)
        )
        return f"ran {len(self.live)} of {self.world} ranks ({shown}); the others were taken to do what these do" + (
            f", by the program's groups: {axes}" if axes else ""
        )


def _is_block(members: Sequence[int], axes: Iterable[Axis]) -> bool:
    """Whether a group with rank 0 is all the places of some axes together."""
    inside = set(members)
    own = [axis for axis in axes if axis.stride in inside and all(n * axis.stride in inside for n in range(axis.size))]
    reached = {0}
    for axis in own:
        reached = {rank + place * axis.stride for rank in reached for place in range(axis.size)}
    return reached == inside
