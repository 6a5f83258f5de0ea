"""All-reduce in the switch: every member owns a part, which the switch sums and sends to all members.

A link carries the buffer once each way, half of what a ring needs. NCCL calls it NVLS. A part is cut into ``chunks``
that follow each other: while one comes down the next goes up. Order of reduction: the switch's, see ``_in_switch``.
"""

from __future__ import annotations

import numpy as np

from kernbench.ccl.algorithms._in_switch import multicast, reduce_in_switches, require_switch
from kernbench.ccl.placement import Placement
from kernbench.ccl.schedule import CannotServeError, Schedule, ScheduleBuilder

COLLECTIVE = "all_reduce"
TOPOLOGIES = ("switch",)


def build(members: int, where: Placement, chunks: int = 4) -> Schedule:
    """The schedule for members on one node whose switch reduces."""
    grid = require_switch("nvls_allreduce", where)
    if len(grid) > 1:
        raise CannotServeError("nvls_allreduce: the members stand on several nodes, which no switch joins")
    work = members * chunks
    switch = ScheduleBuilder("nvls_allreduce", members, work, scratch=np.zeros(2 * members))
    for chunk in range(chunks):
        parts = np.arange(members) * chunks + chunk
        reduce_in_switches(switch, grid, parts, scratch=work + members * (chunk % 2))
        multicast(switch, grid, parts)
    return switch.build()
