"""A two-layer MLP, forward and backward, split over tensor parallel ranks: modelled step time by size and system.

    python -m kernbench.benches.tp_mlp                                    # default system, tp 1 2 4 8
    python -m kernbench.benches.tp_mlp --system dgx_h100 --hidden 4096 --dtype bfloat16 --no-data
    python -m kernbench.benches.tp_mlp --tp 8 --sequence-parallel --trace mlp.json --plot mlp.svg

``[tokens, hidden] -> [tokens, ffn] -> [tokens, hidden]``: column-parallel with the activation in the gemm's epilogue, then
row-parallel. One all-reduce forward; backward, the input gradient's travels while the weight gradient is computed. With
values (the default) the loss is compared with that of the smallest world.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
import torch
import torch.distributed as dist

from kernbench import tp
from kernbench.benches.harness.scaling import Layout, Measurement, ScalingOptions, StepTimer, report, scaling_options
from kernbench.benching import BenchCommand, bench_main
from kernbench.tp.kernels.activations import ACTIVATIONS

if TYPE_CHECKING:
    from kernbench.runtime_api.context import RuntimeContext

NAME = "tp_mlp"
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Plan:
    """Sizes of the MLP.

    Attributes:
        hidden: features in and out.
        ffn: features between.
        sequence: tokens of a sequence.
        batch: sequences.
        activation: between the layers.
        dtype: of everything.
        sequence_parallel: input and output are split along the sequence.
        steps: forward and backward, this often.
    """

    hidden: int = 1024
    ffn: int = 4096
    sequence: int = 128
    batch: int = 8
    activation: str = "gelu"
    dtype: str = "float32"
    sequence_parallel: bool = False
    steps: int = 1


def worker(rank: int, plan: Plan, layout: Layout, timer: StepTimer, losses: dict[int, float]) -> None:
    """One rank: build its part, then forward and backward ``steps`` times."""
    dist.init_process_group("nccl")
    tp.initialize_model_parallel(tensor_model_parallel_size=layout.tp)
    tp.model_parallel_manual_seed(1234)
    dtype = DTYPES[plan.dtype]
    mlp = tp.ParallelMLP(
        tp.TransformerConfig(
            plan.hidden, 1, ffn_hidden_size=plan.ffn, activation=plan.activation, dtype=dtype,
            sequence_parallel=plan.sequence_parallel,
        )
    )  # fmt: skip
    model = tp.DistributedDataParallel(mlp)
    source = torch.Generator().manual_seed(tp.get_data_parallel_rank())
    x = torch.randn(plan.sequence, plan.batch, plan.hidden, generator=source).to(dtype)
    if plan.sequence_parallel:
        x = tp.scatter_to_sequence_parallel_region(x)
    x.requires_grad_()
    timer.begin(rank)
    for _ in range(plan.steps):
        model.zero_grad_buffer()
        loss = model(x).float().square().mean()
        loss.backward()
        tp.finalize_model_grads([model])
    timer.end(rank)
    total = loss.detach().clone()
    if plan.sequence_parallel:
        tp.comm.all_reduce(total, group=tp.get_tensor_model_parallel_group())
        total /= layout.tp
    losses[rank] = float(total)
    dist.destroy_process_group()


def run(ctx: RuntimeContext, plan: Plan | None = None, layout: Layout | None = None) -> Measurement:
    """Measure in ``ctx``; by default with one tensor group of ``ctx.distributed.get_world_size()`` ranks."""
    plan = plan or Plan()
    layout = layout or Layout(tp=ctx.distributed.get_world_size())
    timer, losses = StepTimer(ctx), dict[int, float]()
    ctx.multiprocessing.spawn(worker, args=(plan, layout, timer, losses), nprocs=layout.world)
    return timer.measurement(layout, plan.steps, loss=losses[0] if ctx.enable_data else None)


@click.command(name=NAME, cls=BenchCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--hidden", type=click.IntRange(min=1), default=Plan.hidden, show_default=True, help="Features.")
@click.option("--ffn", type=click.IntRange(min=1), help="Features inside.  [default: 4 x hidden]")
@click.option("--sequence", type=click.IntRange(min=1), default=Plan.sequence, show_default=True, help="Tokens.")
@click.option("--batch", type=click.IntRange(min=1), default=Plan.batch, show_default=True, help="Sequences.")
@click.option("--activation", type=click.Choice(ACTIVATIONS), default=Plan.activation, show_default=True)
@click.option("--dtype", type=click.Choice(list(DTYPES)), default=Plan.dtype, show_default=True)
@click.option("--sequence-parallel", is_flag=True, help="Split activations along the sequence.")
@click.option("--no-data", is_flag=True, help="Model time only: for sizes too large to compute here.")
@scaling_options(steps=1)
def command(scaling: ScalingOptions, ffn: int | None, no_data: bool, **sizes: Any) -> None:
    """A two-layer MLP, forward and backward: modelled step time by tensor parallel size and system."""
    plan = Plan(ffn=ffn or 4 * sizes["hidden"], steps=scaling.steps, **sizes)
    click.echo(
        f"# {NAME}: {plan.hidden} -> {plan.ffn} -> {plan.hidden}, {plan.batch} x {plan.sequence} tokens, {plan.dtype}, "
        f"forward + backward"
    )
    results = scaling.sweep(NAME, lambda ctx, layout: run(ctx, plan, layout), enable_data=not no_data)
    report(NAME, f"MLP {plan.hidden}-{plan.ffn}, {plan.dtype}", scaling, results, **vars(plan))


if __name__ == "__main__":
    from kernbench.benches.tp_mlp import command as named_command

    bench_main(named_command, "kernbench.benches.tp_mlp")
