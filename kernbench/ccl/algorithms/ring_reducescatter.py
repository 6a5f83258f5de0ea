"""Ring reduce-scatter: chunk c travels once around the ring, is reduced at each stop, and ends at member c.

The order of reduction of chunk c is member c + 1, c + 2, ..., c (the first half of Patarasuk and Yuan's all-reduce, JPDC
2009, shifted by one so that every member ends with the chunk of its own number).
"""

from __future__ import annotations

import numpy as np

from kernbench.ccl.schedule import Rounds, Schedule, ScheduleBuilder

COLLECTIVE = "reduce_scatter"
TOPOLOGIES = ("ring_1d",)


def build(members: int) -> Schedule:
    """The schedule for ``members`` >= 1 members, numbered along the ring; chunk m is what member m gets."""
    ring = ScheduleBuilder("ring_reducescatter", members, chunks=members)
    member = np.arange(members)
    step = np.arange(members - 1)[:, None]
    if members > 1:
        ring.round(member, (member + 1) % members, (member - 1 - step) % members, reduce=True)
    return ring.build()


def profile(members: int) -> list[Rounds]:
    """What a round is, for the closed form."""
    return [Rounds(members - 1, 1 / members, True)]
