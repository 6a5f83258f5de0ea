"""What collectives do to values, held against the schedule run transfer by transfer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernbench.ccl.config import load_ccl_config
from kernbench.ccl.movements import move
from kernbench.ccl.reduce_op import ReduceOp
from kernbench.ccl.registry import build_schedule
from kernbench.ccl.schedule import Schedule
from tests.ccl.literal import run_rounds

COUNT = 5
"""Elements per chunk."""


def schedule_of(name: str, members: int, root: int | None = None) -> Schedule:
    return build_schedule(load_ccl_config().select(name).module, members, root)


def work_buffers(schedule: Schedule) -> list[torch.Tensor]:
    """``[chunks * COUNT]`` per member: whole numbers, so that sums are exact in any order."""
    numbers = np.random.default_rng(schedule.members).integers(-9, 10, (schedule.members, schedule.chunks * COUNT))
    return list(torch.from_numpy(numbers).float())


def run_literally(schedule: Schedule, buffers: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    results = [buffer.clone() for buffer in buffers]
    run_rounds(schedule, buffers, results, ReduceOp.SUM)
    return [list(result.split(COUNT)) for result in results]


@pytest.mark.parametrize("members", [1, 2, 3, 8])
def test_all_gather(members: int) -> None:
    schedule = schedule_of("ring_allgather", members)
    buffers = work_buffers(schedule)
    inputs = [[buffer.split(COUNT)[m]] for m, buffer in enumerate(buffers)]
    outputs = [[torch.empty(COUNT) for _ in range(members)] for _ in range(members)]
    move("all_gather", schedule, inputs, outputs, None, None)
    for mine, literal in zip(outputs, run_literally(schedule, buffers), strict=True):
        assert torch.equal(torch.stack(mine), torch.stack(literal))


@pytest.mark.parametrize("members", [1, 2, 3, 8])
def test_reduce_scatter(members: int) -> None:
    schedule = schedule_of("ring_reducescatter", members)
    buffers = work_buffers(schedule)
    outputs = [[torch.empty(COUNT)] for _ in range(members)]
    move("reduce_scatter", schedule, [list(b.split(COUNT)) for b in buffers], outputs, ReduceOp.SUM, None)
    literal = run_literally(schedule, buffers)
    for m, (mine,) in enumerate(outputs):
        assert torch.equal(mine, literal[m][m])
        assert torch.equal(mine, torch.stack([b.split(COUNT)[m] for b in buffers]).sum(0))


@pytest.mark.parametrize("members", [2, 3, 8])
@pytest.mark.parametrize("root", [0, 1])
def test_reduce(members: int, root: int) -> None:
    schedule = schedule_of("ring_reduce", members, root)
    buffers = work_buffers(schedule)
    outputs = [[buffer.clone()] for buffer in buffers]
    move("reduce", schedule, [[b] for b in buffers], outputs, ReduceOp.SUM, root)
    assert torch.equal(outputs[root][0], torch.cat(run_literally(schedule, buffers)[root]))
    assert torch.equal(outputs[root][0], torch.stack(buffers).sum(0))
    assert torch.equal(outputs[1 - root][0], buffers[1 - root])


@pytest.mark.parametrize("members", [1, 2, 5])
def test_gather_is_the_inverse_of_scatter(members: int) -> None:
    schedule = schedule_of("direct_scatter", members, root=0)
    buffers = work_buffers(schedule)
    parts = [[torch.empty(COUNT)] for _ in range(members)]
    move("scatter", schedule, [list(buffers[0].split(COUNT)), *([[]] * (members - 1))], parts, None, 0)
    literal = run_literally(schedule, buffers)
    assert all(torch.equal(parts[m][0], literal[m][m]) for m in range(members))
    whole = [torch.empty(COUNT) for _ in range(members)]
    move("gather", schedule_of("direct_gather", members, 0), parts, [whole, *([[]] * (members - 1))], None, 0)
    assert torch.equal(torch.cat(whole), buffers[0])


@pytest.mark.parametrize("members", [2, 3, 8])
def test_all_to_all(members: int) -> None:
    schedule = schedule_of("pairwise_alltoall", members)
    buffers = work_buffers(schedule)
    outputs = [[torch.empty(COUNT) for _ in range(members)] for _ in range(members)]
    move("all_to_all", schedule, [list(b.split(COUNT)) for b in buffers], outputs, None, None)
    literal = run_literally(schedule, buffers)
    for receiver in range(members):
        for sender in set(range(members)) - {receiver}:
            assert torch.equal(outputs[receiver][sender], literal[receiver][members + sender])
        assert torch.equal(outputs[receiver][receiver], buffers[receiver].split(COUNT)[receiver])


def test_average_of_integers_truncates() -> None:
    schedule = schedule_of("ring_reducescatter", 2)
    outputs = [[torch.empty(1, dtype=torch.int64)] for _ in range(2)]
    inputs = [list(torch.tensor([-3, 4]).split(1)), list(torch.tensor([0, 1]).split(1))]
    move("reduce_scatter", schedule, inputs, outputs, ReduceOp.AVG, None)
    assert [mine.item() for (mine,) in outputs] == [-1, 2]


def test_in_place_all_gather() -> None:
    whole = [torch.zeros(6), torch.zeros(6)]
    for m, buffer in enumerate(whole):
        buffer[3 * m : 3 * m + 3] = m + 1
    schedule = schedule_of("ring_allgather", 2)
    move(
        "all_gather", schedule, [[b.split(3)[m]] for m, b in enumerate(whole)], [b.split(3) for b in whole], None, None
    )
    assert [b.tolist() for b in whole] == [[1, 1, 1, 2, 2, 2]] * 2
