"""All-reduce on meshes without wrap-around: along rows and columns to a root in the centre, between the roots, and back.

From both ends of a row the sums travel towards the centre column, along that from both ends to the centre; the centres of
several meshes (nodes whose SIPs stand in a grid, or SIPs whose cubes do) exchange along a binary tree; the result goes back
the same ways. One half of the buffer goes rows first, the other columns first, so that the links of both directions work.
A chunk follows the one before in a pipeline, ``chunks`` of them per half.

Order of reduction: a member's own, then what comes along its line from either side, then what comes across, then other
meshes' sums.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernbench.ccl.placement import Placement
from kernbench.ccl.schedule import CannotServeError, IntArray, Schedule, ScheduleBuilder
from kernbench.ccl.shapes import ROOT, double_binary_tree, reduce_up

COLLECTIVE = "all_reduce"
TOPOLOGIES = ("mesh_2d_no_wrap", "torus_2d")


def build(members: int, where: Placement, chunks: int = 4) -> Schedule:
    """The schedule for members that fill a rectangle of each node's grid."""
    planes = where.planes
    if planes is None:
        raise CannotServeError("mesh_allreduce: the members do not fill a rectangle of each node's torus or mesh")
    mesh = ScheduleBuilder("mesh_allreduce", members, chunks=2 * chunks)
    rows_first, columns_first = double_binary_tree(len(planes))
    halves = [
        (towards_centres(planes, rows_first), range(chunks)),
        (towards_centres([plane.T for plane in planes], columns_first), range(chunks, 2 * chunks)),
    ]
    reduce_up(mesh, halves, back=True)
    return mesh.build()


def towards_centres(planes: Sequence[IntArray], between: Sequence[int]) -> list[int]:
    """The tree in which members of meshes ``[rows, columns]`` pass on along their row to the centre column, and along that;
    the centres pass on as ``between`` says, parents of the meshes."""
    parents = [ROOT] * sum(plane.size for plane in planes)
    centres = [int(plane[plane.shape[0] // 2, plane.shape[1] // 2]) for plane in planes]
    for plane, centre, above in zip(planes, centres, between, strict=True):
        middle_row, middle_column = plane.shape[0] // 2, plane.shape[1] // 2
        for row, column in np.ndindex(*plane.shape):
            if column != middle_column:
                parents[plane[row, column]] = int(plane[row, column + (1 if column < middle_column else -1)])
            elif row != middle_row:
                parents[plane[row, column]] = int(plane[row + (1 if row < middle_row else -1), column])
        if above != ROOT:
            parents[centre] = centres[above]
    return parents
