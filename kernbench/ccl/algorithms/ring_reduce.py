"""Pipelined ring reduce: partial results travel along the ring towards the root, chunk by chunk.

The mirror image of the pipelined ring broadcast: the member after the root starts, every member adds its own, the root comes
last. Order of reduction: root + 1, root + 2, ..., root.
"""

from __future__ import annotations

import numpy as np

from kernbench.ccl.schedule import Rounds, Schedule, ScheduleBuilder

COLLECTIVE = "reduce"
TOPOLOGIES = ("ring_1d",)
CHUNKS = 8


def build(members: int, root: int, chunks: int = CHUNKS) -> Schedule:
    """The schedule for ``members`` >= 1 members, numbered along the ring, towards member ``root``."""
    chain = ScheduleBuilder("ring_reduce", members, chunks=chunks)
    hops = np.arange(members - 1)
    for step in range(members - 2 + chunks if members > 1 else 0):
        chunk = step - hops
        active = hops[(chunk >= 0) & (chunk < chunks)]
        chain.round((root + 1 + active) % members, (root + 2 + active) % members, step - active, reduce=True)
    return chain.build()


def profile(members: int) -> list[Rounds]:
    """What a round is, for the closed form."""
    if members == 1:
        return []
    return [Rounds(members - 1, 1 / CHUNKS, True, "fill"), Rounds(CHUNKS - 1, 1 / CHUNKS, True, "stream")]
