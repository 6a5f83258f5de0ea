"""How long tensor parallelism takes on *this* machine: 8 simulated ranks beside torch alone and beside 8 gloo processes.

    python -m kernbench.benches.tp_speed
    python -m kernbench.benches.tp_speed --hidden 512 --world 4 --no-gloo

One step is forward and backward of a two-layer MLP, ``hidden -> 4 hidden -> hidden``, split over the ranks. All sides do the
same arithmetic in turns, so their ratios hold where the seconds do not:

- ``torch``: one process, whole weights, torch's own matrix product;
- ``simulated``: the layers of ``kernbench.tp`` on simulated ranks, their products by the Triton gemm kernel;
- ``gloo``: as many processes, each with its part of the weights, torch's own product and real all-reduces.

The goals: the simulated ranks take at most 3 times torch's time for a step, and less than the processes.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass
from itertools import pairwise

import click
import torch
import torch.distributed as dist
from torch.nn import functional

import kernbench
from kernbench import tp
from kernbench.benches.harness.distributed_sides import in_lasting_gloo
from kernbench.benches.harness.speed_command import SpeedRun, speed_options
from kernbench.benches.harness.turns import WALL, Comparison, Outcome, Side

NAME = "tp_speed"
GOAL_TORCH = 3.0


@dataclass(frozen=True)
class Plan:
    """Sizes of the MLP and of the world."""

    hidden: int = 1024
    sequence: int = 128
    batch: int = 8
    world: int = 8
    steps: int = 3


class _AllReduceForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
        return grad


class _AllReduceBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
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
        begin = WALL()
        entered = x if parts == 1 else _AllReduceBackward.apply(x)
        y = functional.linear(functional.gelu(functional.linear(entered, w1, b1)), w2)
        if parts > 1:
            y = _AllReduceForward.apply(y)
        (y + b2).square().mean().backward()
        times.append(WALL() - begin)
        for tensor in (w1, w2, b1, b2, x):
            tensor.grad = None
    return times, 4 * sum(tensor.numel() for tensor in (w1, w2, b1, b2))


def torch_alone(plan: Plan) -> tuple[float, int]:
    """Seconds of the best step but the first, and bytes of weights: one process, with all of torch's threads."""
    times, weights = _plain_steps(plan, 1)
    return min(times[1:]), weights


def gloo_steps(rank: int, world_size: int, plan: Plan) -> list[float]:
    """The same of a rank with its part of the weights."""
    dist.barrier()
    return [min(_plain_steps(plan, world_size)[0][1:])]


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
            marks.append(WALL())


def simulated(plan: Plan) -> tuple[float, int]:
    """The same of simulated ranks on ``kernbench.tp``; weights of all ranks together."""
    marks: list[float] = []
    held: dict[int, int] = {}
    system = kernbench.resolve_topology()
    nodes = -(-plan.world // system.topology_obj.sip_count)
    with kernbench.simulate(nodes=nodes if nodes > 1 else None) as ctx:
        ctx.multiprocessing.spawn(_worker, args=(plan, marks, held), nprocs=plan.world)
    return min(b - a for a, b in pairwise(marks)), sum(held.values())


def figures(plan: Plan | None = None, *, gloo: bool = True) -> list[Comparison]:
    """The step."""
    chosen = plan or Plan()
    sides = {"kernbench": Side(lambda: simulated(chosen)[0]), "torch alone": Side(lambda: torch_alone(chosen)[0])}
    goals = {"torch alone": GOAL_TORCH}
    if gloo:
        sides["gloo"] = Side(lambda: in_lasting_gloo(chosen.world, gloo_steps, chosen).result[0])
        goals["gloo"] = 1.0
    return [Comparison(f"step of a tensor-parallel MLP, {chosen.world} ranks", "ms", lambda: sides, goals)]


def run(
    ctx: object = None, plan: Plan | None = None, *, gloo: bool = True, speed: SpeedRun | None = None
) -> list[Outcome]:
    """Measure and print. ``ctx`` is not used: the simulation is one of the sides."""
    return (speed or SpeedRun()).run(NAME, figures(plan, gloo=gloo))


@click.command(name=NAME, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--hidden", type=click.IntRange(min=8), default=Plan.hidden, show_default=True, help="Features.")
@click.option("--sequence", type=click.IntRange(min=1), default=Plan.sequence, show_default=True, help="Tokens.")
@click.option("--batch", type=click.IntRange(min=1), default=Plan.batch, show_default=True, help="Sequences.")
@click.option("--world", type=click.IntRange(min=1), default=Plan.world, show_default=True, help="Ranks.")
@click.option("--steps", type=click.IntRange(min=1), default=Plan.steps, show_default=True, help="Steps timed.")
@click.option("--gloo/--no-gloo", default=True, show_default=True, help="Also start real processes.")
@speed_options
def command(speed: SpeedRun, gloo: bool, **sizes: int) -> None:
    """Wall time of a tensor-parallel MLP step: simulated ranks, torch alone, gloo processes."""
    plan = Plan(**sizes)
    click.echo(
        f"# {NAME}: {plan.hidden} -> {4 * plan.hidden} -> {plan.hidden}, {plan.batch} x {plan.sequence} tokens, fp32, "
        f"forward + backward, {torch.get_num_threads()} threads"
    )
    run(plan=plan, gloo=gloo, speed=speed)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    click.echo(f"# peak memory of this process: {peak:.0f} MiB")


if __name__ == "__main__":
    command()
