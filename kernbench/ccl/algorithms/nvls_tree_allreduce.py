"""All-reduce in the switches of all nodes, with binary trees between the nodes.

Member o of a node owns part o: its switch sums it, the owners of that part reduce it over the nodes along a binary tree
and back, and each switch sends it to its node. NCCL calls it NVLSTree. Even owners use one of the two trees of
``double_binary_tree``, odd ones the other.

Order of reduction: the switch's inside a node, rounded; then a node's own, then its children's in the tree.
"""

from __future__ import annotations

import numpy as np

from kernbench.ccl.algorithms._in_switch import multicast, reduce_in_switches, require_switch
from kernbench.ccl.placement import Placement
from kernbench.ccl.schedule import Schedule, ScheduleBuilder
from kernbench.ccl.shapes import ROOT, double_binary_tree, reduce_up

COLLECTIVE = "all_reduce"
TOPOLOGIES = ("switch",)


def build(members: int, where: Placement, chunks: int = 4) -> Schedule:
    """The schedule for members on nodes of equal size whose switches reduce."""
    grid = require_switch("nvls_tree_allreduce", where)
    nodes, local = grid.shape
    work = local * chunks
    switch = ScheduleBuilder("nvls_tree_allreduce", members, work, scratch=np.zeros(local * chunks))
    for chunk in range(chunks):
        reduce_in_switches(switch, grid, np.arange(local) * chunks + chunk, scratch=work + local * chunk)
    between = double_binary_tree(nodes)
    for owner in range(local):
        parents = [ROOT] * members
        for node, above in enumerate(between[owner % 2]):
            if above != ROOT:
                parents[grid[node, owner]] = int(grid[above, owner])
        reduce_up(switch, [(parents, range(owner * chunks, (owner + 1) * chunks))], back=True)
    for chunk in range(chunks):
        multicast(switch, grid, np.arange(local) * chunks + chunk)
    return switch.build()
