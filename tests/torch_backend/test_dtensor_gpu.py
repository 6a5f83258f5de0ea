"""DTensor on a mesh of simulated GPUs: random numbers, and shapes found by fake tensors."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharded_tensor import Shard as LocalShard
from torch.distributed._shard.sharded_tensor import init_from_local_shards
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, randn

from tests.torch_backend.conftest import Ranks


def test_shards_differ_and_replicas_agree(ranks: Ranks) -> None:
    def body() -> list[Any]:
        torch.cuda.set_device(dist.get_rank())
        mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("replicas", "shards"))
        torch.manual_seed(5)
        first, second = (randn(8, 4, device_mesh=mesh, placements=[Replicate(), Shard(0)]).to_local() for _ in range(2))
        filled = distribute_tensor(torch.zeros(8, 4), mesh, [Replicate(), Shard(1)])
        nn.init.trunc_normal_(filled)
        whole = distribute_tensor(torch.zeros(8, 4), mesh, [Replicate(), Replicate()])
        nn.init.uniform_(whole)
        assert first.device.index == dist.get_rank()
        return [t.cpu() for t in (first, second, filled.to_local(), whole.to_local())] + [torch.rand(3)]

    results = ranks(body, 4, backend="nccl")
    for index in range(3):
        parts = [result[index] for result in results]
        assert torch.equal(parts[0], parts[2])
        assert torch.equal(parts[1], parts[3])
        assert not (parts[0] == parts[1]).any()
    assert not (results[0][0] == results[0][1]).any()
    for index in (3, 4):  # replicated; and what each rank's own generator gives afterwards
        assert all(torch.equal(result[index], results[0][index]) for result in results)
    again = ranks(body, 4, backend="nccl")
    assert all(torch.equal(a, b) for r, s in zip(results, again, strict=True) for a, b in zip(r, s, strict=True))


def test_ranks_do_not_find_each_others_fake_tensors(ranks: Ranks) -> None:
    """A composite operation makes a tensor on the current GPU below the cache that the ranks share."""
    x = torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(0))

    def body() -> torch.Tensor:
        torch.cuda.set_device(dist.get_rank())
        mesh = init_device_mesh("cuda", (2,))
        norm = nn.RMSNorm(8)
        norm.weight = nn.Parameter(distribute_tensor(torch.arange(8.0), mesh, [Replicate()]).to(torch.bfloat16))
        return norm(distribute_tensor(x, mesh, [Shard(1)])).full_tensor().detach().cpu()

    expected = nn.functional.rms_norm(x, (8,)) * torch.arange(8.0)
    for result in ranks(body, 2, backend="nccl"):
        torch.testing.assert_close(result, expected)


def test_wrapping_tensors_are_where_what_they_wrap_is(ranks: Ranks) -> None:
    def body() -> None:
        torch.cuda.set_device(dist.get_rank())
        here = torch.device("cuda", dist.get_rank())
        mesh = init_device_mesh("cuda", (2,))
        x = distribute_tensor(torch.arange(8.0).view(4, 2).cuda(), mesh, [Shard(0)])
        assert x.device == nn.Parameter(x).device == (x + x).device == x.to_local().device == here
        assert x.is_cuda
        assert x.get_device() == here.index
        back = x.cpu()
        assert (back.device.type, back.to_local().device.type) == ("cpu", "cpu")
        assert torch.equal(back.to_local(), x.to_local().cpu())
        pair = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        fully_shard(pair[0], mesh=mesh)
        assert {parameter.device for parameter in fully_shard(pair, mesh=mesh).parameters()} == {here}

    ranks(body, 2, backend="nccl")


def test_sharded_gradients_have_the_divisor_that_was_given(ranks: Ranks) -> None:
    """FSDP2 hands it to the collective as a factor."""

    def body() -> torch.Tensor:
        torch.cuda.set_device(dist.get_rank())
        layer = nn.Linear(4, 2, bias=False, device="cuda")
        fully_shard(layer, mesh=init_device_mesh("cuda", (2,)))
        layer.set_gradient_divide_factor(8.0)  # type: ignore[operator]
        layer(torch.full((3, 4), 1.0 + dist.get_rank(), device="cuda")).sum().backward()
        gradient: torch.Tensor = layer.weight.grad.full_tensor().cpu()  # type: ignore[union-attr, operator]
        return gradient

    for gradient in ranks(body, 2, backend="nccl"):
        assert torch.equal(gradient, torch.full((2, 4), (3 * 1.0 + 3 * 2.0) / 8))


def test_a_class_that_overrides_functions_is_asked_for_its_device(ranks: Ranks) -> None:
    """It finds torch's own getter in its table, as it does on real GPUs."""

    def body() -> None:
        torch.cuda.set_device(dist.get_rank())
        metadata = ShardMetadata([2 * dist.get_rank(), 0], [2, 2], f"rank:{dist.get_rank()}/cuda:{dist.get_rank()}")
        sharded = init_from_local_shards([LocalShard(torch.ones(2, 2).cuda(), metadata)], 4, 2)
        assert sharded.device.type == "cuda"

    ranks(body, 2, backend="nccl")
