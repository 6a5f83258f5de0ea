"""What looking for races costs on *this* machine: training steps with the detector on and off.

    python -m benches.order_cost
    python -m benches.order_cost --steps 20 --width 512

Each program trains a few layers on simulated ranks: DDP, FSDP2, a tensor-parallel plan of DTensors, and CUDA graphs of the
forward and backward passes. Both modes run in
turns, in CPU seconds of the process. The goal is at most 1.3 times.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import click
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import kernbench
from benches.harness.speed_command import SpeedRun, speed_options
from benches.harness.turns import CPU, Comparison, Outcome, Side

NAME = "order_cost"
GOAL = 1.3


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


def step_seconds(build: Callable[[CostPlan], nn.Module], plan: CostPlan, races: bool) -> float:
    """CPU seconds of the best step but the first."""
    marks: list[float] = []
    with kernbench.simulate("dgx_h100", races=races) as ctx:
        ctx.multiprocessing.spawn(_worker, args=(build, plan, marks), nprocs=plan.world)
    return min(after - before for before, after in pairwise(marks[1:]))


def figures(plan: CostPlan | None = None) -> list[Comparison]:
    """One for each program."""
    chosen = plan or CostPlan()
    return [
        Comparison(
            f"step of {what}, {chosen.world} ranks", "ms",
            lambda build=build: {  # type: ignore[misc]
                "races": Side(lambda: step_seconds(build, chosen, races=True)),
                "off": Side(lambda: step_seconds(build, chosen, races=False)),
            },
            {"off": GOAL},
        )
        for what, build in PROGRAMS.items()
    ]  # fmt: skip


def run(ctx: Any = None, plan: CostPlan | None = None, speed: SpeedRun | None = None) -> list[Outcome]:
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
