"""Hierarchical all-gather: a ring over the nodes for each local number, then a ring inside each node.

What crosses nodes crosses once, over all NICs. Nodes with different numbers of members: one ring over all.
"""

from __future__ import annotations

from kernbench.ccl.algorithms import ring_allgather
from kernbench.ccl.algorithms._grid import all_gather_along
from kernbench.ccl.placement import Placement
from kernbench.ccl.schedule import Schedule

COLLECTIVE = "all_gather"
TOPOLOGIES = ("hierarchical", "all_to_all")


def build(members: int, where: Placement) -> Schedule:
    """The schedule for ``members`` >= 1 members; chunk m is member m's input."""
    if where.even is None:
        return ring_allgather.build(members)
    return all_gather_along("hierarchical_allgather", where.even, (0, 1))
