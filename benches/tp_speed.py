"""How long tensor parallelism takes on *this* machine: 8 simulated ranks beside torch alone and beside 8 gloo processes.

    python -m benches.tp_speed
    python -m benches.tp_speed --hidden 512 --world 4 --no-gloo

One step is forward and backward of a two-layer MLP, ``hidden -> 4 hidden -> hidden``, split over the ranks. All rows do the
same arithmetic in one run, so their ratios hold where the seconds do not:

- ``torch``: one process, whole weights, torch's own matrix product;
- ``simulated``: the layers of ``kernbench.tp`` on simulated ranks, their products by the Triton gemm kernel;
- ``gloo``: as many processes, each with its part of the weights, torch's own product and real all-reduces.

The goals: the simulated ranks take at most 3 times torch's time for a step, and less than the processes.
"""

from __future__ import annotations

import os
import resource
import socket
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import click
import torch
import torch.distributed as dist
from torch.nn import functional

from kernbench import tp

NAME = "tp_speed"
GOAL_TORCH = 3.0
_wall_clock = time.perf_counter  # while ranks run, the time module shows virtual time


@dataclass(frozen=True)
class Plan:
    """Sizes of the MLP and of the world."""

    hidden: int = 1024
    sequence: int = 128
    batch: int = 8
    world: int = 8
    steps: int = 3


@dataclass(frozen=True)
class Speed:
    """One row.

    Attributes:
        what: who did it.
        step: seconds per step, best of all but the first.
        total: seconds from nothing to the last step's end.
        weights: bytes of weights held, all ranks together.
    """

    what: str
    step: float
    total: float
    weights: int


class _AllReduceForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


class _AllReduceBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad


def _plain_steps(plan: Plan, parts: int) -> tuple[list[float], int]:
    """Steps by torch alone on one part of the weights; with ``parts`` > 1 the process group joins them."""
    inner = 4 * plan.hidden // parts
    w1 = torch.randn(inner, plan.hidden).mul_(0.02).requires_grad_()
    w2 = torch.randn(plan.hidden, inner).mul_(0.02).requires_grad_()
    b1, b2 = torch.zeros(inner, requires_grad=True), torch.zeros(plan.hidden, requires_grad=True)
    x = torch.randn(plan.sequence, plan.batch, plan.hidden, requires_grad=True)
    times = []
    for _ in range(plan.steps + 1):
        begin = time.perf_counter()
        entered = x if parts == 1 else _AllReduceBackward.apply(x)
        y = functional.linear(functional.gelu(functional.linear(entered, w1, b1)), w2)
        if parts > 1:
            y = _AllReduceForward.apply(y)
        (y + b2).square().mean().backward()
        times.append(time.perf_counter() - begin)
        for tensor in (w1, w2, b1, b2, x):
            tensor.grad = None
    return times, 4 * sum(tensor.numel() for tensor in (w1, w2, b1, b2))


def by_torch(plan: Plan) -> Speed:
    """One process, with all of torch's threads."""
    begin = time.perf_counter()
    times, weights = _plain_steps(plan, 1)
    return Speed("torch, one process", min(times[1:]), time.perf_counter() - begin, weights)


def _gloo_worker(rank: int, plan: Plan, port: int, results: Any) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=plan.world)
    dist.barrier()
    results[rank] = _plain_steps(plan, plan.world)
    dist.barrier()
    dist.destroy_process_group()


