"""A small GPT learns a text, character by character, with tensor and data parallelism: the loss is the same for every split.

    python -m kernbench.benches.train_gpt                                      # default system, tp 1 2 4
    python -m kernbench.benches.train_gpt --tp 4 --dp 2 --steps 200 --plot loss.svg
    python -m kernbench.benches.train_gpt --system dgx_h100 --trace train.json

Prints the loss by step for each tensor parallel size beside the modelled time of a step. ``--plot`` draws the loss curves;
``--trace`` shows, at the last size, the gradient all-reduces that travel while backward computes. The exit code is 1 if a
curve leaves the first one by more than rounding explains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import torch
import torch.distributed as dist

from kernbench import tp
from kernbench.benches.harness.scaling import (
    Layout,
    Measurement,
    ScalingOptions,
    StepTimer,
    comparison,
    plotting,
    scaling_options,
    write_json,
)
from kernbench.benching import BenchCommand, bench_main
from kernbench.output_files import replacing

if TYPE_CHECKING:
    from kernbench.runtime_api.context import RuntimeContext

NAME = "train_gpt"
TEXT = Path(__file__).parent / "data" / "harbour.txt"
TOLERANCE = 5e-3
"""Largest difference between loss curves. Sums round differently when they are split, and training amplifies it."""


@dataclass(frozen=True)
class Plan:
    """The model and how it is trained.

    Attributes:
        hidden, heads, layers: sizes of the model.
        sequence: characters of a sample.
        batch: samples of a step, over all data parallel ranks.
        steps: updates of the weights.
        rate: learning rate, after a warm-up of a tenth of the steps.
        sequence_parallel: activations between the parallel layers are split along the sequence.
        seed: of weights and samples.
        text: file to learn.
    """

    hidden: int = 128
    heads: int = 8
    layers: int = 2
    sequence: int = 64
    batch: int = 8
    steps: int = 60
    rate: float = 2e-3
    sequence_parallel: bool = False
    seed: int = 0
    text: Path = TEXT


class Corpus:
    """A text as character numbers.

    Attributes:
        characters: those that occur, sorted; a character's number is its place.
        vocabulary: their count rounded up to a multiple of 64, so that it can be split.
    """

    def __init__(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        self.characters = sorted(set(text))
        self.vocabulary = -(-len(self.characters) // 64) * 64
        number = {character: index for index, character in enumerate(self.characters)}
        self._words = torch.tensor([number[character] for character in text])

    def batch(self, plan: Plan, step: int) -> torch.Tensor:
        """``[batch, sequence + 1]``: the samples of a step, the same on every rank."""
        if len(self._words) <= plan.sequence + 1:
            raise click.UsageError(f"the text has {len(self._words)} characters, --sequence {plan.sequence} needs more")
        source = torch.Generator().manual_seed(plan.seed * 1_000_003 + step)
        starts = torch.randint(0, len(self._words) - plan.sequence - 1, (plan.batch,), generator=source)
        return torch.stack([self._words[start : start + plan.sequence + 1] for start in starts.tolist()])


def worker(
    rank: int, plan: Plan, layout: Layout, corpus: Corpus, timer: StepTimer, losses: list[float], on_step: Any
) -> None:
    """One rank of the training: written as for real GPUs."""
    dist.init_process_group("nccl")
    tp.initialize_model_parallel(tensor_model_parallel_size=layout.tp)
    tp.model_parallel_manual_seed(plan.seed + 1234)
    config = tp.TransformerConfig(
        plan.hidden, plan.heads, num_layers=plan.layers, vocab_size=corpus.vocabulary,
        max_sequence_length=plan.sequence, sequence_parallel=plan.sequence_parallel and layout.tp > 1,
    )  # fmt: skip
    model = tp.DistributedDataParallel(tp.GPTModel(config), bucket_size=100_000)
    params = list(model.parameters())
    optimizer = torch.optim.AdamW(params, lr=plan.rate, betas=(0.9, 0.95), weight_decay=0.1, foreach=True)
    warmup = max(1, plan.steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warmup))
    replicas, replica = tp.get_data_parallel_world_size(), tp.get_data_parallel_rank()
    timer.begin(rank)
    for step in range(plan.steps):
        words = corpus.batch(plan, step).chunk(replicas)[replica]
        model.zero_grad_buffer()
        loss = model(words[:, :-1], words[:, 1:]).mean()
        loss.backward()
        tp.finalize_model_grads([model])
        tp.clip_grad_norm(params, 1.0)
        optimizer.step()
        schedule.step()
        mean = loss.detach() / replicas
        tp.comm.all_reduce(mean, group=tp.get_data_parallel_group())
        if rank == 0:
            losses.append(float(mean))
            on_step()
    timer.end(rank)
    dist.destroy_process_group()


def run(
    ctx: RuntimeContext, plan: Plan | None = None, layout: Layout | None = None, on_step: Any = lambda: None
) -> Measurement:
    """Train in ``ctx``; by default with one tensor group of ``ctx.distributed.get_world_size()`` ranks.

    ``.figures["losses"]`` of the result holds the loss of every step.
    """
    plan = plan or Plan(steps=10)
    layout = layout or Layout(tp=ctx.distributed.get_world_size())
    if plan.batch % layout.dp:
        raise click.UsageError(f"--batch {plan.batch} is not divisible by --dp {layout.dp}")
    timer, losses = StepTimer(ctx), list[float]()
    arguments = (plan, layout, Corpus(plan.text), timer, losses, on_step)
    ctx.multiprocessing.spawn(worker, args=arguments, nprocs=layout.world)
    return timer.measurement(layout, plan.steps, losses=losses)


def differences(results: Sequence[Measurement]) -> list[float]:
    """Largest difference of each loss curve from the first."""
    first = results[0].figures["losses"]
    return [max(abs(a - b) for a, b in zip(first, result.figures["losses"], strict=True)) for result in results]


def curve_table(results: Sequence[Measurement], rows: int = 12) -> list[str]:
    """Losses of about ``rows`` steps, a column per layout."""
    steps = len(results[0].figures["losses"])
    shown = sorted({round(i * (steps - 1) / max(rows - 1, 1)) for i in range(rows)})
    head = "".join(f"{f'tp {r.layout.tp} x dp {r.layout.dp}':>16}" for r in results)
    return [f"# {'step':>6}{head}"] + [
        f"  {step + 1:>6}" + "".join(f"{result.figures['losses'][step]:>16.6f}" for result in results) for step in shown
    ]


def plot_losses(path: Path, results: Sequence[Measurement]) -> None:
    """Loss over steps, and over modelled time."""
    pyplot = plotting()
    figure, (by_step, by_time) = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained", sharey=True)
    for number, result in enumerate(results):
        losses = result.figures["losses"]
        label = f"{result.system} tp {result.layout.tp} x dp {result.layout.dp}"
        style = {"linewidth": 7 - 2 * min(number, 3), "alpha": 0.35 + 0.15 * min(number, 4), "label": label}
        by_step.plot(range(1, len(losses) + 1), losses, **style)
        by_time.plot([1e3 * result.step * (step + 1) for step in range(len(losses))], losses, label=label)
    by_step.set(xlabel="step", ylabel="loss, nats per character", title="the same curve for every split")
    by_time.set(xlabel="modelled time, ms", title="at different speed")
    for axes in (by_step, by_time):
        axes.grid(alpha=0.3)
        axes.legend()
    with replacing(path) as part:
        figure.savefig(part, format=path.suffix[1:] or None)
    pyplot.close(figure)


@click.command(name=NAME, cls=BenchCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--hidden", type=click.IntRange(min=1), default=Plan.hidden, show_default=True, help="Features.")
@click.option("--heads", type=click.IntRange(min=1), default=Plan.heads, show_default=True, help="Heads.")
@click.option("--layers", type=click.IntRange(min=1), default=Plan.layers, show_default=True, help="Blocks.")
@click.option("--sequence", type=click.IntRange(min=2), default=Plan.sequence, show_default=True, help="Characters.")
@click.option("--batch", type=click.IntRange(min=1), default=Plan.batch, show_default=True, help="Samples of a step.")
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), default=Plan.rate, show_default=True, help="Learning rate."
)
@click.option("--sequence-parallel", is_flag=True, help="Split activations along the sequence.")
@click.option(
    "--text", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=TEXT, help="Text to learn."
)
@scaling_options(tp="1,2,4", steps=Plan.steps)
@click.pass_context
def command(click_ctx: click.Context, /, scaling: ScalingOptions, **settings: Any) -> None:
    """Train a small GPT on a text, with tensor and data parallelism: loss curves and modelled time per step."""
    from kernbench.benches.harness.progress import ProgressBar

    plan = Plan(steps=scaling.steps, seed=scaling.simulation.seed, **settings)
    click.echo(
        f"# {NAME}: {plan.layers} layers, hidden {plan.hidden}, {plan.heads} heads, {plan.batch} x {plan.sequence} "
        f"characters of {plan.text.name}, {plan.steps} steps"
    )
    with ProgressBar(len(scaling.points) * plan.steps, NAME) as bar:
        results = scaling.sweep(NAME, lambda ctx, layout: run(ctx, plan, layout, bar.advance), progress=False)
    for line in curve_table(results):
        click.echo(line)
    apart = differences(results)
    for result, difference in zip(results, apart, strict=True):
        result.figures["max loss diff"] = difference
    curves = [result.figures.pop("losses") for result in results]
    for line in comparison(results):
        click.echo(line)
    for result, curve in zip(results, curves, strict=True):
        result.figures["losses"] = curve
    if scaling.json is not None:
        write_json(scaling.json, NAME, results, **{**vars(plan), "text": plan.text.name})
    if scaling.plot is not None:
        plot_losses(scaling.plot, results)
    if max(apart) > TOLERANCE:
        click.echo(f"# the loss curves differ by {max(apart):.2e}: more than rounding explains")
        click_ctx.exit(1)


if __name__ == "__main__":
    from kernbench.benches.train_gpt import command as named_command

    bench_main(named_command, "kernbench.benches.train_gpt")
