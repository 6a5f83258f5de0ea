"""The schedule of a collective: which chunk goes from whom to whom, in which round.

A member's buffer is cut into *chunks*. A schedule is a list of rounds; each round is a set of transfers that may happen
at the same time. A transfer either copies a chunk, or reduces it into the destination's: ``dst = op(arriving, dst)``.
The same schedule moves the values (:mod:`kernbench.ccl.values`) and takes the time (:mod:`kernbench.ccl.lower`).

Beside the work chunks a member may have *scratch* chunks: slots where data waits that is not reduced yet. What a transfer
travels by is its :class:`Way`. Reductions inside a member are *wide*: 16-bit floats are summed in fp32 and rounded when the
sum is sent or has reached its work chunk, as kernels do that hold their sums in registers, and as switches do.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kernbench.errors import ConfigError

IntArray = NDArray[np.int64]


class CannotServeError(ConfigError):
    """An algorithm's ``build`` raises it where it has no schedule (no grid, no switch that reduces, ...).

    The runtime then takes the collective's default algorithm, and notes that in the op log.
    """


class Way(enum.IntEnum):
    """What a transfer travels by."""

    LINK = 0
    """From member to member, pushed by the sender."""
    PULL = 1
    """From member to member, fetched by the receiver: its request travels first."""
    LOCAL = 2
    """Inside a member, from a chunk to another; ``src`` is ``dst``. Reductions this way keep wide sums."""
    UP = 3
    """Into the switch, which sums what its members send before it passes it on: only the sender's link carries it."""
    DOWN = 4
    """Out of the switch, which sends one copy to many: only the receiver's link carries it."""


class Rounds(NamedTuple):
    """A line of an algorithm's profile: ``times`` rounds in a row in which ``share`` of the buffer goes to the next member.

    ``reduces``: whether that one combines it with what it has. ``phase``: ``ring``, all members send at once and wait for
    what comes; ``fill``, one part passes member after member, up to the last; ``stream``, the parts behind it follow.
    """

    times: int
    share: float
    reduces: bool
    phase: Literal["ring", "fill", "stream"] = "ring"


@dataclass(frozen=True, eq=False)
class Schedule:
    """Transfers, sorted by round.

    Attributes:
        name: the algorithm.
        members: number of members.
        chunks: number of chunks that each member's buffer is cut into.
        rounds: ``[rounds + 1]`` offsets of each round into the arrays.
        src, dst: ``[transfers]`` member that sends, member that receives.
        chunk: ``[transfers]`` chunk that is sent.
        to_chunk: ``[transfers]`` chunk of the destination in which it lands: the same one, unless an algorithm says otherwise.
        reduces: ``[transfers]`` whether the destination combines what arrives with what it has.
        channel: ``[transfers]`` which of several queues between the same two members is used (the two directions of a
            2-member ring are two channels).
        way: ``[transfers]`` :class:`Way` of each.
        scratch: for each scratch chunk, the work chunk whose length it has; they are numbered after the work chunks.
    """

    name: str
    members: int
    chunks: int
    rounds: IntArray
    src: IntArray
    dst: IntArray
    chunk: IntArray
    reduces: NDArray[np.bool_]
    channel: IntArray
    to_chunk: IntArray
    way: IntArray
    scratch: tuple[int, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.src)

    @property
    def slots(self) -> int:
        """Chunks per member, scratch included."""
        return self.chunks + len(self.scratch)

    def slot_lengths(self, count: int) -> IntArray:
        """``[slots]`` elements of each chunk of a buffer of ``count`` elements, scratch included."""
        lengths = np.diff(self.chunk_bounds(count))
        return np.concatenate([lengths, lengths[list(self.scratch)]]) if self.scratch else lengths

    def chunk_bounds(self, count: int) -> IntArray:
        """``[chunks + 1]`` offsets, in elements, of the chunks of a buffer of ``count`` elements.

        The first ``count % chunks`` chunks are one element longer than the others; chunks may be empty.
        """
        base, extra = divmod(count, self.chunks)
        lengths = np.full(self.chunks, base, dtype=np.int64)
        lengths[:extra] += 1
        return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])

    @cached_property
    def steady(self) -> bool:
        """Whether every round uses the queues that the first one uses, in the same order, as a ring's rounds do."""
        count = len(self.rounds) - 1
        if count < 1 or (np.diff(self.rounds) != self.rounds[1]).any() or (self.way == Way.LOCAL).any():
            return False
        columns = (column.reshape(count, -1) for column in (self.src, self.dst, self.channel, self.way))
        return all(bool((column == column[0]).all()) for column in columns)

    @cached_property
    def final_chains(self) -> IntArray | None:
        """``[chunks, members]`` order in which members are folded into each chunk, if that is all the schedule does.

        Row c = (m0, m1, m2, ...) says that every member ends with ``op(op(op(m0, m1), m2), ...)`` in chunk c, to which
        each member contributes once. None if some chunk is reduced in another shape (a tree), or differs by member.
        """
        found = _symbolic_run(self)
        if found is None:
            return None
        table, previous, folded = found
        if not (table == table[0]).all():
            return None
        return _unroll(table[0], previous, folded, self.members)

    def chains_at(self, owners: IntArray) -> IntArray | None:
        """``[chunks, members]`` like :attr:`final_chains`, of chunk c as member ``owners[c]`` holds it in the end."""
        found = _symbolic_run(self)
        if found is None:
            return None
        table, previous, folded = found
        return _unroll(table[owners, np.arange(self.chunks)], previous, folded, self.members)


