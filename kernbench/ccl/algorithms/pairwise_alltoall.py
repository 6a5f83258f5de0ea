"""Pairwise all-to-all: in round s every member sends to the member s places on.

Each round is a permutation, so on a full-bisection fabric no two transfers of a round share a port (Thakur, Rabenseifner
and Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 2005, section 4.3).
"""

from __future__ import annotations

import numpy as np

from kernbench.ccl.schedule import Schedule, ScheduleBuilder

COLLECTIVE = "all_to_all"
TOPOLOGIES = ("all_to_all",)


def build(members: int) -> Schedule:
    """The schedule for ``members`` >= 1 members.

    Chunks 0 .. n - 1 of a member are what it sends to each member, chunks n .. 2n - 1 what it gets from each.
    """
    pairs = ScheduleBuilder("pairwise_alltoall", members, chunks=2 * members)
    member = np.arange(members)
    for shift in range(1, members):
        peer = (member + shift) % members
        pairs.round(member, peer, peer, reduce=False, to_chunk=members + member)
    return pairs.build()
