"""``monitored_barrier``, with gloo's words for who has not come.

It is made of messages between rank 0 and the others, not of a collective: who calls a collective meanwhile has not come.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from kernbench.simulation.groups import Signature
from kernbench.torch_backend.process_groups.posting_group import PostingGroup


def wait(group: PostingGroup, timeout: timedelta | None, wait_all_ranks: bool) -> None:
    """Wait for all ranks of ``group``, ``timeout`` (virtual; default: the group's) at most.

    Raises:
        RuntimeError: not all have come in time. Rank 0 names the first that has not (``wait_all_ranks``: all of them), the
            others say that rank 0 failed.
    """
    simulation, matcher, members = group.simulation, group.matcher, group.communicator.monitors
    limit = group.timeout if timeout is None else timeout
    signature = Signature("monitored_barrier", None, None, None, None, simulation.ccl_config.algorithm)
    operation = matcher.post(members, signature, (), ())
    collective = matcher.collective_of(operation)

    def expire(at: float) -> None:
        missing = [members.index[rank] for rank in collective.missing]
        if 0 in missing:
            matcher.give_up(operation, RuntimeError(_without_rank_0(group.rank())), at)
            return
        said = _by_rank_0(missing, round(limit.total_seconds() * 1000), wait_all_ranks)
        for rank, arrival in collective.arrivals.items():
            number = members.index[rank]
            text = said if number == 0 else f"{_without_rank_0(number)} ({said})"
            matcher.give_up(arrival.op, RuntimeError(text), at)

    asked_for = group.asked_for or timeout is not None
    simulation.deadlines.add(operation, operation.enqueue + limit.total_seconds(), expire, asked_for=asked_for)
    simulation.waits.wait(operation)


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
