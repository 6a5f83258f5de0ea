"""More stock programs: sharded optimisers, schedules, checkpoints, autograd through collectives; they return numbers."""

from __future__ import annotations

import shutil
import tempfile
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

Numbers = list[float]


def _model(width: int = 8) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 2 * width), nn.GELU(), nn.Linear(2 * width, 8))


def _batch(rank: int, step: int = 0) -> torch.Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(10 * step + rank))


def _flat(tensors: Any) -> Numbers:
    return [value for tensor in tensors for value in tensor.detach().flatten().tolist()]


def zero_redundancy(rank: int, world_size: int) -> Numbers:
    """Parameters after three steps whose optimiser state is sharded, the gradients accumulated over two batches each."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(_model())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
    for step in range(3):
        optimizer.zero_grad()
        with model.no_sync():
            model(_batch(rank, 2 * step)).square().mean().backward()
        model(_batch(rank, 2 * step + 1)).square().mean().backward()
        optimizer.step()
    return _flat(model.parameters())


def compressed_gradients(rank: int, world_size: int) -> Numbers:
    """Gradients that a communication hook has sent as float16, in several buckets."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    model = DistributedDataParallel(_model(128), bucket_cap_mb=1)
    model.register_comm_hook(None, fp16_compress_hook)
    for step in range(2):
        model.zero_grad()
        model(_batch(rank, step)).square().mean().backward()
    return _flat(parameter.grad for parameter in model.parameters())


def uneven_inputs(rank: int, world_size: int) -> Numbers:
    """Parameters after training where rank r has r + 1 batches."""
    model = DistributedDataParallel(_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        for step in range(rank + 1):
            optimizer.zero_grad()
            model(_batch(rank, step)).square().mean().backward()
            optimizer.step()
    return _flat(model.parameters())


def _scheduled(schedule_class: Any, rank: int, world_size: int, stages_per_rank: int) -> Numbers:
    from torch.distributed.pipelining import PipelineStage

    count = world_size * stages_per_rank
    layers = {}
    for index in range(rank, count, world_size):
        torch.manual_seed(index)
        layers[index] = nn.Linear(8, 8)
    stages = [PipelineStage(layer, index, count, torch.device("cpu")) for index, layer in layers.items()]
    schedule = schedule_class(stages if stages_per_rank > 1 else stages[0], 4, loss_fn=nn.MSELoss())
    losses: list[torch.Tensor] = []
    inputs = (_batch(7).repeat(2, 1),) if rank == 0 else ()
    last = {"target": torch.zeros(8, 8), "losses": losses} if rank == world_size - 1 else {}
    schedule.step(*inputs, **last)
    gradients = [parameter.grad for layer in layers.values() for parameter in layer.parameters()]
    return [*_flat(losses), *_flat(gradients)]


def gpipe(rank: int, world_size: int) -> Numbers:
    """Losses and gradients of a GPipe step."""
    from torch.distributed.pipelining import ScheduleGPipe

    return _scheduled(ScheduleGPipe, rank, world_size, 1)


def one_forward_one_backward(rank: int, world_size: int) -> Numbers:
    """Losses and gradients of a 1F1B step."""
    from torch.distributed.pipelining import Schedule1F1B

    return _scheduled(Schedule1F1B, rank, world_size, 1)


def interleaved(rank: int, world_size: int) -> Numbers:
    """Losses and gradients of an interleaved 1F1B step, two stages per rank."""
    from torch.distributed.pipelining import ScheduleInterleaved1F1B

    return _scheduled(ScheduleInterleaved1F1B, rank, world_size, 2)


def sequence_parallel(rank: int, world_size: int) -> Numbers:
    """Losses and full gradients of a block with split embedding, sequence-parallel norm, split layers and split loss."""
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        loss_parallel,
        parallelize_module,
    )

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(16, 8), nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8), nn.Linear(8, 16)
    )
    plan = {
        "0": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "1": SequenceParallel(),
        "2": ColwiseParallel(input_layouts=Shard(1)),
        "4": RowwiseParallel(output_layouts=Replicate()),
        "5": ColwiseParallel(use_local_output=False),
    }
    parallelize_module(model, init_device_mesh("cpu", (world_size,)), plan)
    tokens = torch.arange(12).reshape(2, 6) % 16
    with loss_parallel():
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
    gradients = [
        grad.full_tensor() if isinstance(grad, DTensor) else grad for grad in (p.grad for p in model.parameters())
    ]
    value = loss.full_tensor() if isinstance(loss, DTensor) else loss
    return [value.item(), *_flat(gradients)]


