"""Direct all-to-all: every member sends to every other at once, one step; what NCCL's grouped sends and receives do."""

from __future__ import annotations

from kernbench.ccl.schedule import Schedule, ScheduleBuilder
from kernbench.ccl.shapes import all_pairs

COLLECTIVE = "all_to_all"
TOPOLOGIES = ("all_to_all",)


def build(members: int) -> Schedule:
    """The schedule for ``members`` >= 1 members; chunks as in ``pairwise_alltoall``."""
    direct = ScheduleBuilder("direct_alltoall", members, chunks=2 * members)
    src, dst = all_pairs(members)
    return direct.round(src, dst, dst, reduce=False, to_chunk=members + src).build()
