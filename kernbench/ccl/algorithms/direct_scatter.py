"""Direct scatter: the root sends every member its chunk, all at once."""

from __future__ import annotations

import numpy as np

from kernbench.ccl.schedule import Schedule, ScheduleBuilder

COLLECTIVE = "scatter"
TOPOLOGIES = ("all_to_all",)


def build(members: int, root: int) -> Schedule:
    """The schedule for ``members`` >= 1 members; chunk m of member ``root`` goes to member m."""
    star = ScheduleBuilder("direct_scatter", members, chunks=members)
    others = np.delete(np.arange(members), root)
    return star.round(np.full_like(others, root), others, others, reduce=False).build()
