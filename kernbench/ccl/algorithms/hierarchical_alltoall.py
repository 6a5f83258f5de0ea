"""Hierarchical all-to-all: inside a node first, so that what leaves goes from a member to its namesake on other nodes.

A message passes one NIC and one rail; a node's members use all NICs at once, with fewer and larger messages than a
direct all-to-all (NCCL's PXN has the same ways). All chunks must be equally long. Nodes with different numbers of members:
pairwise.
"""

from __future__ import annotations

import numpy as np

from kernbench.ccl.algorithms import pairwise_alltoall
from kernbench.ccl.placement import Placement
from kernbench.ccl.schedule import Schedule, ScheduleBuilder

COLLECTIVE = "all_to_all"
TOPOLOGIES = ("hierarchical", "all_to_all")


def build(members: int, where: Placement) -> Schedule:
    """The schedule for ``members`` >= 1 members; chunks as in ``pairwise_alltoall``."""
    grid = where.even
    if grid is None:
        return pairwise_alltoall.build(members)
    nodes, local = grid.shape
    both = ScheduleBuilder("hierarchical_alltoall", members, chunks=2 * members, scratch=np.zeros(members))
    node, number = (index.reshape(-1) for index in np.indices(grid.shape))
    member = grid.reshape(-1)
    # scratch chunk of a member (a, j): what (a, i) has for (b, j) waits in chunk i * nodes + b
    for shift in range(local):
        peer = (number + shift) % local
        for target in range(nodes):
            chunk, waits = grid[target, peer], 2 * members + number * nodes + target
            if shift == 0:
                both.local(member, chunk, waits, reduce=False)
            else:
                both.round(member, grid[node, peer], chunk, reduce=False, to_chunk=waits)
    for shift in range(nodes):
        there = (node + shift) % nodes
        for origin in range(local):
            waits, lands = 2 * members + origin * nodes + there, members + grid[node, origin]
            if shift == 0:
                both.local(member, waits, lands, reduce=False)
            else:
                both.round(member, grid[there, number], waits, reduce=False, to_chunk=lands)
    return both.build()
