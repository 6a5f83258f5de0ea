"""Tree all-reduce as NCCL and RCCL have it: a chain inside each node, a double binary tree over the nodes.

Inside a node bandwidth is plenty and a chain uses each link once; between nodes the depth counts. The two trees enter a
node at different members, so that both halves of the data use different NICs.

Order of reduction: along a node's chain from its end to its head, then up the tree over the nodes (github.com/NVIDIA/nccl,
src/graph/trees.cc and connect.cc: which rank is a child of which).
"""

from __future__ import annotations

from kernbench.ccl.placement import Placement
from kernbench.ccl.schedule import Schedule, ScheduleBuilder
from kernbench.ccl.shapes import chained_tree, double_binary_tree, reduce_up

COLLECTIVE = "all_reduce"
TOPOLOGIES = ("tree", "all_to_all")


def build(members: int, where: Placement, chunks: int = 4) -> Schedule:
    """The schedule for ``members`` >= 1 members standing on ``where.nodes`` nodes."""
    trees = ScheduleBuilder("tree_allreduce", members, chunks=2 * chunks)
    first, second = double_binary_tree(where.nodes)
    halves = [
        (chained_tree(where.by_node, first), range(chunks)),
        (chained_tree(where.by_node, second, head=1), range(chunks, 2 * chunks)),
    ]
    reduce_up(trees, halves, back=True)
    return trees.build()
