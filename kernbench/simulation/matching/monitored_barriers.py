"""Monitored barriers: who has not come in time, in gloo's words.

They are made of messages between rank 0 and the others, not of a collective: a rank that calls a collective meanwhile has
not come.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernbench.sim_engine import Operation
from kernbench.simulation.matching.groups import Collective
from kernbench.simulation.matching.matcher import Matcher
from kernbench.simulation.time.deadlines import Deadlines


class MonitoredBarriers:
    """The monitored barriers of one simulation.

    Args:
        matcher: where their members meet.
        deadlines: in virtual time.
    """

    def __init__(self, matcher: Matcher, deadlines: Deadlines) -> None:
        self._matcher = matcher
        self._deadlines = deadlines

    def watch(self, op: Operation, seconds: float, wait_all_ranks: bool, asked_for: bool) -> None:
        """Let a rank's part of a monitored barrier, which it has posted, fail ``seconds`` of virtual time after that.

        Args:
            wait_all_ranks: rank 0 names all who have not come, not the first alone.
            asked_for: whether the program gave this limit (:mod:`kernbench.simulation.time.deadlines`).

        What it fails with is a RuntimeError.
        """
        collective, limit = self._matcher.collective_of(op), round(seconds * 1000)
        self._deadlines.add(op, op.enqueue + seconds, asked_for, self._expire, collective, limit, wait_all_ranks)

    def _expire(
        self, op: Operation, at: float, collective: Collective, milliseconds: int, wait_all_ranks: bool
    ) -> None:
        index = collective.group.index
        missing = [index[rank] for rank in collective.missing]
        if 0 in missing:
            assert op.rank is not None
            self._matcher.give_up(op, RuntimeError(_without_rank_0(index[op.rank])), at)
            return
        said = _by_rank_0(missing, milliseconds, wait_all_ranks)
        for rank, arrival in collective.arrivals.items():
            text = said if index[rank] == 0 else f"{_without_rank_0(index[rank])} ({said})"
            self._matcher.give_up(arrival.op, RuntimeError(text), at)


def _by_rank_0(missing: Sequence[int], milliseconds: int, wait_all_ranks: bool) -> str:
    if milliseconds == 0:
        return "Rank 0 timed out in monitoredBarrier after 0 ms"
    if wait_all_ranks:
        return f"Ranks {', '.join(map(str, missing))} failed to pass monitoredBarrier in {milliseconds} ms"
    return f"Rank {missing[0]} failed to pass monitoredBarrier in {milliseconds} ms"


def _without_rank_0(number: int) -> str:
    return (
        f"Rank {number} successfully reached monitoredBarrier, but received errors while waiting "
        "for send/recv from rank 0. Please check rank 0 logs for faulty rank."
    )