class ScheduleBuilder:
    """Collects rounds of transfers.

    Args:
        name: the algorithm.
        members: number of members, >= 1.
        chunks: number of chunks per member, >= 1.
        scratch: for each scratch chunk, the work chunk whose length it has; numbered ``chunks``, ``chunks + 1``, ...
    """

    def __init__(self, name: str, members: int, chunks: int, *, scratch: ArrayLike = ()) -> None:
        self._name = name
        self._members = members
        self._work_chunks = chunks
        self._scratch = tuple(np.asarray(scratch, dtype=np.int64).tolist())
        self._chunks = chunks + len(self._scratch)
        self._lengths: list[int] = []
        self._columns: list[tuple[IntArray, ...]] = []

    def round(
        self,
        src: ArrayLike,
        dst: ArrayLike,
        chunk: ArrayLike,
        *,
        reduce: ArrayLike,
        channel: ArrayLike = 0,
        to_chunk: ArrayLike | None = None,
        way: ArrayLike = Way.LINK,
    ) -> ScheduleBuilder:
        """Add a round. The arguments are broadcast against each other; ``[k, transfers]`` arrays add k rounds.

        ``chunk`` of ``src`` lands in ``to_chunk`` of ``dst``, by default in the chunk of the same index.

        Raises ValueError if a member or a chunk is out of range, a member sends to itself (other than by ``Way.LOCAL``),
        a queue is used twice in a round, or a chunk is written twice in it.
        """
        columns = [
            np.atleast_2d(column)
            for column in _columns(src, dst, chunk, reduce, channel, chunk if to_chunk is None else to_chunk, way)
        ]
        count, transfers = columns[0].shape
        if transfers:
            self._add(np.repeat(np.arange(count), transfers), *(column.ravel() for column in columns))
        return self

    def local(self, member: ArrayLike, chunk: ArrayLike, to_chunk: ArrayLike, *, reduce: ArrayLike) -> ScheduleBuilder:
        """Add a round in which members move ``chunk`` to ``to_chunk`` of their own, or reduce it into that."""
        return self.round(member, member, chunk, reduce=reduce, to_chunk=to_chunk, way=Way.LOCAL)

    def steps(
        self,
        at: ArrayLike,
        src: ArrayLike,
        dst: ArrayLike,
        chunk: ArrayLike,
        *,
        reduce: ArrayLike,
        channel: ArrayLike = 0,
        to_chunk: ArrayLike | None = None,
        way: ArrayLike = Way.LINK,
    ) -> ScheduleBuilder:
        """Add transfers ``[k]`` in any order, each in the round ``at`` (a number >= 0, counted from here); rounds without
        transfers are left out. Raises as :meth:`round` does."""
        columns = _columns(at, src, dst, chunk, reduce, channel, chunk if to_chunk is None else to_chunk, way)
        if columns[0].size:
            order = np.argsort(np.atleast_1d(columns[0]), kind="stable")
            rounds, *rest = (np.atleast_1d(column)[order] for column in columns)
            self._add(np.unique(rounds, return_inverse=True)[1].reshape(-1), *rest)
        return self

    def extend(self, other: Schedule) -> ScheduleBuilder:
        """Add all rounds of another schedule of as many members and the same chunks."""
        if (other.members, other.chunks, other.scratch) != (self._members, self._work_chunks, self._scratch):
            raise ValueError(f"{self._name}: {other.name} has other members or chunks")
        self._lengths += np.diff(other.rounds).tolist()
        self._columns.append(
            (
                other.src,
                other.dst,
                other.chunk,
                other.reduces.astype(np.int64),
                other.channel,
                other.to_chunk,
                other.way,
            )
        )
        return self

    def _add(
        self,
        rounds: IntArray,
        source: IntArray,
        target: IntArray,
        chunks: IntArray,
        reduces: IntArray,
        channels: IntArray,
        landing: IntArray,
        ways: IntArray,
    ) -> None:
        """Check and keep transfers, sorted by ``rounds`` (0, 1, ...: from here)."""
        first = len(self._lengths)
        limits = (
            ("src", source, self._members),
            ("dst", target, self._members),
            ("chunk", chunks, self._chunks),
            ("to_chunk", landing, self._chunks),
        )
        for what, values, limit in limits:
            wrong = np.flatnonzero((values < 0) | (values >= limit))
            if len(wrong):
                number = first + int(rounds[wrong[0]])
                raise ValueError(
                    f"{self._name}, round {number}: {what} out of range 0..{limit - 1}: {values[wrong[0]]}"
                )
        if ((source == target) != (ways == Way.LOCAL)).any():
            number = first + int(rounds[(source == target) != (ways == Way.LOCAL)][0])
            raise ValueError(f"{self._name}, round {number}: a member sends to itself, or moves locally to another")
        count = int(rounds[-1]) + 1
        twice = _first_repeat(
            rounds, queue_keys(source, target, channels, landing, ways, self._members, self._chunks), count
        )
        if twice is not None:
            raise ValueError(
                f"{self._name}, round {first + twice}: two transfers use one queue (give them channels, or two rounds)"
            )
        twice = _first_repeat(rounds, target * self._chunks + landing, count)
        if twice is not None:
            raise ValueError(
                f"{self._name}, round {first + twice}: a chunk of a member is written twice (use two rounds)"
            )
        self._lengths += np.bincount(rounds, minlength=count).tolist()
        self._columns.append((source, target, chunks, reduces, channels, landing, ways))

    def build(self) -> Schedule:
        """The finished schedule."""
        offsets = np.concatenate([[0], np.cumsum(self._lengths, dtype=np.int64)]).astype(np.int64)

        def joined(index: int) -> IntArray:
            parts = [columns[index] for columns in self._columns]
            return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

        return Schedule(
            self._name, self._members, self._work_chunks, offsets, joined(0), joined(1), joined(2),
            joined(3).astype(bool), joined(4), joined(5), joined(6), self._scratch,
        )  # fmt: skip


