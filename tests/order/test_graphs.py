"""Races of what CUDA graphs replay: found with the captured line and the one that replays, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kernbench.order import ReplayedPlace
from tests.order import graph_programs, kernel_programs
from tests.order.graph_programs import PAIRS, captured
from tests.order.test_streams import races_of


def line(mark: str) -> int:
    """The line of the two modules that has a mark."""
    (found,) = [
        number
        for module in (graph_programs, kernel_programs)
        for number, text in enumerate(Path(module.__file__).read_text().splitlines(), 1)
        if text.endswith(f"# {mark}")
    ]
    return found


@pytest.mark.parametrize("program", PAIRS, ids=lambda program: program.__name__)
def test_a_race_is_found_where_it_is_and_only_there(program: Callable[[bool], None]) -> None:
    found = races_of(program, False).found
    assert found, "the program has a race"
    expected = {line(mark) for mark in PAIRS[program]}
    assert {frozenset((race.first.where.line, race.second.where.line)) for race in found} == {frozenset(expected)}
    assert races_of(program, True).found == []


@pytest.mark.parametrize("program", list(PAIRS)[2:], ids=lambda program: program.__name__)
def test_without_data_it_is_found_too(program: Callable[[bool], None]) -> None:
    assert races_of(program, False, enable_data=False).found
    assert races_of(program, True, enable_data=False).found == []


def test_a_report_has_the_captured_line_and_the_one_that_replays() -> None:
    (race,) = races_of(graph_programs.input_of_a_graph_overwritten_on_another_stream, False, world=1).found
    where = race.first.where
    assert isinstance(where, ReplayedPlace)
    assert where.line == line("captured product")
    assert f", in a graph replayed at {where.replayed}\n" in str(race)
    assert race.record["accesses"][0]["replayed"]["line"] == where.replayed.line
    assert "let stream 1 wait for the default stream" in race.remedy


def test_a_kernels_report_has_the_line_that_launched_it() -> None:
    found = races_of(graph_programs.flag_of_a_call_frozen_in_a_graph, False).found
    assert any(", launched at " in str(race) for race in found)


def test_a_branch_is_no_part_of_the_stream_that_it_was_captured_on() -> None:
    """What is on that stream beside the graph comes neither before nor after a replay."""

    def body() -> None:
        side, x, y = torch.cuda.Stream(), torch.zeros(8, device="cuda"), torch.zeros(8, device="cuda")

        def branches() -> None:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                x.add_(1)
            torch.cuda.current_stream().wait_stream(side)
            y.add_(x)

        graph = captured(branches)
        graph.replay()
        y.sum()  # after all branches
        with torch.cuda.stream(side):
            x.fill_(3)

    found = races_of(body, world=1).found
    assert {race.first.strand.called for race in found} == {"stream 1 of a graph", "the default stream"}
    assert {race.second.name for race in found} == {"fill_.Scalar"}
    assert all("let stream 1 wait for the default stream" in race.remedy for race in found)


def test_replays_of_one_graph_come_one_after_the_other_on_any_stream() -> None:
    def body() -> None:
        x, graph = torch.zeros(8, device="cuda"), torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            x.add_(1)
        for _ in range(2):
            with torch.cuda.stream(torch.cuda.Stream()):
                graph.replay()
        torch.cuda.synchronize()

    assert races_of(body, world=1).found == []


@pytest.mark.parametrize("how", ["replayed", "not replayed", "input not filled"])
def test_memory_that_a_graph_was_to_write(how: str) -> None:
    def body() -> None:
        x = torch.empty(8, device="cuda")
        made: list[torch.Tensor] = []

        def fill() -> None:
            made.append(torch.empty(8, device="cuda"))
            torch.mul(x, 2, out=made[0])

        graph = captured(fill)
        if how != "input not filled":
            x.fill_(1)
        if how != "not replayed":
            graph.replay()
        made[0].tolist()

    found = races_of(body, world=1).found
    assert [each.kind for each in found] == ([] if how == "replayed" else ["read of unwritten memory"])


def test_a_kernel_that_signals_peers_is_captured_without_a_trace() -> None:
    """What it does to peers' memory while it is captured is undone: replays find their signals as they were."""

    def body() -> None:
        buffer, handle = kernel_programs.meet()
        x, out = torch.ones(kernel_programs.N, device="cuda"), torch.empty(kernel_programs.N, device="cuda")

        def reduce() -> None:
            buffer.copy_(x)
            kernel_programs.reduce_by_kernel(handle, out)

        graph = captured(reduce)
        for step in range(2):
            x.fill_(step + handle.rank)
            graph.replay()
            sums.append(out[0].item())

    sums: list[float] = []
    assert races_of(body).found == []
    assert sorted(sums) == [1.0, 1.0, 3.0, 3.0]
