"""All-gather by trees that start with the longest distance (PAT, "parallel aggregated trees").

Bruck's steps in reverse: first every chunk goes half-way round, then a quarter, ..., and neighbours last. The large steps,
which leave the node, carry one chunk each; the many chunks of the last steps stay near (Jeaugey, "PAT: a new algorithm for
all-gather and reduce-scatter operations at scale", 2025). Without its limit on buffered chunks.
"""

from __future__ import annotations

import numpy as np

from kernbench.ccl.schedule import Schedule, ScheduleBuilder

COLLECTIVE = "all_gather"
TOPOLOGIES = ("all_to_all",)


def build(members: int) -> Schedule:
    """The schedule for ``members`` >= 1 members; chunk m is member m's input."""
    pat = ScheduleBuilder("pat_allgather", members, chunks=members)
    member = np.arange(members)
    for bit in reversed(range((members - 1).bit_length())):
        distance = 1 << bit
        # held so far: what stands multiples of 2 * distance further on
        for offset in range(0, members - distance, 2 * distance):
            chunk = (member + distance + offset) % members
            pat.round((member + distance) % members, member, chunk, reduce=False)
    return pat.build()
