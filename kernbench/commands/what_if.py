"""``kernbench what-if``: a training program at many settings; which is quickest, and which fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kernbench.commands.run_options import run_options
from kernbench.names import SYSTEMS


@click.command(name="what-if")
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--set", "settings", metavar="NAME=A,B,...", multiple=True, help="A setting and its values; repeatable.")
@click.option(
    "--system",
    "systems",
    type=SYSTEMS,
    metavar="A,B,...",
    default="dgx_h100",
    show_default=True,
    help="Systems: names or YAML files.",
)
@click.option("--gpus", metavar="N,M,...", default="8", show_default=True, help="Numbers of GPUs, one rank each.")
@click.option(
    "--override",
    "overrides",
    metavar="TEXT",
    multiple=True,
    help="A further argument of the program, such as 'training.batch={batch}'; repeatable.",
)
@click.option(
    "--env",
    "environment",
    metavar="NAME=TEXT",
    multiple=True,
    help="An environment variable, such as 'TP={tp}'; repeatable.",
)
@click.option(
    "--where",
    metavar="EXPRESSION",
    multiple=True,
    help="Leave out combinations for which this is false, such as 'tp * pp <= gpus'; repeatable.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    help="Stop each run after this many optimizer steps; 0: let it run to its end.",
)
@click.option(
    "--tokens-per-step", metavar="TEXT", help="Tokens of a step of the whole job, such as '{batch * gpus * 4096}'."
)
@click.option("--samples-per-step", metavar="TEXT", help="The same in samples.")
@click.option("--data/--no-data", default=False, help="Compute values, as far as that is possible.  [default: no-data]")
@click.option(
    "--option",
    "options",
    metavar="TEXT",
    multiple=True,
    help="A further option of kernbench run, such as --seed=7; repeatable.",
)
@run_options("module")
@click.option(
    "--jobs", "-j", type=click.IntRange(min=0), help="Runs side by side; by default one per core; 0: one by one."
)
@click.option("--scheduler", metavar="ADDRESS", help="A running Dask scheduler, as tcp://host:8786.")
@click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS", help="Give a run up after this long."
)
@click.option(
    "--output",
    "-o",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of the results.  [default: what-if-PROGRAM]",
)
@click.option("--fresh", is_flag=True, help="Forget what an earlier call has done.")
@click.option("--retry-failed", is_flag=True, help="Run again the points that failed before.")
@run_options("report_file")
@click.option("--list", "list_only", is_flag=True, help="Print the runs and start none.")
def command(**values: Any) -> None:
    """Run PROGRAM with ARGUMENTS at every combination of settings, systems and numbers of GPUs.

    In ARGUMENTS, --override and --env, {NAME} stands for a setting, and {EXPRESSION} for what is computed from settings, with
    {system} and {gpus} among them. Options of kernbench come before "--", arguments of PROGRAM behind it:

    kernbench what-if train.py --set tp=1,2 --set batch=1,4 --gpus 8,16 --where "tp <= batch * 2" -- --tp {tp} --batch {batch}
    """
    from kernbench.commands.what_if_answers import answer_question

    answer_question(**values)
