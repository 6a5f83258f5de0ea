"""One GPT block, forward and backward, with tensor and sequence parallelism: modelled step time by size and system.

    python -m kernbench.benches.gpt_block                                       # default system, tp 1 2 4 8
    python -m kernbench.benches.gpt_block --system dgx_h100,sip8 --no-sequence-parallel
    python -m kernbench.benches.gpt_block --tp 4 --trace block.json --plot block.svg

Norm, causal attention by a Triton flash kernel on this rank's heads, norm, MLP; all products are the Triton gemm. With values
the output and the input's gradient are held against those of the smallest world, element by element.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click
import torch
import torch.distributed as dist

from kernbench import tp
from kernbench.benches.harness.scaling import Layout, Measurement, ScalingOptions, StepTimer, report, scaling_options
from kernbench.benches.tp_mlp import DTYPES
from kernbench.benching import BenchCommand, bench_main

if TYPE_CHECKING:
    from kernbench.runtime_api.context import RuntimeContext

NAME = "gpt_block"


@dataclass(frozen=True)
class Plan:
    """Sizes of the block.

    Attributes:
        hidden: features of the residual stream.
        heads: query heads.
        groups: key and value heads.
        sequence: tokens of a sequence.
        batch: sequences.
        dtype: of everything.
        sequence_parallel: activations outside the parallel layers are split along the sequence.
        steps: forward and backward, this often.
    """

    hidden: int = 512
    heads: int = 8
    groups: int = 8
    sequence: int = 256
    batch: int = 2
    dtype: str = "float32"
    sequence_parallel: bool = True
    steps: int = 1


@dataclass
class Values:
    """What the smallest world computed: ``[sequence, batch, hidden]`` each; others are compared with it."""

    output: torch.Tensor | None = None
    input_grad: torch.Tensor | None = None
    found: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)

    def settle(self, split: bool, size: int) -> float:
        """The largest difference of this world's values from the first one's, relative to the largest element."""
        parts = [self.found.pop(rank) for rank in range(size)]
        output, grad = ((torch.cat([part[i] for part in parts]) if split else parts[0][i]) for i in range(2))
        if self.output is None or self.input_grad is None:
            self.output, self.input_grad = output, grad
        pairs = ((output, self.output), (grad, self.input_grad))
        return max(float((mine - first).abs().max() / first.abs().max()) for mine, first in pairs)


def worker(rank: int, plan: Plan, layout: Layout, timer: StepTimer, values: Values) -> None:
    """One rank: build its part, then forward and backward ``steps`` times."""
    dist.init_process_group("nccl")
    tp.initialize_model_parallel(tensor_model_parallel_size=layout.tp)
    tp.model_parallel_manual_seed(1234)
    dtype = DTYPES[plan.dtype]
    config = tp.TransformerConfig(
        plan.hidden, plan.heads, num_query_groups=plan.groups, dtype=dtype,
        sequence_parallel=plan.sequence_parallel and layout.tp > 1,
    )  # fmt: skip
    model = tp.DistributedDataParallel(tp.TransformerLayer(config))
    source = torch.Generator().manual_seed(tp.get_data_parallel_rank())
    x = torch.randn(plan.sequence, plan.batch, plan.hidden, generator=source).to(dtype)
    grad = torch.randn(plan.sequence, plan.batch, plan.hidden, generator=source).to(dtype)
    if config.sequence_parallel:
        x, grad = tp.scatter_to_sequence_parallel_region(x), tp.scatter_to_sequence_parallel_region(grad)
    x.requires_grad_()
    timer.begin(rank)
    for _ in range(plan.steps):
        model.zero_grad_buffer()
        x.grad = None
        y = model(x)
        y.backward(grad)
        tp.finalize_model_grads([model])
    timer.end(rank)
    assert x.grad is not None
    values.found[rank] = y.detach().float(), x.grad.float()
    dist.destroy_process_group()


def run(
    ctx: RuntimeContext, plan: Plan | None = None, layout: Layout | None = None, values: Values | None = None
) -> Measurement:
    """Measure in ``ctx``; by default with one tensor group of ``ctx.distributed.get_world_size()`` ranks."""
    plan, values = plan or Plan(), values or Values()
    layout = layout or Layout(tp=ctx.distributed.get_world_size())
    timer = StepTimer(ctx)
    ctx.multiprocessing.spawn(worker, args=(plan, layout, timer, values), nprocs=layout.world)
    split = plan.sequence_parallel and layout.tp > 1
    difference = values.settle(split, layout.tp) if ctx.enable_data else None
    return timer.measurement(layout, plan.steps, difference=difference)


@click.command(name=NAME, cls=BenchCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--hidden", type=click.IntRange(min=1), default=Plan.hidden, show_default=True, help="Features.")
@click.option("--heads", type=click.IntRange(min=1), default=Plan.heads, show_default=True, help="Query heads.")
@click.option("--groups", type=click.IntRange(min=1), help="Key and value heads.  [default: as many as query heads]")
@click.option("--sequence", type=click.IntRange(min=1), default=Plan.sequence, show_default=True, help="Tokens.")
@click.option("--batch", type=click.IntRange(min=1), default=Plan.batch, show_default=True, help="Sequences.")
@click.option("--dtype", type=click.Choice(list(DTYPES)), default=Plan.dtype, show_default=True)
@click.option(
    "--sequence-parallel/--no-sequence-parallel", default=True, show_default=True, help="Split along the sequence."
)
@click.option("--no-data", is_flag=True, help="Model time only: for sizes too large to compute here.")
@scaling_options(steps=1)
def command(scaling: ScalingOptions, groups: int | None, no_data: bool, **sizes: Any) -> None:
    """One GPT block, forward and backward: modelled step time by tensor parallel size and system."""
    plan = Plan(groups=groups or sizes["heads"], steps=scaling.steps, **sizes)
    click.echo(
        f"# {NAME}: hidden {plan.hidden}, {plan.heads} heads, {plan.batch} x {plan.sequence} tokens, {plan.dtype}, "
        f"{'tensor and sequence' if plan.sequence_parallel else 'tensor'} parallel, forward + backward"
    )
    values = Values()
    results = scaling.sweep(NAME, lambda ctx, layout: run(ctx, plan, layout, values), enable_data=not no_data)
    report(NAME, f"GPT block, hidden {plan.hidden}, {plan.dtype}", scaling, results, **vars(plan))


if __name__ == "__main__":
    from kernbench.benches.gpt_block import command as named_command

    bench_main(named_command, "kernbench.benches.gpt_block")
