"""Ring all-reduce: reduce-scatter, then all-gather, around a ring.

Each of the n members owns one of n chunks. In n - 1 rounds every chunk travels once around the ring and is reduced at each
stop, so that member ``c + n - 1`` ends with the whole of chunk c; in n - 1 more rounds the results travel on. Every member
sends ``2 (n - 1) / n`` of the buffer, which is optimal in bandwidth (Patarasuk and Yuan, "Bandwidth optimal all-reduce
algorithms for clusters of workstations", JPDC 2009).

The order of reduction of chunk c is fixed: member c, c + 1, c + 2, ... around the ring.
"""

from __future__ import annotations

import numpy as np

from kernbench.ccl.schedule import Rounds, Schedule, ScheduleBuilder

COLLECTIVE = "all_reduce"
TOPOLOGIES = ("ring_1d",)


def build(members: int) -> Schedule:
    """The schedule for ``members`` >= 1 members, numbered along the ring."""
    ring = ScheduleBuilder("ring_allreduce", members, chunks=members)
    member = np.arange(members)
    step = np.arange(members - 1)[:, None]
    if members > 1:
        ring.round(member, (member + 1) % members, (member - step) % members, reduce=True)
        ring.round(member, (member + 1) % members, (member + 1 - step) % members, reduce=False)
    return ring.build()


def profile(members: int) -> list[Rounds]:
    """What a round is, for the closed form."""
    return [Rounds(members - 1, 1 / members, True), Rounds(members - 1, 1 / members, False)]
