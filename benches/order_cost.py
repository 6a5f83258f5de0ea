"""What looking for races costs on *this* machine: training steps with the detector on and off.

    python -m benches.order_cost
    python -m benches.order_cost --steps 20 --width 512

Each program trains a few layers on simulated ranks: DDP, FSDP2, and a tensor-parallel plan of DTensors. Both modes run in turn,
step by step of the same sizes, in CPU seconds of the process; the best of each counts. The goal is at most 1.3 times.
"""

from __future__ import annotations

import time
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

NAME = "order_cost"
_cpu_clock = time.process_time  # while ranks run, the time module shows virtual time


@dataclass(frozen=True)
class CostPlan:
    """Sizes.

    Attributes:
        width: features.
        layers: pairs of linear layers.
        world: ranks.
        steps: that are timed.
        rounds: simulations of each mode, in turn.
    """

    width: int = 256
    layers: int = 6
    world: int = 4
    steps: int = 6
    rounds: int = 3


@dataclass(frozen=True)
class OrderCost:
    """One row: seconds of CPU time per step, all ranks together, with the detector off and on."""

    what: str
    off: float
    on: float

    @property
    def ratio(self) -> float:
        """On, over off."""
        return self.on / self.off


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


PROGRAMS: dict[str, Callable[[CostPlan], nn.Module]] = {"DDP": _ddp, "FSDP2": _fsdp2, "TP": _tp}


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
            marks.append(_cpu_clock())


def step_seconds(build: Callable[[CostPlan], nn.Module], plan: CostPlan, races: bool) -> float:
    """CPU seconds of the best step but the first."""
    marks: list[float] = []
    with kernbench.simulate("dgx_h100", races=races) as ctx:
        ctx.multiprocessing.spawn(_worker, args=(build, plan, marks), nprocs=plan.world)
    return min(after - before for before, after in pairwise(marks[1:]))


def run(ctx: Any = None, plan: CostPlan | None = None) -> list[OrderCost]:
    """Measure all programs. ``ctx`` is not used: the simulations are the bench's own."""
    plan = plan or CostPlan()
    rows = []
    for what, build in PROGRAMS.items():
        off, on = [], []
        for _ in range(plan.rounds):
            off.append(step_seconds(build, plan, races=False))
            on.append(step_seconds(build, plan, races=True))
        rows.append(OrderCost(what, min(off), min(on)))
    return rows


@click.command(name=NAME, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--width", type=click.IntRange(min=8), default=CostPlan.width, show_default=True, help="Features.")
@click.option(
    "--layers", type=click.IntRange(min=1), default=CostPlan.layers, show_default=True, help="Pairs of layers."
)
@click.option("--world", type=click.IntRange(min=2), default=CostPlan.world, show_default=True, help="Ranks.")
@click.option("--steps", type=click.IntRange(min=1), default=CostPlan.steps, show_default=True, help="Steps timed.")
@click.option(
    "--rounds", type=click.IntRange(min=1), default=CostPlan.rounds, show_default=True, help="Runs of each mode."
)
def command(**sizes: int) -> None:
    """CPU time of training steps with the race detector on and off."""
    rows = run(plan=CostPlan(**sizes))
    click.echo(f"# {'step of':<10}{'off ms':>10}{'on ms':>10}{'on / off':>10}")
    for row in rows:
        click.echo(f"  {row.what:<10}{row.off * 1e3:>10.2f}{row.on * 1e3:>10.2f}{row.ratio:>10.2f}")


if __name__ == "__main__":
    command()
