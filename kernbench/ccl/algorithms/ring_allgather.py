"""Ring all-gather: every member's chunk travels once around the ring.

In n - 1 rounds each member passes on the chunk that it received last, its own first, so every link carries
``(n - 1) / n`` of the result (the second half of Patarasuk and Yuan's all-reduce, JPDC 2009).
"""

from __future__ import annotations

import numpy as np

from kernbench.ccl.schedule import Rounds, Schedule, ScheduleBuilder

COLLECTIVE = "all_gather"
TOPOLOGIES = ("ring_1d",)


def build(members: int) -> Schedule:
    """The schedule for ``members`` >= 1 members, numbered along the ring; chunk m is member m's input."""
    ring = ScheduleBuilder("ring_allgather", members, chunks=members)
    member = np.arange(members)
    step = np.arange(members - 1)[:, None]
    if members > 1:
        ring.round(member, (member + 1) % members, (member - step) % members, reduce=False)
    return ring.build()


def profile(members: int) -> list[Rounds]:
    """What a round is, for the closed form."""
    return [Rounds(members - 1, 1 / members, False)]
