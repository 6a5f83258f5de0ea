"""Direct reduce-scatter: member m gets chunk m of all members at once, and adds up; one step.

Order of reduction: member 0, 1, 2, ..., sums kept wide.
"""

from __future__ import annotations

import numpy as np

from kernbench.ccl.schedule import Schedule, ScheduleBuilder
from kernbench.ccl.shapes import all_pairs, fold_slots

COLLECTIVE = "reduce_scatter"
TOPOLOGIES = ("all_to_all",)


def build(members: int) -> Schedule:
    """The schedule for ``members`` >= 1 members; chunk m is what member m gets."""
    shot = ScheduleBuilder("direct_reducescatter", members, chunks=members, scratch=np.zeros(members))
    src, dst = all_pairs(members)
    shot.round(src, dst, dst, reduce=False, to_chunk=members + src)
    member = np.arange(members)
    fold_slots(shot, member, member, members, member, members)
    return shot.build()
