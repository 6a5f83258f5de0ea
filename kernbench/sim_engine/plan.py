"""What a collective does to time: transfers between members, round by round.

A plan is the timed form of a ``ccl`` schedule. Each transfer sends one chunk of the buffer from a member to a
member over a queue and a route. It may start when the chunk is ready at its source, the same chunk at its destination is
no longer being read, and the queue's previous transfer has left. The plan is kept as arrays, one row per transfer, so
that a thousand ranks cost a few numpy calls per round; :func:`evaluate` and :class:`PlanRun` (in ``plan_run``) must
agree on every plan whose queues share no link.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kernbench.sim_engine.plan_classes import Row, TransferClasses

_SMALL_PLAN = 512
"""Transfers up to which plain Python is quicker than a dozen numpy calls per round.

A 1-KiB all-reduce over eight ranks moves 14 rounds of eight transfers: numpy's calls on arrays of eight elements cost more than
what they compute. Starts and ends of members are therefore lists of floats, of which larger plans make arrays, and members that
end at the same time are notified together, in one pass. Neither order of reduction nor any time depends on which way is taken.
"""

_CLASSIFIED_PLAN = 1 << 16
"""Transfers up to which a plan that is used again and again is sorted into classes."""

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TransferPlan:
    """Transfers of one collective, sorted by round.

    Attributes:
        name: for traces, e.g. ``"all_reduce ring"``.
        members: number of members.
        chunks: number of chunks per member.
        rounds: ``[rounds + 1]`` offsets of each round into the arrays below.
        src, dst: ``[transfers]`` member that sends, member that receives.
        src_chunk, dst_chunk: ``[transfers]`` chunk read at the source, chunk written at the destination.
        nbytes: ``[transfers]`` payload, bytes.
        serial: ``[transfers]`` seconds for which the transfer holds its queue when it has the route to itself.
        latency: ``[transfers]`` seconds from the last byte sent to the chunk being ready at the destination.
        queue: ``[transfers]`` index of the queue it goes through, in order.
        queue_links: for each queue, the links of its route.
        reduces: ``[transfers]`` whether the destination combines what arrives with what it has.
        wire: ``[transfers]`` bytes that each link of the route carries, where that is not the payload: a transfer over
            many links at once has a route that shows one of them.
        paced: whether ``serial`` already divides what queues of this plan share, so that they do not meet on links.
    """

    name: str
    members: int
    chunks: int
    rounds: IntArray
    src: IntArray
    dst: IntArray
    src_chunk: IntArray
    dst_chunk: IntArray
    nbytes: IntArray
    serial: FloatArray
    latency: FloatArray
    queue: IntArray
    queue_links: tuple[tuple[int, ...], ...]
    reduces: NDArray[np.bool_]
    wire: FloatArray = field(default_factory=lambda: np.zeros(0))
    paced: bool = False

    def __len__(self) -> int:
        return len(self.src)

    def used_enough(self) -> bool:
        """Counts calls: whether the plan is run often enough to be worth sorting into classes."""
        uses = self.__dict__["uses"] = self.__dict__.get("uses", 0) + 1
        return uses > 1 + len(self) // 1024

    @cached_property
    def classes(self) -> TransferClasses:
        """Its transfers by when they happen, if all members start together."""
        return TransferClasses(self.round_rows, self.members, self.chunks, *self.queue_members)

    @cached_property
    def links(self) -> frozenset[int]:
        """Every link that the plan uses."""
        return frozenset(link for links in self.queue_links for link in links)

    @cached_property
    def contention_free(self) -> bool:
        """Whether no two of its queues share a link, so that transfers only ever wait for their own queue."""
        return self.paced or sum(len(links) for links in self.queue_links) == len(self.links)

    def stretched(self, factor: float) -> TransferPlan:
        """The plan with every time ``factor`` times as long."""
        return replace(self, serial=self.serial * factor, latency=self.latency * factor)

    @cached_property
    def queue_src(self) -> IntArray:
        """``[queues]`` member that sends through each queue."""
        members = np.zeros(len(self.queue_links), dtype=np.int64)
        members[self.queue] = self.src
        return members

    @cached_property
    def queue_dst(self) -> IntArray:
        """``[queues]`` member that receives from each queue."""
        members = np.zeros(len(self.queue_links), dtype=np.int64)
        members[self.queue] = self.dst
        return members

    @cached_property
    def queue_members(self) -> tuple[list[int], list[int]]:
        """``queue_src`` and ``queue_dst`` as lists."""
        return self.queue_src.tolist(), self.queue_dst.tolist()

    @cached_property
    def round_rows(self) -> list[list[Row]]:
        """The transfers of each round as rows."""
        rows = list(
            zip(
                (self.src * self.chunks + self.src_chunk).tolist(), (self.dst * self.chunks + self.dst_chunk).tolist(),
                self.queue.tolist(), self.serial.tolist(), self.latency.tolist(), strict=True,
            )
        )  # fmt: skip
        bounds = self.rounds.tolist()
        return [rows[begin:end] for begin, end in pairwise(bounds)]

    @cached_property
    def dependents(self) -> tuple[list[list[int]], list[int], list[list[int]]]:
        """The plan as a graph: ``(after_arrival, needed, after_sent)``.

        ``after_arrival[i]`` are the transfers that need transfer i's arrival, ``after_sent[i]`` those that need its
        last byte to have left (its queue's next, and the writer that overwrites the chunk it read); ``needed[i]`` is how many
        such conditions transfer i has.
        """
        after_arrival: list[list[int]] = [[] for _ in range(len(self))]
        after_sent: list[list[int]] = [[] for _ in range(len(self))]
        needed = [0] * len(self)
        last_write: dict[int, int] = {}
        last_reads: dict[int, list[int]] = {}
        last_in_queue: dict[int, int] = {}
        source_at = (self.src * self.chunks + self.src_chunk).tolist()
        target_at = (self.dst * self.chunks + self.dst_chunk).tolist()
        queue = self.queue.tolist()
        for begin, end in zip(self.rounds[:-1].tolist(), self.rounds[1:].tolist(), strict=True):
            for i in range(begin, end):
                arrivals = {last_write[at] for at in (source_at[i], target_at[i]) if at in last_write}
                sent = set(last_reads.get(target_at[i], ()))
                if queue[i] in last_in_queue:
                    sent.add(last_in_queue[queue[i]])
                for j in sorted(arrivals):
                    after_arrival[j].append(i)
                for j in sorted(sent):
                    after_sent[j].append(i)
                needed[i] = len(arrivals) + len(sent)
                last_in_queue[queue[i]] = i
            for i in range(begin, end):
                last_reads.setdefault(source_at[i], []).append(i)
            for i in range(begin, end):
                last_write[target_at[i]] = i
                last_reads.pop(target_at[i], None)
        return after_arrival, needed, after_sent


@dataclass(frozen=True, eq=False)
class PlanTimes:
    """When each transfer of a plan happened: ``[transfers]`` seconds each."""

    start: FloatArray
    sent: FloatArray
    arrived: FloatArray


Starts = Sequence[float] | FloatArray
"""``[members]`` seconds."""


def evaluate(plan: TransferPlan, member_start: Starts) -> PlanTimes:
    """Times of a plan that has its links to itself; ``member_start``: ``[members]`` s at which each member joins."""
    times = PlanTimes(np.empty(len(plan)), np.empty(len(plan)), np.empty(len(plan)))
    _run_rounds(plan, member_start, times)
    return times


def member_ends(plan: TransferPlan, member_start: Starts) -> list[float]:
    """``[members]`` s at which each member of such a plan has sent and received everything.

    Keeps no time per transfer: a large world has more transfers than memory.
    """
    starts: list[float] = member_start if isinstance(member_start, list) else np.asarray(member_start).tolist()
    transfers = len(plan)
    if transfers <= _CLASSIFIED_PLAN and plan.used_enough() and starts.count(starts[0]) == len(starts):
        return plan.classes.member_ends(starts[0])
    if transfers <= _SMALL_PLAN:
        return _run_rounds_one_by_one(plan, starts)
    ends: list[float] = _run_rounds(plan, starts, None).tolist()
    return ends


def _run_rounds(plan: TransferPlan, member_start: Starts, times: PlanTimes | None) -> FloatArray:
    ready = np.repeat(member_start, plan.chunks)
    read_until = np.zeros(plan.members * plan.chunks)
    queue_free = np.zeros(len(plan.queue_links))
    queue_arrived = np.zeros(len(plan.queue_links))
    bounds = plan.rounds.tolist()
    for k in range(len(bounds) - 1):
        rows = slice(bounds[k], bounds[k + 1])
        src, dst, q = plan.src[rows], plan.dst[rows], plan.queue[rows]
        at, to = src * plan.chunks + plan.src_chunk[rows], dst * plan.chunks + plan.dst_chunk[rows]
        begin = np.maximum(ready[at], ready[to])
        np.maximum(begin, read_until[to], out=begin)
        np.maximum(begin, queue_free[q], out=begin)
        leave = begin + plan.serial[rows]
        arrive = leave + plan.latency[rows]
        if times is not None:
            times.start[rows], times.sent[rows], times.arrived[rows] = begin, leave, arrive
        queue_free[q] = leave
        queue_arrived[q] = np.maximum(queue_arrived[q], arrive)
        np.maximum.at(read_until, at, leave)
        ready[to] = arrive
    ends = np.array(member_start)
    np.maximum.at(ends, plan.queue_src, queue_free)
    np.maximum.at(ends, plan.queue_dst, queue_arrived)
    return ends


def _run_rounds_one_by_one(plan: TransferPlan, member_start: Sequence[float]) -> list[float]:
    """The same arithmetic as :func:`_run_rounds`, hence the same bits, without arrays."""
    ready = [start for start in member_start for _ in range(plan.chunks)]
    read_until = [0.0] * len(ready)
    queue_free = [0.0] * len(plan.queue_links)
    queue_arrived = [0.0] * len(plan.queue_links)
    for rows in plan.round_rows:
        # a round looks at what was before it, whatever its transfers do to each other
        begins = []
        for at, to, q, _, _ in rows:
            begin = ready[at]
            if ready[to] > begin:
                begin = ready[to]
            if read_until[to] > begin:
                begin = read_until[to]
            if queue_free[q] > begin:
                begin = queue_free[q]
            begins.append(begin)
        for begin, (at, to, q, serial, latency) in zip(begins, rows, strict=True):
            leave = begin + serial
            arrive = leave + latency
            queue_free[q] = leave
            if arrive > queue_arrived[q]:
                queue_arrived[q] = arrive
            if leave > read_until[at]:
                read_until[at] = leave
            ready[to] = arrive
    ends = list(member_start)
    senders, receivers = plan.queue_members
    for member, time in (*zip(senders, queue_free, strict=True), *zip(receivers, queue_arrived, strict=True)):
        if time > ends[member]:
            ends[member] = time
    return ends
