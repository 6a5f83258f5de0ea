"""What ranks that have ended leave on a GPU: nothing."""

from __future__ import annotations

import itertools

import torch
import torch.distributed as dist

import kernbench


def test_all_is_free_though_a_tensor_is_kept() -> None:
    kept: list[torch.Tensor] = []
    free: list[int] = []

    def worker(rank: int) -> None:
        free.append(torch.cuda.mem_get_info()[0])
        dist.init_process_group("nccl")
        kept.append(torch.ones(1 << 20, device="cuda"))
        dist.all_reduce(kept[-1])

    with kernbench.simulate("dgx_h100") as ctx:
        for _ in range(3):
            ctx.multiprocessing.spawn(worker, nprocs=1)
        assert [tensor.sum().item() for tensor in kept] == [1 << 20] * 3
    assert [before - after for before, after in itertools.pairwise(free)] == [0, 0]