def by_gloo(plan: Plan) -> Speed:
    """As many processes as ranks; the step of the slowest."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    begin = time.perf_counter()
    with torch.multiprocessing.Manager() as manager:
        results = manager.dict()
        torch.multiprocessing.spawn(_gloo_worker, (plan, port, results), nprocs=plan.world)
        total = time.perf_counter() - begin
        times = [max(step) for step in zip(*(times for times, _ in results.values()), strict=True)]
        weights = sum(held for _, held in results.values())
    return Speed(f"gloo, {plan.world} processes", min(times[1:]), total, weights)


def _worker(rank: int, plan: Plan, marks: list[float], held: dict[int, int]) -> None:
    dist.init_process_group("gloo")
    tp.initialize_model_parallel(plan.world)
    tp.model_parallel_manual_seed(0)
    model = tp.ParallelMLP(tp.TransformerConfig(plan.hidden, 1))
    held[rank] = sum(param.untyped_storage().nbytes() for param in model.parameters())
    x = torch.randn(plan.sequence, plan.batch, plan.hidden, requires_grad=True)
    dist.barrier()
    for _ in range(plan.steps + 1):
        model(x).square().mean().backward()
        model.zero_grad()
        x.grad = None
        dist.barrier()
        if rank == 0:
            marks.append(_wall_clock())


def by_simulation(plan: Plan) -> Speed:
    """Simulated ranks on ``kernbench.tp``."""
    import kernbench

    begin = _wall_clock()
    marks: list[float] = []
    held: dict[int, int] = {}
    system = kernbench.resolve_topology()
    nodes = -(-plan.world // system.topology_obj.sip_count)
    with kernbench.simulate(nodes=nodes if nodes > 1 else None) as ctx:
        ctx.multiprocessing.spawn(_worker, args=(plan, marks, held), nprocs=plan.world)
    steps = [(b - a) for a, b in pairwise(marks)]
    return Speed(f"simulated, {plan.world} ranks", min(steps), _wall_clock() - begin, sum(held.values()))


def run(ctx: Any = None, plan: Plan | None = None, *, gloo: bool = True) -> list[Speed]:
    """Measure all rows. ``ctx`` is not used: the simulation is one of the rows."""
    plan = plan or Plan()
    rows = [by_torch(plan), by_simulation(plan)]
    return [*rows, by_gloo(plan)] if gloo else rows


@click.command(name=NAME, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--hidden", type=click.IntRange(min=8), default=Plan.hidden, show_default=True, help="Features.")
@click.option("--sequence", type=click.IntRange(min=1), default=Plan.sequence, show_default=True, help="Tokens.")
@click.option("--batch", type=click.IntRange(min=1), default=Plan.batch, show_default=True, help="Sequences.")
@click.option("--world", type=click.IntRange(min=1), default=Plan.world, show_default=True, help="Ranks.")
@click.option("--steps", type=click.IntRange(min=1), default=Plan.steps, show_default=True, help="Steps timed.")
@click.option("--gloo/--no-gloo", default=True, show_default=True, help="Also start real processes.")
def command(gloo: bool, **sizes: int) -> None:
    """Wall time of a tensor-parallel MLP step: simulated ranks, torch alone, gloo processes."""
    plan = Plan(**sizes)
    click.echo(
        f"# {NAME}: {plan.hidden} -> {4 * plan.hidden} -> {plan.hidden}, {plan.batch} x {plan.sequence} tokens, fp32, "
        f"forward + backward, {torch.get_num_threads()} threads"
    )
    rows = run(plan=plan, gloo=gloo)
    click.echo(f"# {'':<22}{'step s':>10}{'x torch':>10}{'total s':>10}{'weights MiB':>14}")
    for row in rows:
        ratio = row.step / rows[0].step
        click.echo(f"  {row.what:<22}{row.step:>10.3f}{ratio:>10.2f}{row.total:>10.2f}{row.weights / 2**20:>14.2f}")
    simulated = rows[1]
    for goal, other in ((GOAL_TORCH, rows[0]), *((1.0, row) for row in rows[2:])):
        ratio = simulated.step / other.step
        click.echo(f"# simulated / {other.what}: {ratio:.2f}, goal <= {goal:g}: {'met' if ratio <= goal else 'missed'}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    click.echo(f"# peak memory of this process: {peak:.0f} MiB")


if __name__ == "__main__":
    command()
