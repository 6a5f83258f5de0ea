"""Pipelined ring reduce: partial results travel along the ring towards the root, cell by cell.

The mirror image of the pipelined ring broadcast: the member after the root starts, everybody adds its own, the root comes
last. Order of reduction: root + 1, root + 2, ..., root.
"""

from __future__ import annotations

import numpy as np

from kernbench.ccl.schedule import Rounds, Schedule, ScheduleBuilder

COLLECTIVE = "reduce"
TOPOLOGIES = ("ring_1d",)
CELLS = 8


def build(members: int, root: int, chunks: int = CELLS) -> Schedule:
    """The schedule for ``members`` >= 1 members, numbered along the ring, towards member ``root``."""
    chain = ScheduleBuilder("ring_reduce", members, cells=chunks)
    hops = np.arange(members - 1)
    for step in range(members - 2 + chunks if members > 1 else 0):
        cell = step - hops
        active = hops[(cell >= 0) & (cell < chunks)]
        chain.round((root + 1 + active) % members, (root + 2 + active) % members, step - active, reduce=True)
    return chain.build()


def profile(members: int) -> list[Rounds]:
    """What a round is, for the closed form."""
    if members == 1:
        return []
    return [Rounds(members - 1, 1 / CELLS, True, "fill"), Rounds(CELLS - 1, 1 / CELLS, True, "stream")]
