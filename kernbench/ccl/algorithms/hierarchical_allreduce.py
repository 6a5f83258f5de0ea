"""Hierarchical all-reduce: reduce-scatter inside each node, all-reduce between nodes, all-gather inside.

The links inside a node carry ``(L - 1) / L`` of the buffer each way, the NICs only ``1 / L`` of it per member, all NICs at
once (Jia et al., "Highly scalable deep learning training system with mixed-precision", 2018, section 3.2; also
"2D-ring"). Each stage is a ring. Where nodes have different numbers of members it is the tree of ``tree_allreduce``.

Order of reduction of a chunk: around the node's ring, against the numbers, ending at its owner; then around the ring of
nodes likewise.
"""

from __future__ import annotations

from kernbench.ccl.algorithms import tree_allreduce
from kernbench.ccl.algorithms._grid import all_reduce_along
from kernbench.ccl.placement import Placement
from kernbench.ccl.schedule import Schedule

COLLECTIVE = "all_reduce"
TOPOLOGIES = ("hierarchical", "all_to_all")


def build(members: int, where: Placement) -> Schedule:
    """The schedule for ``members`` >= 1 members standing on ``where.nodes`` nodes."""
    grid = where.even
    if grid is None:
        return tree_allreduce.build(members, where)
    return all_reduce_along("hierarchical_allreduce", grid, inner_first=(1, 0))
