"""Decoding with grouped queries over a long cache of keys and values that is spread over the ranks.

    python -m kernbench.benches.decode_attention                               # default system, tp 1 2 4 8
    python -m kernbench.benches.decode_attention --system dgx_h100 --context 131072 --batch 1 --no-data
    python -m kernbench.benches.decode_attention --tp 8 --trace decode.json --plot decode.svg

Each rank holds every tp-th position of every sequence. It attends to its own, one all-gather of a partial result per query
joins the ranks, and a kernel merges them. With values every element is held against attention by torch in double precision.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
import torch
import torch.distributed as dist

from kernbench import tp
from kernbench.benches.harness.scaling import Layout, Measurement, ScalingOptions, StepTimer, report, scaling_options
from kernbench.benches.tp_mlp import DTYPES
from kernbench.benching import BenchCommand, bench_main
from kernbench.tp.errors import PartitionError

if TYPE_CHECKING:
    from kernbench.runtime_api.context import RuntimeContext

NAME = "decode_attention"


@dataclass(frozen=True)
class Plan:
    """Sizes of the decoding step.

    Attributes:
        heads: query heads.
        groups: key and value heads.
        head_dim: features of a head.
        context: positions of the longest sequence; sequence i of ``batch`` has ``(batch - i) / batch`` of them.
        batch: sequences.
        dtype: of queries and cache.
        steps: tokens decoded.
    """

    heads: int = 16
    groups: int = 2
    head_dim: int = 64
    context: int = 4096
    batch: int = 2
    dtype: str = "float16"
    steps: int = 2

    def lengths(self) -> list[int]:
        """Positions of each sequence."""
        return [self.context * (self.batch - i) // self.batch for i in range(self.batch)]


def inputs(plan: Plan, replica: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Query ``[batch, heads, d]`` and whole caches ``[batch, context, groups, d]`` of one data parallel replica."""
    source = torch.Generator().manual_seed(replica)
    cache = (plan.batch, plan.context, plan.groups, plan.head_dim)
    shapes = ((plan.batch, plan.heads, plan.head_dim), cache, cache)
    q, k, v = (torch.randn(shape, generator=source).to(DTYPES[plan.dtype]) for shape in shapes)
    return q, k, v


def reference(plan: Plan, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The same by torch in double precision."""
    share = plan.heads // plan.groups
    rows = []
    for i, length in enumerate(plan.lengths()):
        keys, values = (t[i, :length].double().transpose(0, 1).repeat_interleave(share, 0) for t in (k, v))
        weights = torch.softmax(q[i].double().unsqueeze(1) @ keys.transpose(1, 2) * plan.head_dim**-0.5, -1)
        rows.append((weights @ values).squeeze(1))
    return torch.stack(rows)


def worker(rank: int, plan: Plan, layout: Layout, timer: StepTimer, found: dict[int, torch.Tensor]) -> None:
    """One rank: keep its positions of the cache, then decode ``steps`` tokens."""
    dist.init_process_group("nccl")
    tp.initialize_model_parallel(tensor_model_parallel_size=layout.tp)
    size, mine = tp.get_tensor_model_parallel_world_size(), tp.get_tensor_model_parallel_rank()
    q, k, v = inputs(plan, tp.get_data_parallel_rank())
    k, v = k[:, mine::size].contiguous(), v[:, mine::size].contiguous()
    lengths = torch.tensor([len(range(mine, length, size)) for length in plan.lengths()], dtype=torch.int32)
    timer.begin(rank)
    for _ in range(plan.steps):
        out = tp.decode_attention(q, k, v, lengths, group=tp.get_tensor_model_parallel_group())
    timer.end(rank)
    found[rank] = out
    dist.destroy_process_group()


def run(ctx: RuntimeContext, plan: Plan | None = None, layout: Layout | None = None) -> Measurement:
    """Measure in ``ctx``; by default with one tensor group of ``ctx.distributed.get_world_size()`` ranks."""
    plan = plan or Plan()
    if plan.heads % plan.groups:
        raise PartitionError(f"decode_attention: {plan.heads} heads are not divisible by {plan.groups} groups")
    layout = layout or Layout(tp=ctx.distributed.get_world_size())
    timer, found = StepTimer(ctx), dict[int, torch.Tensor]()
    ctx.multiprocessing.spawn(worker, args=(plan, layout, timer, found), nprocs=layout.world)
    error = None
    if ctx.enable_data:
        error = max(
            float((found[rank].double() - reference(plan, *inputs(plan, rank // layout.tp))).abs().max())
            for rank in range(0, layout.world, layout.tp)
        )
    cached = sum(plan.lengths()) * plan.groups * plan.head_dim * 2 * DTYPES[plan.dtype].itemsize // layout.tp
    measured = timer.measurement(layout, plan.steps)
    measured.figures.update({"cache MiB/rank": cached / 2**20, "tokens/s": plan.batch * layout.dp / measured.step})
    if error is not None:
        measured.figures["max error"] = error
    return measured


@click.command(name=NAME, cls=BenchCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--heads", type=click.IntRange(min=1), default=Plan.heads, show_default=True, help="Query heads.")
@click.option("--groups", type=click.IntRange(min=1), default=Plan.groups, show_default=True, help="Key heads.")
@click.option("--head-dim", type=click.IntRange(1, 256), default=Plan.head_dim, show_default=True, help="Features.")
@click.option("--context", type=click.IntRange(min=1), default=Plan.context, show_default=True, help="Positions.")
@click.option("--batch", type=click.IntRange(min=1), default=Plan.batch, show_default=True, help="Sequences.")
@click.option("--dtype", type=click.Choice(list(DTYPES)), default=Plan.dtype, show_default=True)
@click.option("--no-data", is_flag=True, help="Model time only: for caches too large to compute here.")
@scaling_options(steps=2)
def command(scaling: ScalingOptions, no_data: bool, **sizes: Any) -> None:
    """Decode over a cache that is spread over the ranks: modelled time per token by tensor parallel size and system."""
    plan = Plan(steps=scaling.steps, **sizes)
    click.echo(
        f"# {NAME}: {plan.heads} query heads, {plan.groups} key heads of {plan.head_dim}, {plan.batch} sequences up to "
        f"{plan.context} positions, {plan.dtype}"
    )
    results = scaling.sweep(NAME, lambda ctx, layout: run(ctx, plan, layout), enable_data=not no_data)
    report(NAME, f"decoding, {plan.context} positions, {plan.dtype}", scaling, results, **vars(plan))


if __name__ == "__main__":
    from kernbench.benches.decode_attention import command as named_command

    bench_main(named_command, "kernbench.benches.decode_attention")
