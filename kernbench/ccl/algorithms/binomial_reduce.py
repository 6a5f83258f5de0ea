"""Binomial tree reduce: the number of those who still have a part halves with each step; ``ceil(log2(n))`` steps.

Order of reduction: a member's own, then its children's subtrees, the smallest first; numbers count from the root.
"""

from __future__ import annotations

from kernbench.ccl.schedule import Schedule, ScheduleBuilder
from kernbench.ccl.shapes import binomial_tree, reduce_up

COLLECTIVE = "reduce"
TOPOLOGIES = ("tree", "all_to_all")


def build(members: int, root: int) -> Schedule:
    """The schedule for ``members`` >= 1 members, towards member ``root``."""
    tree = ScheduleBuilder("binomial_reduce", members, chunks=1)
    reduce_up(tree, [(binomial_tree(members, root), range(1))], back=False)
    return tree.build()
