"""Binomial tree scatter: a member gets its whole subtree's chunks and passes them on; ``ceil(log2(n))`` steps."""

from __future__ import annotations

from kernbench.ccl.schedule import Schedule, ScheduleBuilder
from kernbench.ccl.shapes import binomial_tree, scatter_down

COLLECTIVE = "scatter"
TOPOLOGIES = ("tree", "all_to_all")


def build(members: int, root: int) -> Schedule:
    """The schedule for ``members`` >= 1 members; chunk m of member ``root`` goes to member m."""
    tree = ScheduleBuilder("binomial_scatter", members, chunks=members)
    scatter_down(tree, binomial_tree(members, root))
    return tree.build()
