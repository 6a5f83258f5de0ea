"""Bugs of public trackers: the wrong program is reported, at its line; of the right one nothing is said."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

import kernbench
from tests.bugs.cases import BUGS, FILLED, Bug


def _run(
    bug: Bug, fixed: bool, races: bool, isolation: str = "carrier", **options: object
) -> tuple[dict[int, BaseException], tuple[str, ...]]:
    """What the ranks raised, and what the summary remarks."""

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        if bug.sets_device:
            torch.cuda.set_device(rank)
        bug.program(fixed)

    with kernbench.simulate("dgx_h100", races=races, **{**bug.options, **options}) as ctx:
        try:
            ctx.multiprocessing.spawn(worker, nprocs=bug.ranks, isolation=isolation)
        except kernbench.SpawnException as failure:
            return dict(failure.errors), tuple(ctx.simulation.remarks)
        return {}, tuple(ctx.simulation.remarks)


def _line(bug: Bug) -> str:
    """File and line of the mark, as reports write them."""
    module = sys.modules[bug.program.__module__]
    text = inspect.getsource(module if bug.mark != "here" else bug.program).splitlines()
    first = 1 if bug.mark != "here" else inspect.getsourcelines(bug.program)[1]
    numbers = [number for number, line in enumerate(text, first) if line.endswith(f"# {bug.mark}")]
    if not numbers:  # in a class of the module
        whole = inspect.getsource(module).splitlines()
        numbers = [number for number, line in enumerate(whole, 1) if line.endswith(f"# {bug.mark}")]
        numbers = [max(number for number in numbers if number < first)]
    return f"{str(inspect.getsourcefile(module)).rpartition('/')[2]}:{numbers[0]}"


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.program.__name__)
def test_the_wrong_program_is_reported(bug: Bug) -> None:
    errors, remarks = _run(bug, fixed=False, races=bug.races)
    if bug.error is None:
        assert errors == {}
        assert bool(remarks) == bool(bug.remark)
        assert all(bug.remark in each for each in remarks)
        return
    assert errors
    error = next(iter(errors.values()))
    assert isinstance(error, bug.error)
    text = "\n".join((str(error), *getattr(error, "__notes__", ()), str(error.__context__)))
    assert bug.says in text
    if bug.mark:
        assert _line(bug) in text


OF_SEVERAL_RANKS = (
    "ranks_on_one_gpu",
    "barrier_on_the_first_gpu",
    "group_of_each_nodes_own_ranks",
    "group_made_by_its_members",
    "messages_before_all_have_met",
    "state_of_all_ranks_on_the_first_gpu",
)
"""Programs whose fault is in what ranks share beside a collective's members."""


@pytest.mark.parametrize(
    "bug", [bug for bug in BUGS if bug.program.__name__ in OF_SEVERAL_RANKS], ids=lambda bug: bug.program.__name__
)
def test_ranks_that_are_processes_raise_the_same(bug: Bug) -> None:
    alone, together = (_run(bug, fixed=False, races=False, isolation=each) for each in ("process", "carrier"))
    assert {rank: (type(error), str(error)) for rank, error in alone[0].items()} == {
        rank: (type(error), str(error)) for rank, error in together[0].items()
    }
    assert (bool(alone[0]), alone[1]) == (bug.error is not None, together[1])


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.program.__name__)
def test_nothing_is_said_of_the_right_program(bug: Bug) -> None:
    assert _run(bug, fixed=True, races=True) == ({}, ())


@pytest.mark.parametrize("program", FILLED, ids=lambda program: program.__name__)
def test_memory_that_nobody_has_written_shows_when_it_is_filled(
    program: Callable[[bool], None], capfd: pytest.CaptureFixture[str]
) -> None:
    bug = next(bug for bug in BUGS if bug.program is program)
    for fixed in (False, True):
        assert _run(bug, fixed=fixed, races=False, fill_uninitialized="nan") == ({}, ())
        assert ("nan" in capfd.readouterr().out) is not fixed


@pytest.mark.parametrize("chosen", [False, True])
def test_a_gpu_that_nobody_has_chosen_is_remarked(chosen: bool) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        if chosen:
            torch.cuda.set_device(rank)
        dist.all_reduce(torch.ones(4, device="cuda"))

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=2)
        remarks = list(ctx.simulation.remarks)
    assert [remark.startswith("`cuda` is each rank's own GPU here") for remark in remarks] == ([] if chosen else [True])
