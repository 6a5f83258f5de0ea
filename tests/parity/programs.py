"""Stock programs, each a function of rank and world size that returns numbers."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from tests.parity import training


def data_parallel(rank: int, world_size: int) -> list[float]:
    """Losses and a weight's sum of three DDP steps."""
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(rank))
    losses = []
    for batch in data:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [*losses, sum(parameter.sum().item() for parameter in model.parameters())]


def tensor_parallel(rank: int, world_size: int) -> list[float]:
    """Losses of three steps of an MLP whose two layers are split by DTensor."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (world_size,))
    torch.manual_seed(0)
    model = parallelize_module(
        nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)),
        mesh,
        {"0": ColwiseParallel(), "2": RowwiseParallel()},
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(3):
        optimizer.zero_grad()
        loss = model(torch.full((4, 8), 0.1 * step + 0.1)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def sharded_data_parallel(rank: int, world_size: int) -> list[float]:
    """Losses of three FSDP2 steps."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (world_size,))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.full((4, 8), 0.1 * rank + 0.1)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def pipeline(rank: int, world_size: int) -> list[float]:
    """Losses of one 1F1B step, on the last rank."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    torch.manual_seed(rank)
    stage = PipelineStage(nn.Linear(8, 8), rank, world_size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 4, loss_fn=nn.MSELoss())
    losses: list[torch.Tensor] = []
    if rank == 0:
        schedule.step(torch.ones(8, 8))
    elif rank == world_size - 1:
        schedule.step(target=torch.zeros(8, 8), losses=losses)
    else:
        schedule.step()
    return [loss.item() for loss in losses]


PROGRAMS = {
    **{program.__name__: program for program in (data_parallel, tensor_parallel, sharded_data_parallel, pipeline)},
    **training.PROGRAMS,
}


def run_all(rank: int, world_size: int, init_method: str) -> dict[str, list[float]]:
    """Every program, one after the other, in one default group."""
    dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=world_size)
    results = {name: program(rank, world_size) for name, program in PROGRAMS.items()}
    dist.destroy_process_group()
    return results
