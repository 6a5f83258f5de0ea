"""What the members of a process group share, and the collectives that they post."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from kernbench.ccl.reduce_op import spelled
from kernbench.collective_kinds import KINDS
from kernbench.cost.peer_access import FEW_BLOCKS
from kernbench.errors import CollectiveMismatchError, ConfigError
from kernbench.sim_engine.interference import Load
from kernbench.sim_engine.operation import COMM_STREAM, Operation
from kernbench.sim_engine.plan_run import PlanRun
from kernbench.simulation.ranks.folding import Folding
from kernbench.simulation.ranks.locations import Location
from kernbench.simulation.values.collective_cells import Cells
from kernbench.simulation.values.collective_values import Brought

USES = (("{}", "{}"), ("{} (monitored)", "{}"), ("symmetric memory of {}", "{} symm_mem"))
"""What the members of a group communicate for, each with a communicator of its own: its name and stream, by the group's."""

_MONITORS, _PEERS = 1, 2

_MOST_PLANS = 4096
"""Signatures of a group's calls that are remembered."""


class Signature(NamedTuple):
    """What must agree between the members of a collective.

    Attributes:
        blocks: of a kernel whose ranks read each other's buffers, of 512 threads each.
    """

    op: str
    shape: tuple[int, ...] | None
    dtype: torch.dtype | None
    reduction: str | None
    root: int | None
    algorithm: str
    blocks: int = FEW_BLOCKS

    def __str__(self) -> str:
        parts = [] if self.shape is None else [f"shape {self.shape}"]
        if self.dtype is not None:
            parts.append(str(self.dtype).removeprefix("torch."))
        if self.reduction is not None:
            parts.append(f"op {spelled(self.reduction)}")
        if self.root is not None:
            parts.append(f"root {self.root}")
        parts.append(f"algorithm {self.algorithm}")
        return f"{self.op}({', '.join(parts)})"

    def as_words(self, location: Location) -> dict[str, str]:
        """Operation, arguments and line of a call, by name."""
        reduction = None if self.reduction is None else spelled(self.reduction)
        given = {"shape": self.shape, "dtype": self.dtype, "reduction": reduction, "root": self.root}
        words = {name: str(value).removeprefix("torch.") for name, value in given.items() if value is not None}
        return {"operation": self.op, **words, "algorithm": self.algorithm, "at": str(location)}

    def agrees(self, other: Signature) -> bool:
        """Whether two members may call these: axes of one element do not change where the others are in memory."""
        return self == other or self._replace(shape=_long_axes(self.shape)) == other._replace(
            shape=_long_axes(other.shape)
        )

    def differences(self, other: Signature) -> list[str]:
        """What differs, in words."""
        return [name for name, mine, theirs in zip(self._fields, self, other, strict=True) if mine != theirs]


def _long_axes(shape: tuple[int, ...] | None) -> tuple[int, ...] | None:
    return None if shape is None else tuple([size for size in shape if size != 1])


class CallPlan:
    """What all calls of one signature on one group have in common: made by the first of them, shared by the members.

    Attributes:
        group, signature: whose calls these are.
        cells: signatures that make up a member's work buffer.
        loads: what they take from the kernels beside them, by the elements of the work buffer.
    """

    __slots__ = ("_sums_up", "cells", "group", "loads", "signature")

    def __init__(self, group: Communicator, signature: Signature) -> None:
        kind = KINDS[signature.op]
        self.group = group
        self.signature = signature
        self.cells = kind.chunks(group.size)
        self.loads: dict[int, Load] = {}
        self._sums_up = kind.coalesced

    def elements(self, tensors: Sequence[torch.Tensor]) -> int:
        """Elements of the work buffer of a member that brings (or only gets) these tensors; a barrier passes a token."""
        if not tensors:
            return self.cells
        if type(tensors) is Cells:
            return self.cells * tensors.size
        if self._sums_up and len(tensors) > 1:
            return self.cells * sum([tensor.numel() for tensor in tensors])
        return self.cells * tensors[0].numel()


