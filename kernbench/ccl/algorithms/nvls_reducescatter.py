"""Reduce-scatter in the switch: it sums chunk m of all members and hands member m the result (NCCL's NVLS reduce-scatter).

Order of reduction: the switch's, see ``_in_switch``.
"""

from __future__ import annotations

import numpy as np

from kernbench.ccl.algorithms._in_switch import reduce_in_switches, require_switch
from kernbench.ccl.placement import Placement
from kernbench.ccl.schedule import CannotServeError, Schedule, ScheduleBuilder

COLLECTIVE = "reduce_scatter"
TOPOLOGIES = ("switch",)


def build(members: int, where: Placement) -> Schedule:
    """The schedule for members on one node whose switch reduces; chunk m is what member m gets."""
    grid = require_switch("nvls_reducescatter", where)
    if len(grid) > 1:
        raise CannotServeError("nvls_reducescatter: the members stand on several nodes, which no switch joins")
    switch = ScheduleBuilder("nvls_reducescatter", members, chunks=members, scratch=np.zeros(members))
    reduce_in_switches(switch, grid, np.arange(members), scratch=members)
    return switch.build()
