"""All-reduce by dimension on a torus: reduce-scatter along rows, along columns, and all-gather back.

Each ring lies on neighbouring SIPs, so no two transfers share a link (Ying et al., "Image classification at supercomputer
scale", 2018, section 4: 2-D all-reduce on TPU tori). Order of reduction of a chunk: around the row's ring, against the
numbers, ending at its owner; then around the column's likewise.
"""

from __future__ import annotations

from kernbench.ccl.algorithms._grid import all_reduce_along
from kernbench.ccl.placement import Placement
from kernbench.ccl.schedule import CannotServeError, Schedule

COLLECTIVE = "all_reduce"
TOPOLOGIES = ("torus_2d",)


def build(members: int, where: Placement) -> Schedule:
    """The schedule for members that fill a rectangle of one node's grid."""
    planes = where.planes
    if planes is None or len(planes) > 1:
        raise CannotServeError("torus_allreduce: the members do not fill a rectangle of a torus or a mesh of one node")
    return all_reduce_along("torus_allreduce", planes[0], inner_first=(1, 0))
