"""PAT reduce-scatter: the all-gather of ``pat_allgather`` run backwards, reducing at every meeting.

Order of reduction: up the tree by which a chunk would be spread.
"""

from __future__ import annotations

from kernbench.ccl.algorithms import pat_allgather
from kernbench.ccl.schedule import Schedule, reversed_schedule

COLLECTIVE = "reduce_scatter"
TOPOLOGIES = ("all_to_all",)


def build(members: int) -> Schedule:
    """The schedule for ``members`` >= 1 members; chunk m is what member m gets."""
    return reversed_schedule("pat_reducescatter", pat_allgather.build(members))
