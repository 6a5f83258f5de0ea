"""What a collective does to time: transfers between members, round by round.

A plan is the timed form of a ``ccl`` schedule. Each transfer sends one cell (a chunk of the buffer) from a member to a
member over a queue and a route. It may start when the cell is ready at its source, the same cell at its destination is
no longer being read, and the queue's previous transfer has left. The plan is kept as arrays, one row per transfer, so
that a thousand ranks cost a few numpy calls per round; :func:`evaluate` and :class:`PlanRun` (in ``plan_run``) must
agree on every plan whose queues share no link.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TransferPlan:
    """Transfers of one collective, sorted by round.

    Attributes:
        name: for traces, e.g. ``"all_reduce ring"``.
        members: number of members.
        cells: number of cells per member.
        rounds: ``[rounds + 1]`` offsets of each round into the arrays below.
        src, dst: ``[transfers]`` member that sends, member that receives.
        src_cell, dst_cell: ``[transfers]`` cell read at the source, cell written at the destination.
        nbytes: ``[transfers]`` payload, bytes.
        serial: ``[transfers]`` seconds for which the transfer holds its queue when it has the route to itself.
        latency: ``[transfers]`` seconds from the last byte sent to the cell being ready at the destination.
        queue: ``[transfers]`` index of the queue it goes through, in order.
        queue_links: for each queue, the links of its route.
        reduces: ``[transfers]`` whether the destination combines what arrives with what it has.
        busy: ``[transfers]`` seconds of processing-element time spent on waiting for credits (``poll``).
    """

    name: str
    members: int
    cells: int
    rounds: IntArray
    src: IntArray
    dst: IntArray
    src_cell: IntArray
    dst_cell: IntArray
    nbytes: IntArray
    serial: FloatArray
    latency: FloatArray
    queue: IntArray
    queue_links: tuple[tuple[int, ...], ...]
    reduces: NDArray[np.bool_]
    busy: FloatArray = field(default_factory=lambda: np.zeros(0))

    def __len__(self) -> int:
        return len(self.src)

    @cached_property
    def links(self) -> frozenset[int]:
        """Every link that the plan uses."""
        return frozenset(link for links in self.queue_links for link in links)

    @cached_property
    def contention_free(self) -> bool:
        """Whether no two of its queues share a link, so that transfers only ever wait for their own queue."""
        return sum(len(links) for links in self.queue_links) == len(self.links)

    @cached_property
    def _source_at(self) -> IntArray:
        return self.src * self.cells + self.src_cell

    @cached_property
    def _target_at(self) -> IntArray:
        return self.dst * self.cells + self.dst_cell

    @cached_property
    def dependents(self) -> tuple[list[list[int]], list[int], list[list[int]]]:
        """The plan as a graph: ``(after_arrival, needed, after_sent)``.

        ``after_arrival[i]`` are the transfers that need transfer i's arrival, ``after_sent[i]`` those that need its
        last byte to have left (its queue's next, and whoever overwrites the cell it read); ``needed[i]`` is how many
        such conditions transfer i has.
        """
        after_arrival: list[list[int]] = [[] for _ in range(len(self))]
        after_sent: list[list[int]] = [[] for _ in range(len(self))]
        needed = [0] * len(self)
        last_write: dict[int, int] = {}
        last_reads: dict[int, list[int]] = {}
        last_in_queue: dict[int, int] = {}
        source_at, target_at, queue = self._source_at.tolist(), self._target_at.tolist(), self.queue.tolist()
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

    def member_ends(self, member_start: FloatArray, sent: FloatArray, arrived: FloatArray) -> FloatArray:
        """``[members]`` time at which each member has sent and received everything."""
        ends = member_start.copy()
        np.maximum.at(ends, self.src, sent)
        np.maximum.at(ends, self.dst, arrived)
        return ends


@dataclass(frozen=True, eq=False)
class PlanTimes:
    """When each transfer of a plan happened: ``[transfers]`` seconds each."""

    start: FloatArray
    sent: FloatArray
    arrived: FloatArray


def evaluate(plan: TransferPlan, member_start: FloatArray) -> PlanTimes:
    """Times of a plan that has its links to itself; ``member_start``: ``[members]`` s at which each member joins."""
    ready = np.repeat(member_start, plan.cells)
    read_until = np.zeros(plan.members * plan.cells)
    queue_free = np.zeros(len(plan.queue_links))
    start = np.empty(len(plan))
    sent = np.empty(len(plan))
    arrived = np.empty(len(plan))
    source_at, target_at, queue = plan._source_at, plan._target_at, plan.queue
    serial, latency = plan.serial, plan.latency
    bounds = plan.rounds.tolist()
    for k in range(len(bounds) - 1):
        rows = slice(bounds[k], bounds[k + 1])
        at, to, q = source_at[rows], target_at[rows], queue[rows]
        begin = np.maximum(ready[at], ready[to])
        np.maximum(begin, read_until[to], out=begin)
        np.maximum(begin, queue_free[q], out=begin)
        leave = begin + serial[rows]
        arrive = leave + latency[rows]
        start[rows], sent[rows], arrived[rows] = begin, leave, arrive
        queue_free[q] = leave
        np.maximum.at(read_until, at, leave)
        ready[to] = arrive
    return PlanTimes(start, sent, arrived)
