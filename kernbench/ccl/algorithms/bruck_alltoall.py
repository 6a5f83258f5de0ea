"""Bruck's all-to-all: ``ceil(log2(n))`` steps, in each of which half of all chunks move; for short messages.

What member i has for member ``i + k`` travels the binary digits of k: in the step of each digit that is 1 it goes that
far (Bruck et al., IEEE TPDS 8, 1997). All chunks must be equally long.
"""

from __future__ import annotations

import numpy as np

from kernbench.ccl.schedule import Schedule, ScheduleBuilder

COLLECTIVE = "all_to_all"
TOPOLOGIES = ("all_to_all",)


def build(members: int) -> Schedule:
    """The schedule for ``members`` >= 1 members; chunks as in ``pairwise_alltoall``."""
    bruck = ScheduleBuilder("bruck_alltoall", members, chunks=2 * members, scratch=np.zeros(members))
    member = np.arange(members)
    travels = 2 * members  # scratch chunk of what has to go k further
    for k in range(1, members):
        bruck.local(member, (member + k) % members, travels + k, reduce=False)
    for bit in range((members - 1).bit_length()):
        for k in range(1, members):
            if k >> bit & 1:
                bruck.round(member, (member + (1 << bit)) % members, travels + k, reduce=False)
    for k in range(1, members):
        bruck.local(member, travels + k, members + (member - k) % members, reduce=False)
    return bruck.build()
