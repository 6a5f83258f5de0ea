"""All-gather in the switch: every member sends its chunk once, the switch sends copies to all (NCCL's NVLS all-gather)."""

from __future__ import annotations

import numpy as np

from kernbench.ccl.algorithms._in_switch import multicast, require_switch
from kernbench.ccl.placement import Placement
from kernbench.ccl.schedule import CannotServeError, Schedule, ScheduleBuilder

COLLECTIVE = "all_gather"
TOPOLOGIES = ("switch",)


def build(members: int, where: Placement) -> Schedule:
    """The schedule for members on one node whose switch multicasts; chunk m is member m's input."""
    grid = require_switch("nvls_allgather", where)
    if len(grid) > 1:
        raise CannotServeError("nvls_allgather: the members stand on several nodes, which no switch joins")
    switch = ScheduleBuilder("nvls_allgather", members, chunks=members)
    multicast(switch, grid, np.arange(members))
    return switch.build()
