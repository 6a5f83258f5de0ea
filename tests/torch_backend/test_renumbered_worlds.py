"""Ranks that have another number in their second world than in their first, as workers of a pool that take what comes."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import kernbench

ORDERS = ([0, 1, 2], [0, 2, 1], [1, 0, 2], [2, 0, 1], [0, 1, 2])
"""By world: the number that each process gives itself. Some keep theirs where others do not."""


def _work(process: int) -> None:
    for order in ORDERS:
        rank = order[process]
        dist.init_process_group("nccl", "tcp://localhost:29511", rank=rank, world_size=3)
        found = [torch.empty(1, device="cuda") for _ in order]
        dist.all_gather(found, torch.full((1,), float(rank), device="cuda"))
        assert [each.item() for each in found] == [0, 1, 2]
        assert dist.get_rank() == rank
        dist.destroy_process_group()


@pytest.mark.parametrize("isolation", ["carrier", "process"])
def test_a_world_has_the_numbers_of_its_own_time(isolation: str) -> None:
    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(_work, nprocs=3, isolation=isolation)