@dataclass(eq=False, slots=True)
class Arrival:
    """One member's call: its tensors, its operation, and what must end before it can start.

    Attributes:
        inputs, outputs: one tensor per cell that the member brings or gets (see ``kernbench.ccl.movements``).
        splits: elements per cell where they are not all alike, else None.
        brought: where no values are computed, what is known of tensors that are in another process; None: they are here.
    """

    rank: int
    signature: Signature
    inputs: Sequence[torch.Tensor]
    outputs: Sequence[torch.Tensor]
    op: Operation
    location: Location
    after: Sequence[Operation] = ()
    splits: tuple[int, ...] | None = None
    brought: Brought | None = None


@dataclass(eq=False, slots=True)
class Collective:
    """The n-th collective of a group: who has arrived.

    Attributes:
        number: how many had been posted in the simulation before.
        run: its way through virtual time, once it has been matched and handed to the engine.
    """

    group: Communicator
    sequence: int
    signature: Signature
    arrivals: dict[int, Arrival] = field(default_factory=dict)
    number: int = 0
    started: bool = False
    run: PlanRun | None = None
    error: CollectiveMismatchError | None = None

    @property
    def matched(self) -> bool:
        """Whether every member has arrived."""
        return len(self.arrivals) == self.group.expected

    @property
    def complete(self) -> bool:
        """Whether every member's part has ended."""
        return self.run is not None and self.run.finished

    @property
    def missing(self) -> list[int]:
        """Members that have not arrived."""
        return [rank for rank in dict.fromkeys(self.group.players or self.group.ranks) if rank not in self.arrivals]

    def __str__(self) -> str:
        return f"{self.signature.op} #{self.sequence} on {self.group.name}"


@dataclass(slots=True)
class Numbered:
    """A group that ranks asked for under a number.

    Attributes:
        first, location: who asked first, and where.
        callers: all who did.
        made: whether one of them is a member.
        used: whether it has communicated.
    """

    members: tuple[int, ...]
    first: int
    location: Location
    callers: list[int] = field(default_factory=list)
    made: bool = False
    used: bool = False


