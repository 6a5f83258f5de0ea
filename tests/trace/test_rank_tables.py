"""Tables of ranks: all of a few, and of many those that stand out, with equal ones in one line."""

from __future__ import annotations

import statistics

import pytest
import torch

import kernbench
from kernbench.trace.memory_report import memory_lines, memory_of_ranks
from kernbench.trace.rank_tables import MOST, RankRow, runs_of, table_lines
from kernbench.trace.rank_times import rank_times, time_lines


def lines_of(sizes: list[float]) -> list[tuple[str, str, str]]:
    rows = [RankRow(rank, (f"{size:g}",), (size,)) for rank, size in enumerate(sizes)]
    return [(line.name, *line.cells, line.mark) for line in table_lines(rows, "most", "least")]


def test_few_ranks_have_a_line_each() -> None:
    assert lines_of([2.0, 1.0] * (MOST // 2)) == [(str(rank), "12"[rank % 2 == 0], "") for rank in range(MOST)]


def test_equal_ranks_share_a_line() -> None:
    assert lines_of([1.0] * 4096) == [("0-4095", "1", "")]
    assert lines_of([1.0] * 63 + [2.0]) == [("0-62", "1", "median, least"), ("63", "2", "most")]
    assert lines_of([3.0, 1.0, 2.0] * 21) == [
        ("0 and 20 more", "3", "most"), ("1 and 20 more", "1", "least"), ("2 and 20 more", "2", "median"),
    ]  # fmt: skip


@pytest.mark.parametrize("count", [17, 64, 101])
def test_of_many_kinds_the_extremes_and_the_median_are_shown(count: int) -> None:
    sizes = [float(rank * 37 % count) for rank in range(count)]  # each once: 37 is prime to all of the counts
    shown = lines_of(sizes)
    assert [mark for _, _, mark in shown] == ["most", "median", "least", ""]
    assert [float(cells) for _, cells, _ in shown[:3]] == [max(sizes), statistics.median_low(sizes), min(sizes)]
    assert [sizes[int(name)] for name, _, _ in shown[:3]] == [float(cells) for _, cells, _ in shown[:3]]
    assert shown[3][1] == f"{count - 3} ranks between these, of {count - 3} kinds"


def test_names_of_runs() -> None:
    assert runs_of([3, 1, 2, 9]) == "1-3, 9"
    assert runs_of([0, 2, 4, 6], most=2) == "0 and 3 more"
    assert runs_of([0, 1, 5, 6], most=2) == "0-1, 5-6"


def test_a_straggler_and_the_fullest_rank_are_named() -> None:
    def worker(rank: int) -> None:
        x = torch.ones(4 << 20 if rank == 5 else 1 << 20, device="cuda")
        for _ in range(4):
            x = x * 2

    with kernbench.simulate("dgx_h100", nodes=3, enable_data=False, stragglers={17: 3.0, 5: 0.1}) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=24)
        times = [line.split() for line in time_lines(rank_times(ctx.simulation))]
        peaks = {each.rank: each.peak for each in memory_of_ranks(ctx.simulation)}
        memory = [line.split() for line in memory_lines(ctx)]
    marks = {line[-1]: line[0] for line in times}
    assert marks["slowest"] == "17"
    assert len(times) == 4
    table = memory[1 : next(at for at, line in enumerate(memory) if line[0] == "in")]
    assert len(table) == 3
    assert next(line[0] for line in table if "fullest" in line) == str(max(peaks, key=lambda rank: peaks[rank]))
