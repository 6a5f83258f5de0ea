"""Double binary tree all-reduce: reduce up two binary trees and broadcast down, half of the buffer over each.

An inner member of one tree is a leaf of the other, so every member sends and receives about the whole buffer twice, in
``2 log2(n)`` hops instead of a ring's ``2 (n - 1)`` (Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth
broadcast, reduction and scan", Parallel Computing 35, 2009). Each half is cut into ``chunks`` that follow each
other in a pipeline.

Order of reduction: a member's own, then its children's subtrees one after the other.
"""

from __future__ import annotations

from kernbench.ccl.schedule import Schedule, ScheduleBuilder
from kernbench.ccl.shapes import double_binary_tree, reduce_up

COLLECTIVE = "all_reduce"
TOPOLOGIES = ("tree", "all_to_all")


def build(members: int, chunks: int = 4) -> Schedule:
    """The schedule for ``members`` >= 1 members."""
    trees = ScheduleBuilder("double_binary_tree", members, chunks=2 * chunks)
    first, second = double_binary_tree(members)
    reduce_up(trees, [(first, range(chunks)), (second, range(chunks, 2 * chunks))], back=True)
    return trees.build()
