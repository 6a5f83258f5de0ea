"""FSDP2's chunks of a parameter are made when they are asked for, and are those of torch."""

from __future__ import annotations

import importlib

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils._python_dispatch import TorchDispatchMode

import kernbench
from kernbench.torch_backend.features.fsdp_chunks import Chunks


@pytest.mark.parametrize("rows", [1, 3, 4, 5, 8, 9])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_chunks_are_those_of_torch(rows, dim, device):
    stock = importlib.import_module("torch.distributed.fsdp._fully_shard._fsdp_common")._chunk_with_empty
    tensor = torch.arange(rows * 3.0).view(rows, 3).to(device).transpose(0, dim)
    ours, theirs = Chunks(tensor, 4, dim), stock(tensor, 4, dim)
    assert [(each.shape, each.stride(), each.storage_offset()) for each in ours] == [
        (each.shape, each.stride(), each.storage_offset()) for each in theirs
    ]
    assert [each.shape for each in ours[1:-1]] == [each.shape for each in theirs[1:-1]]
    assert ours[-1].shape == theirs[-1].shape
    with pytest.raises(IndexError):
        ours[4]
    if device == "cpu":
        assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


class _Counted(TorchDispatchMode):
    calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        return func(*args, **(kwargs or {}))


def test_operations_of_a_sharding_do_not_grow_with_the_ranks():
    found = {}

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        torch.cuda.set_device(0)
        with torch.device("meta"):
            model = nn.Linear(16, 12)
        with _Counted() as counted:
            fully_shard(model)
        found[rank, dist.get_world_size()] = counted.calls

    for nodes in (1, 16):
        with kernbench.simulate(
            kernbench.topology.resolve_topology("dgx_h100", nodes=nodes), enable_data=False, ranks="0"
        ) as ctx:
            ctx.multiprocessing.spawn(worker, nprocs=8 * nodes)
    assert found[0, 8] == found[0, 128] > 0


def test_a_model_with_fewer_rows_than_ranks():
    weight = torch.arange(6.0).view(2, 3) / 7
    given = torch.arange(12.0).view(4, 3) / 5
    found: dict[int, tuple[torch.Tensor, torch.Tensor, int]] = {}

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank)
        model = nn.Linear(3, 2, bias=False, device="cuda")
        with torch.no_grad():
            model.weight.copy_(weight)
        fully_shard(model)
        result = model(given.cuda())
        result.square().mean().backward()
        gradient = model.weight.grad
        assert gradient is not None
        found[rank] = result.detach().cpu(), gradient.full_tensor().cpu(), model.weight.to_local().numel()

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=4)
    alone = weight.clone().requires_grad_()
    expected = given @ alone.T
    expected.square().mean().backward()
    assert alone.grad is not None
    for rank, (result, gradient, elements) in found.items():
        torch.testing.assert_close(result, expected.detach())
        torch.testing.assert_close(gradient, alone.grad)
        assert elements == (3 if rank < 2 else 0)