class Communicator:
    """What all members of a process group share. Collectives are matched by the order in which each member calls them.

    Attributes:
        name: for messages.
        ranks: ranks of the world, in group order.
        index: rank of the world -> number in the group.
        stream: the stream of each member's SIP that its collectives run on.
        environ: what the environment said to the collective library when a member first used the group.
        players: where not all ranks run, who takes part for each member (:mod:`kernbench.simulation.ranks.folding`).
        expected: members that call.
        made: whether the library has made it: NCCL does in the first call, of which all members must be.
        joined: members that have called something, until it is made.
        sips: that its members drove when they last met.
        driven: by SIP, the member that first communicated with memory of it, and where.
        use: which of the :data:`USES` it is for.
        calls: plans by what process groups know of a call before its signature.
    """

    def __init__(
        self,
        name: str,
        ranks: tuple[int, ...],
        stream: str = COMM_STREAM,
        players: tuple[int, ...] | None = None,
    ) -> None:
        self.players = players
        self.expected = len(ranks) if players is None else len(set(players))
        self.name = name
        self.stream = stream
        self.ranks = ranks
        self.index = {rank: number for number, rank in enumerate(ranks)}
        self._sequence = dict.fromkeys(ranks, 0)
        self._open: dict[int, Collective] = {}
        self.environ: tuple[tuple[str, str], ...] | None = None
        self.made = False
        self.joined: set[int] = set()
        self._numbered: list[Numbered] = []
        self._number = ""
        self._mine: Numbered | None = None
        self.use = 0
        self._by_use: dict[int, Communicator] = {}
        self.driven: dict[int, tuple[int, Location]] = {}
        self.sips: tuple[int, ...] = ()
        self._plans: dict[Signature, CallPlan] = {}
        self.calls: dict[Hashable, CallPlan] = {}

    def plan(self, signature: Signature) -> CallPlan:
        """Of the calls with this signature."""
        found = self._plans.get(signature)
        if found is None:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
                self.calls.clear()
            found = self._plans[signature] = CallPlan(self, signature)
        return found

    def number(self, numbered: list[Numbered], title: str) -> None:
        """It is one of the groups that ranks made under a number; the others' are no members of it."""
        self._numbered, self._number = numbered, title
        self._mine = next(each for each in numbered if each.members == self.ranks)

    def join(self, rank: int) -> None:
        """A member calls something for which the library must have made it."""
        if not self.made:
            self.joined.add(rank)
            self.made = len(self.joined) >= self.expected

    @property
    def monitors(self) -> Communicator:
        """The same members, for barriers that are no collectives of the group: messages that rank 0 gets of the others."""
        return self.used_for(_MONITORS)

    @property
    def peers(self) -> Communicator:
        """The same members, for collectives in each other's memory: on a stream apart from the library's."""
        return self.used_for(_PEERS)

    def used_for(self, use: int) -> Communicator:
        """The communicator of the same members for one of the :data:`USES`; the group itself for 0."""
        found = self._by_use.get(use) if use else self
        if found is None:
            name, stream = USES[use]
            found = Communicator(name.format(self.name), self.ranks, stream.format(self.stream), self.players)
            found.use = use
            self._by_use[use] = found
        return found

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self.ranks)

    def rank(self, world_rank: int) -> int:
        """Number in this group of a rank of the world, -1 if it is not a member."""
        return self.index.get(world_rank, -1)

    def root(self, rank: int | None, group_rank: int | None) -> int:
        """The number of a rooted collective's root, given as a rank of the world or of the group; by default 0."""
        if rank is not None and group_rank is not None:
            raise ConfigError(
                "give the root as a rank of the world or as one of the group (group_src, group_dst), not both"
            )
        if group_rank is not None and not 0 <= group_rank < self.size:
            raise ConfigError(f"root {group_rank}: {self.name} has ranks 0..{self.size - 1}")
        if rank is not None and rank not in self.index:
            raise ConfigError(f"root {rank} is not a member of {self.name} ({list(self.ranks)})")
        return self.index[rank] if rank is not None else group_rank or 0

    def arrive(self, arrival: Arrival) -> tuple[Collective, CollectiveMismatchError | None]:
        """Record a member's next collective; the error tells that it does not match what another member called."""
        rank = arrival.rank
        sequence = self._sequence[rank]
        self._sequence[rank] = sequence + 1
        collective = self._open.get(sequence)
        if collective is None:
            collective = self._open[sequence] = Collective(self, sequence, arrival.signature)
        if collective.error is None and not arrival.signature.agrees(collective.signature):
            collective.error = _mismatch(collective, arrival)
        if self._mine is not None:
            self._mine.used = True
            if len(self._numbered) > 1 and collective.error is None:
                collective.error = self._namesake_in_use(self._mine)
        if collective.error is not None:
            return collective, collective.error.again()
        arrivals = collective.arrivals
        arrivals[rank] = arrival
        arrival.signature = collective.signature  # it agrees: one for all, since calls are remembered
        if len(arrivals) == self.expected:
            del self._open[sequence]
        return collective, None

    def _namesake_in_use(self, mine: Numbered) -> CollectiveMismatchError | None:
        """Groups of one number meet at one place of the store as soon as two communicate: members look there for their first.

        A group of one has nothing to look for, so that any number of these get along.
        """
        others = (each for each in self._numbered if each.used and each is not mine)
        other = next((each for each in others if len(each.members) > 1 or len(mine.members) > 1), None)
        return None if other is None else _not_the_same(self._number, other, other.first, mine, mine.first)

    def __repr__(self) -> str:
        return f"<Communicator {self.name}>"