def queue_keys(
    src: IntArray, dst: IntArray, channel: IntArray, to_chunk: IntArray, way: IntArray, members: int, slots: int
) -> IntArray:
    """``[transfers]`` a number per queue: of a pair of members and a channel, of a member's link to the switch or back, or of
    a chunk that is written locally (which waits for no rank)."""
    channels = int(channel.max(initial=0)) + 1
    pairs = (src * members + dst) * channels + channel
    if not (way >= Way.LOCAL).any():
        return pairs
    first = members * members * channels
    into, out_of = first + src, first + members + dst
    inside = first + 2 * members + dst * slots + to_chunk
    return np.select([way == Way.LOCAL, way == Way.UP, way == Way.DOWN], [inside, into, out_of], pairs)


def _columns(*values: ArrayLike) -> tuple[IntArray, ...]:
    """``values`` as integers, broadcast against each other."""
    return tuple(np.broadcast_arrays(*(np.asarray(value, dtype=np.int64) for value in values)))


def _first_repeat(rounds: IntArray, keys: IntArray, count: int) -> int | None:
    """The first round in which a key occurs twice, None if there is none. ``rounds`` are sorted."""
    whole = len(rounds) // count
    if whole * count == len(rounds) and (rounds.reshape(count, whole) == np.arange(count)[:, None]).all():
        ordered = np.sort(keys.reshape(count, whole), axis=1)
        found = (ordered[:, 1:] == ordered[:, :-1]).any(axis=1)
        return int(np.flatnonzero(found)[0]) if found.any() else None
    order = np.lexsort((keys, rounds))
    same = (rounds[order][1:] == rounds[order][:-1]) & (keys[order][1:] == keys[order][:-1])
    return int(rounds[order][1:][same].min()) if same.any() else None


