"""Reduction and multicast in the switch of a node.

An owner's part of every member's buffer goes up to the switch, which sums it in the order of the members' numbers,
keeps wide sums, and hands the owner one result: its link carries the sum only. Back, the owner's one copy comes down to
all members. NVLink SHARP does this (``multimem.ld_reduce`` with ``.acc::f32`` and ``multimem.st`` of PTX); in which order
it adds is not published, so this order is a choice.
"""

from __future__ import annotations

import numpy as np

from kernbench.ccl.placement import Placement
from kernbench.ccl.schedule import CannotServeError, IntArray, ScheduleBuilder, Way
from kernbench.ccl.shapes import fold_slots


def require_switch(name: str, where: Placement) -> IntArray:
    """``[nodes, local]`` members. Raises CannotServeError where no switch can reduce for all of them."""
    if not where.reduces_in_switch:
        raise CannotServeError(f"{name}: the SIPs are not joined by a switch that reduces")
    if where.even is None:
        raise CannotServeError(f"{name}: the nodes have different numbers of members")
    return where.even


def reduce_in_switches(builder: ScheduleBuilder, grid: IntArray, chunk_of: IntArray, scratch: int) -> None:
    """In every node, member ``grid[node, o]`` gets the sum of chunk ``chunk_of[o]`` over its node.

    Scratch chunks ``scratch .. scratch + local - 1`` are used.
    """
    nodes, local = grid.shape
    number = np.broadcast_to(np.arange(local), (nodes, local))
    for shift in range(1, local):
        owner = (number + shift) % local
        target = np.take_along_axis(grid, owner, axis=1)
        builder.round(
            grid.reshape(-1), target.reshape(-1), chunk_of[owner].reshape(-1), reduce=False,
            to_chunk=scratch + number.reshape(-1), way=Way.UP,
        )  # fmt: skip
    owner = np.tile(np.arange(local), nodes)
    fold_slots(builder, grid.reshape(-1), owner, local, chunk_of[owner], scratch)


def multicast(builder: ScheduleBuilder, grid: IntArray, chunk_of: IntArray) -> None:
    """In every node, chunk ``chunk_of[o]`` of member ``grid[node, o]`` reaches the whole node."""
    nodes, local = grid.shape
    number = np.broadcast_to(np.arange(local), (nodes, local))
    for shift in range(1, local):
        owner = (number + shift) % local
        source = np.take_along_axis(grid, owner, axis=1)
        builder.round(source.reshape(-1), grid.reshape(-1), chunk_of[owner].reshape(-1), reduce=False, way=Way.DOWN)
