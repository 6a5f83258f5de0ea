"""``kernbench serve``: a serving engine under a stream of requests, at real size, without an accelerator."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import click

from kernbench.commands.run_options import run_options
from kernbench.names import SYSTEM


class EngineModule(NamedTuple):
    """How an engine is run: its module, the packages that it imports by their stand-ins, the ranks that run without data."""

    module: str
    stand_ins: tuple[str, ...]
    ranks: str


ENGINES = {
    "kernbench": EngineModule("kernbench.programs.serving", ("flash_attn",), "0"),
    "vllm": EngineModule("kernbench.programs.serving_vllm", ("auto",), "all"),
}


@click.command(name="serve", context_settings={"ignore_unknown_options": True})
@click.option("--engine", type=click.Choice([*ENGINES]), default="kernbench", show_default=True, help="A small one of "
              "kernbench's (kernbench/programs/serving.py), or vLLM as it is installed.")  # fmt: skip
@click.option("--model", required=True, metavar="DIR|config.json", type=click.Path(exists=True, path_type=Path),
              help="The model's config.json, or its folder; weights are made up.")  # fmt: skip
@click.option(
    "--tp", type=click.IntRange(min=1), default=1, show_default=True, help="GPUs, over which tensors are parallel."
)
@click.option("--nodes", type=click.IntRange(min=1), default=1, show_default=True, help="Nodes that these are on.")
@click.option(
    "--system", type=SYSTEM, metavar="NAME|FILE", default="dgx_h100", show_default=True, help="System to run on."
)
@click.option("--requests", default="none", show_default=True, metavar="FILE.jsonl|poisson:RATE,...|burst:...|none",
              help="What arrives: poisson:4/s,in=1024,out=256,n=200,seed=0; burst:in=1024,out=256,n=64 (all at once); a file; "
              "none: only how much of the model and its cache fits.")  # fmt: skip
@click.option(
    "--goodput", metavar="LIMITS", help="Count the requests within these: ttft=0.5s,tpot=50ms (also itl, latency)."
)
@click.option("--ranks", metavar="auto|all|LIST", help="Without data, ranks to run; the others are taken to do what these do.  "
              "[default: 0 for kernbench's engine, all for vLLM, whose ranks exchange objects]")  # fmt: skip
@click.option("--data/--no-data", default=False, help="Compute values: for small models.  [default: no-data]")
@run_options("trace", "report_file", "json")
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[ENGINE_OPTIONS]...")
def command(
    engine: str, model: Path, tp: int, nodes: int, system: str, requests: str, goodput: str | None, ranks: str | None,
    data: bool, json: str | None, trace: str | None, report_file: str | None, options: tuple[str, ...],
) -> None:  # fmt: skip
    """Run a serving engine with made-up weights of a model, answer requests, and print latencies and rates.

    ENGINE_OPTIONS are: --longest 4096 --budget 2048 --sequences 128 --eager ... of kernbench's own engine, those of vLLM's
    engine (--max-num-seqs 128 --enforce-eager ...) of vLLM's. It is kernbench run with --no-data and the engine's module;
    --tp 8 of systems and rates is a sweep by kernbench what-if (docs/serving.md).
    """
    from kernbench.commands import run

    chosen = ENGINES[engine]
    of_engine = ["--model", str(model), "--requests", requests, *options]
    if engine == "kernbench":
        check_engine(of_engine, tp)
    given = {
        "--system": system, "--nproc-per-node": str(-(-tp // nodes)), "--nnodes": str(nodes), "--goodput": goodput,
        "--json": json, "--trace": trace, "--report": report_file,
    }  # fmt: skip
    folded = [] if data or tp == 1 else [f"--ranks={ranks or chosen.ranks}"]
    arguments = [
        "--data" if data else "--no-data", *folded, *(f"--stand-in={name}" for name in chosen.stand_ins),
        *(part for name, value in given.items() if value is not None for part in (name, value)),
        "-m", chosen.module, *of_engine,
    ]  # fmt: skip
    with run.command.make_context("run", arguments, parent=click.get_current_context()) as context:
        run.command.invoke(context)


def check_engine(arguments: list[str], ranks: int) -> None:
    """What is wrong with the arguments of kernbench's engine, its model's file or its requests is said before it runs.

    Raises:
        ConfigError: a file is wrong; an option: ``SystemExit``, as argparse has it.
    """
    from kernbench.programs.model_shape import ServedModel
    from kernbench.programs.requests import requests_of
    from kernbench.programs.serving_options import options

    args = options().parse_args(arguments)
    requests_of(args.requests, ServedModel.read(args.model, ranks, args.dtype).shape.vocab_size)
