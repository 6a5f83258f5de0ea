"""Collectives of tensors that hold others, and of tensors whose memory is gone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.two_tensor import TwoTensor

import kernbench
from kernbench.errors import KernbenchError

WORLD = 2


def two(value: float, count: int) -> TwoTensor:
    return TwoTensor(torch.full((count,), value, device="cuda"), torch.full((count,), 10 * value, device="cuda"))


def held(tensor: Any) -> list[list[float]]:
    return [tensor.a.tolist(), tensor.b.tolist()]


def run(body: Any) -> list[Any]:
    found: list[Any] = []

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank)
        gathered: list[Any] = [None] * WORLD
        dist.all_gather_object(gathered, body(rank))
        if rank == 0:
            found.extend(gathered)

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=WORLD)
    return found


def test_a_collective_is_called_with_each_of_what_a_tensor_holds() -> None:
    def body(rank: int) -> Any:
        summed, cells, gathered, mine = (
            two(rank + 1.0, 2),
            [two(0.0, 2) for _ in range(WORLD)],
            two(0.0, 4),
            two(0.0, 1),
        )
        dist.all_reduce(summed)
        dist.all_gather(cells, two(rank + 1.0, 2))
        dist.all_gather_into_tensor(gathered, two(rank + 1.0, 2))
        dist.scatter(mine, [two(5.0, 1), two(6.0, 1)] if rank == 0 else None, src=0)
        return held(summed), [held(cell) for cell in cells], held(gathered), held(mine)

    first, second = run(body)
    assert first[0] == second[0] == [[3.0] * 2, [30.0] * 2]
    assert first[1] == second[1] == [[[1.0] * 2, [10.0] * 2], [[2.0] * 2, [20.0] * 2]]
    assert first[2] == second[2] == [[1.0, 1.0, 2.0, 2.0], [10.0, 10.0, 20.0, 20.0]]
    assert (first[3], second[3]) == ([[5.0], [50.0]], [[6.0], [60.0]])


def test_a_tensor_that_holds_others_and_one_that_does_not_are_refused_together() -> None:
    def body(rank: int) -> Any:
        with pytest.raises(KernbenchError, match=r"a collective of Tensor and TwoTensor: .* have to be given together"):
            dist.all_gather_into_tensor(torch.zeros(4, device="cuda"), two(1.0, 2))

    run(body)


@pytest.mark.parametrize("which", ["input", "output"])
def test_memory_that_is_taken_away_while_a_collective_needs_it_is_an_error(which: str) -> None:
    def body(rank: int) -> Any:
        part, whole = torch.ones(4, device="cuda"), torch.empty(8, device="cuda")
        work = dist.all_gather_into_tensor(whole, part, async_op=True)
        (part if which == "input" else whole).untyped_storage().resize_(0)
        assert work is not None
        with pytest.raises(KernbenchError, match=r"all_gather, which rank 0 called at .*test_collective_tensors.py"):
            work.wait()

    run(body)


def test_memory_may_be_taken_away_behind_a_wait() -> None:
    def body(rank: int) -> Any:
        part, whole = torch.full((4,), float(rank), device="cuda"), torch.empty(8, device="cuda")
        work = dist.all_gather_into_tensor(whole, part, async_op=True)
        assert work is not None
        work.wait()
        kept = whole + 1
        whole.untyped_storage().resize_(0)
        part.untyped_storage().resize_(0)
        return kept.tolist()

    assert run(body) == [[1.0] * 4 + [2.0] * 4] * 2
