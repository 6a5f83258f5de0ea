"""Direct gather: every member sends its chunk to the root, all at once."""

from __future__ import annotations

import numpy as np

from kernbench.ccl.schedule import Schedule, ScheduleBuilder

COLLECTIVE = "gather"
TOPOLOGIES = ("all_to_all",)


def build(members: int, root: int) -> Schedule:
    """The schedule for ``members`` >= 1 members; chunk m of member m goes to member ``root``."""
    star = ScheduleBuilder("direct_gather", members, chunks=members)
    others = np.delete(np.arange(members), root)
    return star.round(others, np.full_like(others, root), others, reduce=False).build()
