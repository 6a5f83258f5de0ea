"""``monitored_barrier`` of a process group."""

from __future__ import annotations

from datetime import timedelta

from kernbench.simulation.matching.groups import Signature
from kernbench.torch_backend.process_groups.posting_group import PostingGroup


def wait(group: PostingGroup, timeout: timedelta | None, wait_all_ranks: bool) -> None:
    """Wait for all ranks of ``group``, ``timeout`` (virtual; default: the group's) at most.

    Raises:
        RuntimeError: not all have come in time. Rank 0 names the first that has not (``wait_all_ranks``: all of them), the
            others say that rank 0 failed.
    """
    simulation = group.simulation
    limit = group.timeout if timeout is None else timeout
    signature = Signature("monitored_barrier", None, None, None, None, simulation.ccl_config.algorithm)
    operation = group.matcher.post(simulation.hosts.current(), group.communicator.monitors.plan(signature), (), ())
    asked_for = group.asked_for or timeout is not None
    simulation.monitored.watch(operation, limit.total_seconds(), wait_all_ranks, asked_for)
    simulation.waits.wait(operation)
