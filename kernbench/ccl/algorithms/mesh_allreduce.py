"""All-reduce on a mesh without wrap-around: along rows and columns to a root in the centre, and back.

From both ends of a row the sums travel towards the centre column, along that from both ends to the centre; the result
goes back the same ways. One half of the buffer goes rows first, the other columns first, so that the links of both
directions work. A cell follows the one before in a pipeline of ``chunks`` cells per half.

Order of reduction: a member's own, then what comes along its line from either side, then what comes across.
"""

from __future__ import annotations

import numpy as np

from kernbench.ccl.placement import Placement
from kernbench.ccl.schedule import CannotServeError, IntArray, Schedule, ScheduleBuilder
from kernbench.ccl.shapes import ROOT, reduce_up

COLLECTIVE = "all_reduce"
TOPOLOGIES = ("mesh_2d_no_wrap", "torus_2d")


def build(members: int, where: Placement, chunks: int = 4) -> Schedule:
    """The schedule for members that fill a rectangle of one node's grid."""
    plane = where.plane
    if plane is None:
        raise CannotServeError("mesh_allreduce: the members do not fill a rectangle of a torus or a mesh of one node")
    mesh = ScheduleBuilder("mesh_allreduce", members, cells=2 * chunks)
    halves = [(towards_centre(plane), range(chunks)), (towards_centre(plane.T), range(chunks, 2 * chunks))]
    reduce_up(mesh, halves, back=True)
    return mesh.build()


def towards_centre(plane: IntArray) -> list[int]:
    """The tree in which members ``[rows, columns]`` pass on along their row to the centre column, and along that."""
    rows, columns = plane.shape
    middle_row, middle_column = rows // 2, columns // 2
    parents = [ROOT] * plane.size
    for row, column in np.ndindex(rows, columns):
        if column != middle_column:
            parents[plane[row, column]] = int(plane[row, column + (1 if column < middle_column else -1)])
        elif row != middle_row:
            parents[plane[row, column]] = int(plane[row + (1 if row < middle_row else -1), column])
    return parents
