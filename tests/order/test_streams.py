"""Races of streams, hosts and collectives: found with both lines where they are, and nowhere else."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import kernbench
from kernbench.order import Races
from tests.order.stream_programs import PAIRS

Program = Callable[[bool], None]


def races_of(body: Callable[..., None], *args: Any, world: int = 2, **options: Any) -> Races:
    """The races of a program on simulated GPUs."""

    def worker(rank: int) -> None:
        dist.init_process_group()
        torch.cuda.set_device(rank)
        body(*args)

    with kernbench.simulate("dgx_h100", races="warn", **options) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=world)
        return ctx.simulation.order.races


def marked(program: Program, mark: str) -> int:
    """The line of a program that has a mark."""
    lines, first = inspect.getsourcelines(program)
    (found,) = [number for number, line in enumerate(lines, first) if line.rstrip().endswith(f"# {mark}")]
    return found


@pytest.mark.parametrize("data", [True, False], ids=["data", "no data"])
@pytest.mark.parametrize("program", PAIRS, ids=lambda program: program.__name__)
def test_a_race_is_found_where_it_is_and_only_there(program: Program, data: bool) -> None:
    found = races_of(program, False, enable_data=data).found
    assert found, "the program has a race"
    lines = {(race.first.where.line, race.second.where.line) for race in found}
    assert lines == {(marked(program, "first"), marked(program, "second"))}
    assert races_of(program, True, enable_data=data).found == []
