"""Bruck's all-gather: after step k every member has the chunks of 2^(k+1) neighbours; ``ceil(log2(n))`` steps for any n.

Bruck et al., "Efficient algorithms for all-to-all communications in multiport message-passing systems", IEEE TPDS 8
(1997). Chunks go where they belong at once, so nothing is turned round in the end.
"""

from __future__ import annotations

import numpy as np

from kernbench.ccl.schedule import Schedule, ScheduleBuilder

COLLECTIVE = "all_gather"
TOPOLOGIES = ("all_to_all",)


def build(members: int) -> Schedule:
    """The schedule for ``members`` >= 1 members; chunk m is member m's input."""
    bruck = ScheduleBuilder("bruck_allgather", members, chunks=members)
    member = np.arange(members)
    have = 1
    while have < members:
        sent = np.arange(min(have, members - have))[:, None]
        bruck.round(member, (member - have) % members, (member + sent) % members, reduce=False)
        have *= 2
    return bruck.build()
