"""Direct all-gather: every member sends its chunk to all others at once; one step."""

from __future__ import annotations

from kernbench.ccl.schedule import Schedule, ScheduleBuilder
from kernbench.ccl.shapes import all_pairs

COLLECTIVE = "all_gather"
TOPOLOGIES = ("all_to_all",)


def build(members: int) -> Schedule:
    """The schedule for ``members`` >= 1 members; chunk m is member m's input."""
    src, dst = all_pairs(members)
    return ScheduleBuilder("direct_allgather", members, chunks=members).round(src, dst, src, reduce=False).build()
