"""Groups that ranks make of themselves alone, each in the place of the others' one."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import kernbench


def _alone() -> list[object]:
    mine = dist.new_group([dist.get_rank()])
    x = torch.full((2,), float(dist.get_rank()))
    dist.all_reduce(x, group=mine)
    dist.all_reduce(everybody := torch.ones(1))
    return [dist.get_world_size(mine), x.tolist(), everybody.item()]


@pytest.mark.parametrize("isolation", ["carrier", "process"])
def test_each_has_its_own(ranks, isolation: str) -> None:
    if isolation == "process":
        with kernbench.simulate() as ctx:
            ctx.multiprocessing.spawn(_checked, nprocs=3, isolation=isolation)
        return
    assert ranks(_alone, 3) == [[1, [float(rank)] * 2, 3.0] for rank in range(3)]


def _checked(rank: int) -> None:
    dist.init_process_group("gloo")
    assert _alone() == [1, [float(rank)] * 2, 3.0]


def test_a_group_of_one_under_the_number_of_one_that_others_use_is_a_mismatch(ranks) -> None:
    def body() -> None:
        mine = dist.new_group([dist.get_rank()] if dist.get_rank() == 2 else [0, 1])
        dist.all_reduce(torch.ones(2), group=mine)

    with pytest.raises(kernbench.SpawnException, match="Every rank must call new_group for every group"):
        ranks(body, 3)