def resharded_checkpoint(rank: int, world_size: int) -> Numbers:
    """What is loaded with another sharding than it was saved with, and an optimiser's state."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (world_size,))
    model = fully_shard(_model(), mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model(_batch(rank)).square().mean().backward()
    optimizer.step()
    folder: list[Any] = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    state, moments = get_state_dict(model, optimizer)
    dcp.save({"model": state, "optimizer": moments}, checkpoint_id=folder[0])
    target = {
        name: distribute_tensor(torch.zeros(value.shape), mesh, [Shard(value.dim() - 1)])
        for name, value in state.items()
    }
    dcp.load({"model": target}, checkpoint_id=folder[0])
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder[0])
    return [
        *_flat(value.full_tensor() for value in target.values()),
        *_flat(value.to_local() for value in target.values()),
    ]


def through_collectives(rank: int, world_size: int) -> Numbers:
    """Gradients through functional collectives and ``torch.distributed.nn``."""
    import torch.distributed._functional_collectives as functional
    import torch.distributed.nn.functional as differentiable

    x = _batch(rank).requires_grad_()
    group = dist.group.WORLD
    gathered = functional.all_gather_tensor_autograd(x, 0, group)
    scattered = functional.reduce_scatter_tensor_autograd(gathered.square(), "sum", 0, group)
    total = differentiable.all_reduce(scattered.sum() * (rank + 1))
    pieces = differentiable.all_gather(x * (rank + 2))
    (total + sum(piece.square().sum() for piece in pieces)).backward()
    exchanged = functional.all_to_all_single(x.detach(), None, None, group)
    broadcast = functional.broadcast(x.detach() * 2, 0, group)
    return _flat([x.grad, exchanged, broadcast, functional.all_reduce(x.detach(), "max", group)])


def meshes(rank: int, world_size: int) -> Numbers:
    """Sums over the parts of a mesh: a slice, a flattened one, subgroups."""
    mesh = init_device_mesh("cpu", (world_size, 1), mesh_dim_names=("data", "tensor"))
    numbers = []
    for part in (mesh["data"], mesh["tensor"], mesh["data", "tensor"]._flatten("all")):
        x = torch.tensor([float(rank + 1)])
        dist.all_reduce(x, group=part.get_group())
        numbers += [x.item(), float(part.size()), float(part.get_local_rank())]
    mine, groups = dist.new_subgroups(group_size=1)
    x = torch.tensor([float(rank + 1)])
    dist.all_reduce(x, group=mine)
    return [*numbers, x.item(), float(len(groups)), float(mesh.get_coordinate()[0])]  # type: ignore[index]


def compiled(rank: int, world_size: int) -> Numbers:
    """Gradients of a compiled model whose gradients are averaged."""
    model = _model()
    step = torch.compile(lambda x: model(x).square().mean(), backend="aot_eager")
    step(_batch(rank)).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    return _flat(parameter.grad for parameter in model.parameters())


PROGRAMS = {
    program.__name__: program
    for program in (
        zero_redundancy, compressed_gradients, uneven_inputs, gpipe, one_forward_one_backward, interleaved, sequence_parallel,
        resharded_checkpoint, through_collectives, meshes, compiled,
    )
}  # fmt: skip