class Communicators:
    """The communicators of one world. The k-th group of a name and members that each of them makes is one.

    Attributes:
        folding: which ranks of the world run, None: all.
    """

    def __init__(self) -> None:
        self.folding: Folding | None = None
        self._made: dict[tuple[str, tuple[int, ...] | None], list[Communicator]] = {}
        self._calls: dict[tuple[int, str, tuple[int, ...] | None], int] = {}
        self._asked_for: dict[tuple[Communicator, str], list[Numbered]] = {}
        self._wanted: dict[tuple[int, str, tuple[int, ...]], tuple[list[Numbered], str]] = {}

    @property
    def members(self) -> set[tuple[int, ...]]:
        """The members of each one."""
        return {communicator.ranks for made in self._made.values() for communicator in made}

    def clear(self) -> None:
        """Forget them: their world has ended."""
        self._made.clear()
        self._calls.clear()
        self._asked_for.clear()
        self._wanted.clear()

    def ask_for(self, parent: Communicator, name: str, rank: int, members: tuple[int, ...], location: Location) -> None:
        """``rank`` wants a part of ``parent``, as its group ``name``: torch numbers groups in the order of the calls, and the
        members find each other by that number.

        Raises:
            CollectiveMismatchError: a member of a group that others of its members make wanted another one under that name.
        """
        if self.folding is not None:
            self.folding.asked_for(members, f"new_group at {location.file}:{location.line}")
        numbered = self._asked_for.setdefault((parent, name), [])
        mine = next((each for each in numbered if each.members == members), None)
        if mine is None:
            numbered.append(mine := Numbered(members, rank, location))
        mine.callers.append(rank)
        if rank in members:
            mine.made = True
            self._wanted[rank, name, members] = numbered, f"#{name} of {parent.name}"
        for other in numbered:
            if other is mine:
                continue
            first = other.first if other.made and rank in other.members else None
            if first is None and rank in members:  # who was to make this one has made another
                first = next((each for each in other.callers if each in members), None)
            if first is not None:
                raise _not_the_same(f"#{name} of {parent.name}", other, first, Numbered(members, rank, location), rank)

    def drive(self, group: Communicator, rank: int, sip: int, location: Location) -> tuple[int, Location] | None:
        """A member first communicates with memory of a SIP; who did so before it with the same one, and where."""
        first = group.driven.setdefault(sip, (rank, location))
        return None if first[0] == rank else first

    def of(self, rank: int, name: str, members: tuple[int, ...], is_world: bool) -> Communicator:
        """The next one called ``name`` that ``rank`` makes with ``members``; ``is_world``: whether they are the world."""
        key = (name, None if is_world else members)  # the hash of a large world's tuple is not for nothing
        me = (rank, *key)
        nth = self._calls.get(me, 0)
        self._calls[me] = nth + 1
        made = self._made.setdefault(key, [])
        if nth == len(made):
            default = name == "0" and is_world
            title = "the default group" if default else f"group {name} {list(members)}"
            stream = COMM_STREAM if default and not nth else f"{COMM_STREAM} {name}" + (f".{nth}" if nth else "")
            players = None
            if self.folding is not None:
                self.folding.made(members)
                players = self.folding.players(members)
            made.append(Communicator(title, members, stream, players))
        if (wanted := self._wanted.pop((rank, name, members), None)) is not None:
            made[nth].number(*wanted)
        return made[nth]


def _mismatch(collective: Collective, arrival: Arrival) -> CollectiveMismatchError:
    first = next(iter(collective.arrivals.values()))
    differing = ", ".join(arrival.signature.differences(first.signature))
    arrived = {rank: each.signature.as_words(each.location) for rank, each in collective.arrivals.items()}
    return CollectiveMismatchError.between(
        f"collective #{collective.sequence} on {collective.group.name} does not match between ranks "
        f"{first.rank} and {arrival.rank} ({differing} differ):\n"
        f"  rank {first.rank}: {first.signature} at {first.location}\n"
        f"  rank {arrival.rank}: {arrival.signature} at {arrival.location}\n"
        "No data has moved. Every member must call the same collectives, in the same order, with the same shape, dtype, "
        "reduction and root.",
        collective.group.name,
        collective.sequence,
        {**arrived, arrival.rank: arrival.signature.as_words(arrival.location)},
    )


def _not_the_same(title: str, one: Numbered, first: int, other: Numbered, second: int) -> CollectiveMismatchError:
    """Ranks ``first`` and ``second`` made these groups under one number."""
    made = {rank: (f"new_group(ranks {list(each.members)})", each) for rank, each in ((first, one), (second, other))}
    lines = "".join(f"  rank {rank}: {call} at {each.location}\n" for rank, (call, each) in made.items())
    number = title.partition(" ")[0].removeprefix("#")
    return CollectiveMismatchError.between(
        f"new_group {title} does not match between ranks {first} and {second} (ranks differ):\n{lines}"
        "Every rank must call new_group for every group, in the same order, also for those that it is no member of: ranks "
        "that number groups differently do not find each other. With use_local_synchronization=True the members alone do.",
        title.partition(" of ")[2],
        int(number) if number.isdecimal() else 0,
        {
            rank: {"operation": "new_group", "ranks": str(list(each.members)), "at": str(each.location)}
            for rank, (_, each) in made.items()
        },
    )
