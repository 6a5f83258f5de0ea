"""The summary, against the op log added up another way."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import kernbench
from kernbench.runtime_api.context import RuntimeContext
from kernbench.trace import summary
from kernbench.trace.spans import pack


def sampled(ctx: RuntimeContext, rank: int, kinds: set[str], grid: Any) -> Any:
    """Whether an operation of these kinds is running, at each point of a fine grid of times."""
    running = np.zeros(len(grid), dtype=bool)
    for op in ctx.engine.op_log.operations:
        if op.rank == rank and op.kind in kinds:
            running |= (grid >= op.start) & (grid < op.end)
    return running


def test_shares_add_up_to_the_length(ctx: RuntimeContext) -> None:
    figures = summary(ctx)
    assert figures.length == pytest.approx(ctx.now())
    for row in figures.ranks:
        total = row.compute + row.communication + row.copy + row.host + row.idle
        assert total == pytest.approx(figures.length)
        assert min(row.compute, row.communication, row.overlapped, row.copy, row.host, row.idle) >= -1e-15


def test_shares_are_those_of_a_sampled_timeline(ctx: RuntimeContext) -> None:
    figures = summary(ctx)
    grid = np.linspace(0, figures.length, 200_001)
    step = grid[1]
    for row in figures.ranks:
        compute = sampled(ctx, row.rank, {"kernel", "gemm", "math"}, grid)
        communication = sampled(ctx, row.rank, {"collective"}, grid)
        copy = sampled(ctx, row.rank, {"dma"}, grid)
        tolerance = 40 * step
        assert row.compute == pytest.approx(compute.sum() * step, abs=tolerance)
        assert row.communication == pytest.approx((communication & ~compute).sum() * step, abs=tolerance)
        assert row.overlapped == pytest.approx((communication & compute).sum() * step, abs=tolerance)
        assert row.copy == pytest.approx((copy & ~communication & ~compute).sum() * step, abs=tolerance)
        assert row.compute > 0
        assert row.overlapped > 0
        assert row.copy > 0


def test_what_collectives_move(ctx: RuntimeContext) -> None:
    rows = {row.name: row for row in summary(ctx).collectives}
    assert [(name, row.calls) for name, row in rows.items()] == [("all_reduce", 2), ("broadcast", 1), ("barrier", 1)]
    assert rows["all_reduce"].payload == 2 * 400_000
    assert rows["all_reduce"].moved == 2 * 2 * 7 * 400_000  # a ring sends 2 (n - 1) / n of the buffer, n times
    assert rows["broadcast"].moved == 3 * 400_000  # along a chain of four


def test_the_table(ctx: RuntimeContext) -> None:
    lines = str(summary(ctx)).splitlines()
    assert lines[0].startswith("length ")
    ranks = [line.split() for line in lines if line.strip() and line.split()[0].isdigit()]
    assert [int(cells[0]) for cells in ranks] == list(range(8))
    for cells in ranks:
        percents = [float(cell.rstrip("%")) for cell in cells if cell.endswith("%")]
        assert sum(percents) - percents[2] == pytest.approx(100, abs=0.3)  # overlapped is part of compute


def test_nothing_happened() -> None:
    with kernbench.simulate() as ctx:
        figures = summary(ctx)
    assert (figures.length, figures.ranks, figures.collectives) == (0.0, (), ())
    assert str(figures).startswith("length 0.000 us")


def test_lanes_hold_no_overlaps() -> None:
    random = np.random.default_rng(0)
    begins = np.sort(random.integers(0, 1000, 300))
    intervals = [(float(begin), float(begin + length)) for begin, length in zip(begins, random.integers(0, 50, 300))]  # noqa: B905
    lanes = pack(intervals)
    for lane in set(lanes):
        mine = [interval for interval, number in zip(intervals, lanes, strict=True) if number == lane]
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(mine))
    deepest = max(sum(begin <= at < end for begin, end in intervals) for at in range(1050))
    assert max(lanes) + 1 <= deepest + 1
