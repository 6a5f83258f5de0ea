"""Small programs for torchrun, one of each kind that people write: ``program.py NAME [--profiler] [--checks]``.

Each rank writes what it computed, and what it saw of time and memory, to ``RANK.json`` in the working directory. Floats are
written in hexadecimal: equal text is equal bits.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import nn

from kernbench.triton_engine import set_checks
from tests.parity.gpu_programs import Model

WIDTH, STEPS = 32, 2
RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def tokens(step: int) -> torch.Tensor:
    """``[2, 8]`` tokens of this rank, on the GPU."""
    return torch.randint(0, 2 * WIDTH, (2, 8), generator=torch.Generator().manual_seed(100 * step + RANK)).cuda()


def trained(model: nn.Module) -> list[torch.Tensor]:
    """The loss of each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for step in range(STEPS):
        given = tokens(step)
        loss = F.cross_entropy(model(given).flatten(0, 1), given.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


# -- the programs --------------------------------------------------------------------------------------------------------


def one_gpu() -> Any:
    return trained(Model(WIDTH).cuda())


def data_parallel() -> Any:
    return trained(nn.parallel.DistributedDataParallel(Model(WIDTH).cuda(), device_ids=[torch.cuda.current_device()]))


def mixed_precision() -> Any:
    """A layer is used twice, and ranks meet in between."""
    layer = nn.Linear(WIDTH, WIDTH).cuda()
    model = nn.parallel.DistributedDataParallel(layer, device_ids=[torch.cuda.current_device()])
    optimizer, scaler, losses = torch.optim.SGD(layer.parameters(), lr=0.01), torch.amp.GradScaler("cuda"), []
    for step in range(STEPS):
        with torch.autocast("cuda", torch.float16):
            y = layer(torch.full((4, WIDTH), 0.01 * (step + RANK), device="cuda"))
            shared = y.detach().float()
            dist.all_reduce(shared)
            loss = F.mse_loss(model(y + shared.half()), torch.ones_like(y))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


def sharded() -> Any:
    from torch.distributed.fsdp import fully_shard

    model = Model(WIDTH).cuda()
    for layer in model.layers:
        fully_shard(layer)
    return trained(fully_shard(model))


def tensor_parallel() -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model, mesh = Model(WIDTH).cuda(), init_device_mesh("cuda", (WORLD,))
    for layer in model.layers:
        parallelize_module(layer, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    losses = []
    for _ in range(STEPS):
        given = torch.arange(16, device="cuda").view(2, 8)
        loss = F.cross_entropy(model(given).flatten(0, 1), given.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


def pipeline() -> Any:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    stage = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH)).cuda()
    schedule = Schedule1F1B(
        PipelineStage(stage, RANK, WORLD, torch.device("cuda", torch.cuda.current_device())),
        2 * WORLD,
        loss_fn=nn.MSELoss(),
    )
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)
    all_losses = []
    for _ in range(STEPS):
        losses: list[torch.Tensor] = []
        first = (torch.ones(4 * WORLD, WIDTH, device="cuda"),) if RANK == 0 else ()
        last = {"target": torch.zeros(4 * WORLD, WIDTH, device="cuda"), "losses": losses} if RANK == WORLD - 1 else {}
        schedule.step(*first, **last)
        optimizer.step()
        optimizer.zero_grad()
        all_losses += losses
    return [*all_losses, stage[0].weight.detach().sum()]


