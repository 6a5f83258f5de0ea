"""The speed bench of torch.distributed: all sides run the same program."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from kernbench.benches.distributed_speed import EmptyMode, all_reduces, family_memory, process_figures
from kernbench.benches.harness.distributed_sides import SIDES, GlooProcesses


def total(rank: int, world_size: int, value: float) -> list[float]:
    """What an all-reduce of ``value`` gives."""
    tensor = torch.full((4,), value)
    dist.all_reduce(tensor)
    return [float(tensor.sum())]


@pytest.mark.parametrize("side", ["kernbench", "processes", "threaded"])
def test_a_side_runs_the_program_in_every_rank(side):
    run = SIDES[side](3, total, 0.5)
    assert run.result == [6.0]
    assert run.seconds > 0
    assert not dist.is_initialized()


@pytest.mark.parametrize("side", ["kernbench", "threaded", "local tensors"])
def test_a_side_times_all_reduces(side):
    (seconds,) = SIDES[side](2, all_reduces, 16, 1).result
    assert seconds > 0


def test_an_idle_rank_that_is_a_process_adds_its_memory():
    one, three = (SIDES["processes"](ranks, family_memory).result[0] for ranks in (1, 3))
    assert 0 < three - one < one


def test_figures_of_processes_stand_beside_sides_that_there_are():
    figures = process_figures()
    assert len({figure.name for figure in figures}) == len(figures)
    for figure in figures:
        ours, *others = figure.sides()
        assert ours == "processes"
        assert set(figure.goals) <= set(others)


def test_a_side_raises_what_a_rank_raised():
    def broken(rank: int, world_size: int) -> None:
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        SIDES["threaded"](2, broken)


@pytest.mark.long  # processes that import torch
def test_gloo_processes_that_stay_run_one_program_after_the_other():
    with GlooProcesses(2) as gloo:
        assert gloo.run(total, 0.5).result == [4.0]
        assert gloo.run(total, 1.5).result == [12.0]
        with pytest.raises(RuntimeError, match="on purpose"):
            gloo.run(broken)


def broken(rank: int, world_size: int) -> None:
    """Fails in one of the ranks."""
    if rank == 1:
        raise ValueError("on purpose")


def test_an_empty_mode_is_passed_by_every_operation():
    seen = []

    class Counting(EmptyMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return super().__torch_dispatch__(func, types, args, kwargs)

    with Counting():
        assert torch.equal(torch.ones(2) + 1, torch.full((2,), 2.0))
    assert seen
