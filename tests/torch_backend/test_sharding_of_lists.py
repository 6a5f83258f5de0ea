"""DTensor's rules for lists: the flag of strided shards is still passed on, and asked for once."""

from __future__ import annotations

import importlib

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

import kernbench


@pytest.mark.parametrize("strided", [False, True])
def test_the_flag_is_asked_for_once_and_passed_on(strided, monkeypatch):
    rules = importlib.import_module("torch.distributed.tensor._sharding_prop")
    calls: list[int] = []
    stock = rules._propagate_use_strided_shard_flag
    monkeypatch.setattr(rules, "_propagate_use_strided_shard_flag", lambda *args: (calls.append(1), stock(*args)))
    found: list[list[torch.Tensor]] = []

    def worker(rank: int) -> None:
        dist.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (2, 2))
        placements = [rules._StridedShard(0, split_factor=2), Shard(0)] if strided else [Shard(0), Replicate()]
        own = [torch.full((2 if strided else 4, 3), float(rank // 2 + n)) for n in range(5)]
        given = [DTensor.from_local(each, mesh, placements, run_check=False) for each in own]
        torch._foreach_mul_(given, 2.0)
        sums = torch._foreach_add(given, given)
        found.append([each.full_tensor() for each in sums])
        dist.destroy_process_group()

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=4)
    for rank in found:
        for n, each in enumerate(rank):
            assert each.shape == (8, 3)
            assert sorted(set(each.flatten().tolist())) == [4.0 * n, 4.0 * (n + 1)]
    assert bool(calls) is strided, "torch's own is asked where a shard is strided, and nowhere else"
