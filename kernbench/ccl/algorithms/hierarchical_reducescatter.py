"""Hierarchical reduce-scatter: a ring inside each node, then a ring over the nodes for each local number.

Order of reduction of a chunk: around the node's ring, against the numbers; then around the ring of nodes likewise.
"""

from __future__ import annotations

from kernbench.ccl.algorithms import hierarchical_allgather
from kernbench.ccl.placement import Placement
from kernbench.ccl.schedule import Schedule, reversed_schedule

COLLECTIVE = "reduce_scatter"
TOPOLOGIES = ("hierarchical", "all_to_all")


def build(members: int, where: Placement) -> Schedule:
    """The schedule for ``members`` >= 1 members; chunk m is what member m gets."""
    return reversed_schedule("hierarchical_reducescatter", hierarchical_allgather.build(members, where))
