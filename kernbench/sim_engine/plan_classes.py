"""Plans whose members all start together: transfers that happen at the same moment are computed once.

Most plans are symmetric: in a ring over equal links every member does the same thing at the same time. Two transfers whose
conditions are the same and whose costs are equal have equal times whenever the members start together, so a plan falls into
*classes* of transfers, found once by running it on symbols instead of times. A ring of 8 has 14 classes for 112 transfers.
The arithmetic is that of :func:`kernbench.sim_engine.plan.member_ends`, hence the same bits; a property test holds the two
against each other.

The ends themselves cannot be kept from one run to the next: a later start rounds differently, and timelines must not depend
on what ran before. So a plan that is used again (a small one from the second time, a larger one after as many uses as it has
thousands of transfers) is run once on symbols: a time is the set of earlier times that it is the latest of, plus its costs.
From then on one addition per class replaces the arithmetic per transfer. Plans that are not repeated pay nothing; members that
start at different times, and plans of more than 65,536 transfers, are computed from their arrays.
"""

from __future__ import annotations

from collections.abc import Sequence

Row = tuple[int, int, int, float, float]
"""A transfer: source chunk and target chunk (numbered over all members), queue, serial and latency (s)."""

_START = 0
Times = frozenset[int]
"""The latest of these times: 0 is the start of the members, ``2 k + 1`` class k's leaving, ``2 k + 2`` its arrival."""

_NEVER: Times = frozenset()


def _latest(*times: Times) -> Times:
    found = frozenset().union(*times)
    return found - {_START} if len(found) > 1 else found  # costs are not negative: nothing is before the start


class TransferClasses:
    """The classes of a plan's transfers.

    Args:
        rounds: the transfers of each round.
        members, chunks: members, and chunks of each.
        senders, receivers: for each queue, the member that sends and the one that receives.
    """

    def __init__(
        self,
        rounds: Sequence[Sequence[Row]],
        members: int,
        chunks: int,
        senders: Sequence[int],
        receivers: Sequence[int],
    ) -> None:
        self._steps: list[tuple[int, tuple[int, ...], float, float]] = []
        number: dict[tuple[Times, float, float], int] = {}
        ready: list[Times] = [frozenset({_START})] * (members * chunks)
        read_until = [_NEVER] * len(ready)
        queue_free = [_NEVER] * len(senders)
        queue_arrived = [_NEVER] * len(senders)
        for rows in rounds:
            begins = [_latest(ready[at], ready[to], read_until[to], queue_free[q]) for at, to, q, _, _ in rows]
            for begin, (at, to, queue, serial, latency) in zip(begins, rows, strict=True):
                key = (begin, serial, latency)
                found = number.get(key)
                if found is None:
                    found = number[key] = len(self._steps)
                    first, *others = sorted(begin)
                    self._steps.append((first, tuple(others), serial, latency))
                leave, arrive = frozenset({2 * found + 1}), frozenset({2 * found + 2})
                queue_free[queue] = leave
                queue_arrived[queue] = _latest(queue_arrived[queue], arrive)
                read_until[at] = _latest(read_until[at], leave)
                ready[to] = arrive
        ends: list[Times] = [frozenset({_START})] * members
        for queue, member in enumerate(senders):
            ends[member] = _latest(ends[member], queue_free[queue])
        for queue, member in enumerate(receivers):
            ends[member] = _latest(ends[member], queue_arrived[queue])
        distinct = list(dict.fromkeys(ends))
        self._ends = [tuple(sorted(end)) for end in distinct]
        position = {end: k for k, end in enumerate(distinct)}
        self._end_of = [position[end] for end in ends]

    def __len__(self) -> int:
        return len(self._steps)

    def member_ends(self, start: float) -> list[float]:
        """``[members]`` s at which each member has sent and received everything, if all start at ``start`` (s)."""
        times = [start]
        add = times.append
        for first, others, serial, latency in self._steps:
            begin = times[first]
            for k in others:
                if times[k] > begin:
                    begin = times[k]
            leave = begin + serial
            add(leave)
            add(leave + latency)
        ends = [_last(times, end) for end in self._ends]
        return [ends[k] for k in self._end_of]


def _last(times: Sequence[float], which: tuple[int, ...]) -> float:
    return max([times[k] for k in which])