@triton.jit
def scaled_sum(x, out, n, BLOCK: tl.constexpr):
    """``out[i] = 2 * x[i] + 1``."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, mask=at < n) + 1, mask=at < n)


def triton_kernel() -> Any:
    x = torch.arange(1000, device="cuda", dtype=torch.float32) + RANK
    out = torch.empty_like(x)
    scaled_sum[(8,)](x, out, 1000, BLOCK=128)
    dist.all_reduce(out)
    scaled_sum[(8,)](out, out, 1000, BLOCK=128)
    return [out, out.sum()]


def symmetric_memory() -> Any:
    import torch.distributed._symmetric_memory as symm_mem

    x = symm_mem.empty(64, device="cuda")
    x.fill_(RANK + 1)
    handle = symm_mem.rendezvous(x, dist.group.WORLD)
    handle.barrier()
    found = sum(handle.get_buffer(peer, (64,), torch.float32).clone() for peer in range(WORLD))
    handle.barrier()
    return [found]


def graph() -> Any:
    x, weight = torch.ones(8, WIDTH, device="cuda"), torch.full((WIDTH, WIDTH), 0.5 + RANK, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            (x @ weight).relu_()
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        out = (x @ weight).relu_()
        dist.all_reduce(out)
    found = []
    for step in range(STEPS):
        x.fill_(step + 1)
        captured.replay()
        found.append(out.clone())
    return found


def compiled() -> Any:
    @torch.compile
    def step(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.gelu(x @ weight).softmax(-1) * 2 + x

    x, weight = torch.ones(8, WIDTH, device="cuda") * (RANK + 1), torch.eye(WIDTH, device="cuda")
    for _ in range(STEPS):
        x = step(x, weight)
    dist.all_reduce(x)
    return [x]


def objects() -> Any:
    gathered: list[Any] = [None] * WORLD
    dist.all_gather_object(gathered, {"rank": RANK, "text": "x" * 3000})
    box = [RANK * 10 + 7]
    dist.broadcast_object_list(box, src=1)
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, [f"for {each}" for each in range(WORLD)] if RANK == 0 else None, src=0)
    everything: list[Any] | None = [None] * WORLD if RANK == 0 else None
    dist.gather_object(RANK**2, everything, dst=0)
    return [[each["rank"] for each in gathered], box, mine, everything]


def checkpoint() -> Any:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_model_state_dict
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(Model(WIDTH).cuda())
    losses = trained(model)
    dcp.save(get_model_state_dict(model), checkpoint_id="checkpoint")
    before = [each.full_tensor().sum() for each in model.parameters()]
    with torch.no_grad():
        for each in model.parameters():
            each.zero_()
    state = get_model_state_dict(model)
    dcp.load(state, checkpoint_id="checkpoint")
    model.load_state_dict(state)
    return [*losses, *before, *(each.full_tensor().sum() for each in model.parameters())]


def data_loader() -> Any:
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    data = TensorDataset(torch.arange(16 * WORLD * WIDTH, dtype=torch.float32).view(-1, WIDTH) / 100)
    loader = DataLoader(data, 4, sampler=DistributedSampler(data, seed=1), num_workers=1, pin_memory=True)
    layer = nn.parallel.DistributedDataParallel(nn.Linear(WIDTH, 1).cuda())
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
    losses = []
    for (batch,) in loader:
        loss = layer(batch.cuda(non_blocking=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


PROGRAMS: dict[str, Callable[[], Any]] = {
    each.__name__: each
    for each in (
        one_gpu, data_parallel, sharded, tensor_parallel, pipeline, triton_kernel, symmetric_memory, graph, compiled, objects,
        checkpoint, data_loader, mixed_precision,
    )
}  # fmt: skip


# -- what is written -----------------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """Tensors as lists, floats as their bits."""
    if isinstance(value, torch.Tensor):
        return plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value.hex() if isinstance(value, float) else value


def main(name: str) -> None:
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    if name != "one_gpu":
        dist.init_process_group("nccl")
    torch.manual_seed(RANK if name == "pipeline" else 0)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    set_checks("--checks" in sys.argv)
    with torch.profiler.profile() if "--profiler" in sys.argv else contextlib.nullcontext():
        begin.record()
        found = PROGRAMS[name]()
        end.record()
        torch.cuda.synchronize()
    seen = {"values": plain(found), "milliseconds": begin.elapsed_time(end), "peak": torch.cuda.max_memory_allocated()}
    Path(f"{RANK}.json").write_text(json.dumps(seen))
    if name != "one_gpu":
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
