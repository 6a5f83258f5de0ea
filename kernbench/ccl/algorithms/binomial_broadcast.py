"""Binomial tree broadcast: each rank that has the buffer passes it on; their number doubles with each step.

``ceil(log2(n))`` steps with the whole buffer each: for short messages.
"""

from __future__ import annotations

from kernbench.ccl.schedule import Schedule, ScheduleBuilder
from kernbench.ccl.shapes import binomial_tree, reduce_up

COLLECTIVE = "broadcast"
TOPOLOGIES = ("tree", "all_to_all")


def build(members: int, root: int) -> Schedule:
    """The schedule for ``members`` >= 1 members, from member ``root``."""
    tree = ScheduleBuilder("binomial_broadcast", members, chunks=1)
    reduce_up(tree, [(binomial_tree(members, root), range(1))], back=True, up=False)
    return tree.build()