def reversed_schedule(name: str, schedule: Schedule) -> Schedule:
    """The schedule run backwards, reducing: an all-gather becomes the reduce-scatter of the same trees.

    Right for schedules in which every chunk reaches every member once: then the ways of a chunk form a tree.
    """
    order = np.arange(len(schedule))[::-1]
    lengths = np.diff(schedule.rounds)[::-1]
    rounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Schedule(
        name, schedule.members, schedule.chunks, rounds, schedule.dst[order], schedule.src[order],
        schedule.to_chunk[order], np.ones(len(order), dtype=bool), schedule.channel[order], schedule.chunk[order],
        schedule.way[order], schedule.scratch,
    )  # fmt: skip


def _symbolic_run(schedule: Schedule) -> tuple[IntArray, IntArray, IntArray] | None:
    """Symbolic run: which chain of members each (member, chunk) holds in the end, None if one is not a chain.

    Returns ``(table, before, last)``: ``table`` ``[members, chunks]`` nodes, ``before`` and ``last`` ``[nodes]``.
    """
    members, chunks = schedule.members, schedule.chunks
    if (schedule.way >= Way.LOCAL).any():
        return None  # wide sums
    # A chain is a linked list: node i = (node before it, member folded last, its length). Leaves are nodes 0..members-1.
    before: list[IntArray] = [np.full(members, -1, dtype=np.int64)]
    last: list[IntArray] = [np.arange(members, dtype=np.int64)]
    total = members
    held = np.repeat(np.arange(members, dtype=np.int64), chunks)  # node held by each (member, chunk)
    leaf_until = members
    for begin, end in zip(schedule.rounds[:-1].tolist(), schedule.rounds[1:].tolist(), strict=True):
        rows = slice(begin, end)
        source = schedule.src[rows] * chunks + schedule.chunk[rows]
        target = schedule.dst[rows] * chunks + schedule.to_chunk[rows]
        arriving, reduces = held[source], schedule.reduces[rows]
        local = held[target]
        if (local[reduces] >= leaf_until).any():
            return None  # what is reduced into has been reduced before: a tree, not a chain
        fresh = np.flatnonzero(reduces)
        before.append(arriving[fresh])
        last.append(local[fresh])
        nodes = arriving.copy()
        nodes[fresh] = np.arange(total, total + len(fresh))
        total += len(fresh)
        held[target] = nodes
    return held.reshape(members, chunks), np.concatenate(before), np.concatenate(last)


def _unroll(nodes: IntArray, previous: IntArray, folded: IntArray, members: int) -> IntArray | None:
    """``[chunks, members]`` the chains that end in ``nodes``; None if one does not fold every member exactly once."""
    chunks = len(nodes)
    chains = np.empty((chunks, members), dtype=np.int64)
    node = nodes.copy()
    for position in range(members - 1, -1, -1):
        if (node < 0).any():
            return None  # a rank does not contribute
        chains[:, position] = folded[node]
        node = previous[node]
    if (node >= 0).any() or (np.sort(chains, axis=1) != np.arange(members)).any():
        return None
    return chains
