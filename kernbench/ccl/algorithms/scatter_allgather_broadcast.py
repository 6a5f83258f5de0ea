"""Broadcast as a scatter along a binomial tree and a ring all-gather: about two buffers per link, whatever n.

Van de Geijn's algorithm for long messages (Barnett et al., "Interprocessor collective communication library", 1994).
"""

from __future__ import annotations

from kernbench.ccl.algorithms import ring_allgather
from kernbench.ccl.schedule import Schedule, ScheduleBuilder
from kernbench.ccl.shapes import binomial_tree, scatter_down

COLLECTIVE = "broadcast"
TOPOLOGIES = ("all_to_all",)


def build(members: int, root: int) -> Schedule:
    """The schedule for ``members`` >= 1 members, from member ``root``."""
    both = ScheduleBuilder("scatter_allgather_broadcast", members, chunks=members)
    scatter_down(both, binomial_tree(members, root))
    return both.extend(ring_allgather.build(members)).build()
