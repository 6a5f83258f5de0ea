"""Collectives along the axes of a grid of members, by rings."""

from __future__ import annotations

from collections.abc import Sequence

from kernbench.ccl.schedule import IntArray, Schedule, ScheduleBuilder, reversed_schedule
from kernbench.ccl.shapes import gather_along


def all_gather_along(name: str, grid: IntArray, axes: Sequence[int]) -> Schedule:
    """All-gather along ``axes``, one after the other."""
    builder = ScheduleBuilder(name, grid.size, chunks=grid.size)
    gather_along(builder, grid, axes)
    return builder.build()


def all_reduce_along(name: str, grid: IntArray, *, inner_first: Sequence[int]) -> Schedule:
    """Reduce-scatter along ``inner_first``, one axis after the other, and all-gather back."""
    gathering = all_gather_along(name, grid, tuple(reversed(inner_first)))
    builder = ScheduleBuilder(name, grid.size, chunks=grid.size)
    return builder.extend(reversed_schedule(name, gathering)).extend(gathering).build()
