"""Binomial tree gather: a member collects its subtree's chunks and passes them on together; ``ceil(log2(n))`` steps."""

from __future__ import annotations

from kernbench.ccl.schedule import Schedule, ScheduleBuilder
from kernbench.ccl.shapes import binomial_tree, gather_up

COLLECTIVE = "gather"
TOPOLOGIES = ("tree", "all_to_all")


def build(members: int, root: int) -> Schedule:
    """The schedule for ``members`` >= 1 members; chunk m of member m goes to member ``root``."""
    tree = ScheduleBuilder("binomial_gather", members, chunks=members)
    gather_up(tree, binomial_tree(members, root))
    return tree.build()
