"""Pipelined ring broadcast: the buffer travels from the root along the ring, chunk by chunk.

With k chunks and n members the last member has everything after ``n - 2 + k`` rounds, so a long buffer costs little more
than one pass over a link (Träff and Ripke, "Optimal broadcast for fully connected processor-node networks", JPDC 2008,
section 2, call it the linear pipeline).
"""

from __future__ import annotations

import numpy as np

from kernbench.ccl.schedule import Rounds, Schedule, ScheduleBuilder

COLLECTIVE = "broadcast"
TOPOLOGIES = ("ring_1d",)
CHUNKS = 8


def build(members: int, root: int, chunks: int = CHUNKS) -> Schedule:
    """The schedule for ``members`` >= 1 members, numbered along the ring, from member ``root``."""
    chain = ScheduleBuilder("ring_broadcast", members, chunks=chunks)
    hops = np.arange(members - 1)
    for step in range(members - 2 + chunks if members > 1 else 0):
        chunk = step - hops  # hop h forwards chunk k in round k + h
        active = hops[(chunk >= 0) & (chunk < chunks)]
        chain.round((root + active) % members, (root + active + 1) % members, step - active, reduce=False)
    return chain.build()


def profile(members: int) -> list[Rounds]:
    """What a round is, for the closed form."""
    if members == 1:
        return []
    return [Rounds(members - 1, 1 / CHUNKS, False, "fill"), Rounds(CHUNKS - 1, 1 / CHUNKS, False, "stream")]
