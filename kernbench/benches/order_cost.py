"""What looking for races costs on *this* machine: training steps and communication kernels with the detector on and off.

    python -m kernbench.benches.order_cost
    python -m kernbench.benches.order_cost --steps 20 --width 512

The programs train a few layers on simulated ranks (DDP, FSDP2, a tensor-parallel plan of DTensors, CUDA graphs of the
forward and backward passes), or launch a kernel over symmetric memory, or one that gathers. Both modes run in turns, in CPU
seconds of the process. The goals are 1.3 times for training steps, 3 for communication kernels, 10 for gathered accesses, and
twice the memory that the ranks have.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import click
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import kernbench
from kernbench.benches.harness.speed_command import SpeedRun, speed_options
from kernbench.benches.harness.turns import CPU, Comparison, Outcome, Side
from kernbench.benches.kernels.symmetric import (
    gather_kernel,
    gemm_reduce_scatter_kernel,
    one_shot_kernel,
    two_shot_kernel,
)

NAME = "order_cost"
GOALS = {"step": 1.3, "kernel": 3.0, "gather": 10.0, "memory": 2.0}


@dataclass(frozen=True)
class CostPlan:
    """Sizes.

    Attributes:
        width: features.
        layers: pairs of linear layers.
        world: ranks.
        steps: that are timed.
    """

    width: int = 256
    layers: int = 6
    world: int = 4
    steps: int = 6


def _layers(plan: CostPlan) -> nn.Sequential:
    pairs = [
        nn.Sequential(nn.Linear(plan.width, 2 * plan.width), nn.GELU(), nn.Linear(2 * plan.width, plan.width))
        for _ in range(plan.layers)
    ]
    return nn.Sequential(*pairs)


def _ddp(plan: CostPlan) -> nn.Module:
    return DistributedDataParallel(_layers(plan).cuda())


def _fsdp2(plan: CostPlan) -> nn.Module:
    model = _layers(plan).cuda()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return model


def _tp(plan: CostPlan) -> nn.Module:
    model, mesh = _layers(plan).cuda(), init_device_mesh("cuda", (plan.world,))
    for layer in model:
        parallelize_module(layer, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return model


def _graph(plan: CostPlan) -> nn.Module:
    sample = torch.randn(8, plan.width, device="cuda")
    model = _layers(plan).cuda()
    torch.cuda.make_graphed_callables(model, (sample,))  # which replaces its forward
    return model


PROGRAMS: dict[str, Callable[[CostPlan], nn.Module]] = {"DDP": _ddp, "FSDP2": _fsdp2, "TP": _tp, "CUDA graphs": _graph}


def _worker(rank: int, build: Callable[[CostPlan], nn.Module], plan: CostPlan, marks: list[float]) -> None:
    dist.init_process_group("nccl")
    torch.cuda.set_device(rank)
    torch.manual_seed(0)
    model = build(plan)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(8, plan.width, device="cuda")
    for _ in range(plan.steps + 2):
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier()
        torch.cuda.synchronize()
        if rank == 0:
            marks.append(CPU())


Call = Callable[[], object]
_PROGRAMS, _BLOCK = 16, 1024


def _symmetric(*shape: int) -> object:
    buffer = symm_mem.empty(shape, device="cuda")  # type: ignore[call-overload]
    buffer.fill_(1)
    return symm_mem.rendezvous(buffer, dist.group.WORLD)  # type: ignore[arg-type]


def _tables(handle: Any) -> tuple[int, int]:
    return handle.buffer_ptrs_dev, handle.signal_pad_ptrs_dev


def _one_shot(rank: int, world: int) -> Call:
    handle, out = _symmetric(_PROGRAMS * _BLOCK), torch.empty(_PROGRAMS * _BLOCK, device="cuda")
    return lambda: one_shot_kernel[(_PROGRAMS,)](*_tables(handle), out, rank, world, _BLOCK)


def _two_shot(rank: int, world: int) -> Call:
    handle = _symmetric(_PROGRAMS * world * _BLOCK)
    return lambda: two_shot_kernel[(_PROGRAMS,)](*_tables(handle), rank, world, _BLOCK)


def _gemm_reduce_scatter(rank: int, world: int, tile: int = 32, inner: int = 128) -> Call:
    handle = _symmetric(world * tile, _PROGRAMS * tile)
    a, b = torch.ones(world * tile, inner, device="cuda"), torch.ones(inner, _PROGRAMS * tile, device="cuda")
    out = torch.empty(tile, _PROGRAMS * tile, device="cuda")
    return lambda: gemm_reduce_scatter_kernel[(_PROGRAMS,)](a, b, *_tables(handle), out, inner, rank, world, tile)


def _gather(rank: int, world: int, block: int = 128) -> Call:
    x, out = (torch.ones(_PROGRAMS * block, device="cuda") for _ in range(2))
    index = torch.randperm(_PROGRAMS * block, device="cuda")
    return lambda: gather_kernel[(_PROGRAMS,)](x, index, out, block)


KERNELS: dict[str, tuple[Callable[[int, int], Call], str]] = {
    "one-shot all-reduce": (_one_shot, "kernel"),
    "two-shot all-reduce": (_two_shot, "kernel"),
    "gemm and reduce-scatter": (_gemm_reduce_scatter, "kernel"),
    "gather": (_gather, "gather"),
}


def _launches(rank: int, make: Callable[[int, int], Call], plan: CostPlan, marks: list[float]) -> None:
    dist.init_process_group("nccl")
    torch.cuda.set_device(rank)
    torch.manual_seed(0)
    call = make(rank, plan.world)
    for _ in range(plan.steps + 2):
        call()
        torch.cuda.synchronize()
        dist.barrier()
        if rank == 0:
            marks.append(CPU())


def launch_seconds(make: Callable[[int, int], Call], plan: CostPlan, races: bool) -> float:
    """CPU seconds of the best launch of all ranks but the first."""
    return _best(_launches, make, plan, races)


def added_bytes(build: Callable[[CostPlan], nn.Module], plan: CostPlan, races: bool) -> float:
    """Bytes that the ranks have on their GPUs at their peaks; with ``races``, and what Python has besides at its own."""
    peaks: list[int] = []

    def body(rank: int) -> None:
        _worker(rank, build, plan, [])
        peaks.append(torch.cuda.max_memory_allocated())

    def traced(races: bool) -> int:
        tracemalloc.start()
        with kernbench.simulate("dgx_h100", races=races) as ctx:
            ctx.multiprocessing.spawn(body, nprocs=plan.world)
            most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    if not races:
        traced(False)
        return float(sum(peaks))
    added = traced(True) - traced(False)
    return float(sum(peaks[: plan.world]) + added)


def step_seconds(build: Callable[[CostPlan], nn.Module], plan: CostPlan, races: bool) -> float:
    """CPU seconds of the best step but the first."""
    return _best(_worker, build, plan, races)


def _best(worker: Callable[..., None], what: object, plan: CostPlan, races: bool) -> float:
    marks: list[float] = []
    with kernbench.simulate("dgx_h100", races=races) as ctx:
        ctx.multiprocessing.spawn(worker, args=(what, plan, marks), nprocs=plan.world)
    return min(after - before for before, after in pairwise(marks[1:]))


def figures(plan: CostPlan | None = None) -> list[Comparison]:
    """One for each program, one for each kernel, and one of memory."""
    chosen = plan or CostPlan()

    def compared(name: str, unit: str, measure: Callable[..., float], what: object, goal: str) -> Comparison:
        modes = {"races": True, "off": False}
        sides = {mode: Side(lambda on=on: measure(what, chosen, races=on)) for mode, on in modes.items()}  # type: ignore[misc]
        return Comparison(f"{name}, {chosen.world} ranks", unit, lambda: sides, {"off": GOALS[goal]})

    return [
        *(compared(f"step of {what}", "ms", step_seconds, build, "step") for what, build in PROGRAMS.items()),
        *(compared(what, "ms", launch_seconds, make, goal) for what, (make, goal) in KERNELS.items()),
        compared("memory of DDP", "MiB", added_bytes, PROGRAMS["DDP"], "memory"),
    ]


def run(ctx: object = None, plan: CostPlan | None = None, speed: SpeedRun | None = None) -> list[Outcome]:
    """Measure all programs. ``ctx`` is not used: the simulations are the bench's own."""
    return (speed or SpeedRun()).run(NAME, figures(plan))


@click.command(name=NAME, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--width", type=click.IntRange(min=8), default=CostPlan.width, show_default=True, help="Features.")
@click.option(
    "--layers", type=click.IntRange(min=1), default=CostPlan.layers, show_default=True, help="Pairs of layers."
)
@click.option("--world", type=click.IntRange(min=2), default=CostPlan.world, show_default=True, help="Ranks.")
@click.option("--steps", type=click.IntRange(min=1), default=CostPlan.steps, show_default=True, help="Steps timed.")
@speed_options
def command(speed: SpeedRun, **sizes: int) -> None:
    """CPU time of training steps with the race detector on and off."""
    run(plan=CostPlan(**sizes), speed=speed)


if __name__ == "__main__":
    command()
