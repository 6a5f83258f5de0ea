"""``kernbench explore``: a program under many schedules, until something is found."""

from __future__ import annotations

import copy

import click

from kernbench.commands import run as one_run
from kernbench.commands.run_options import run_options
from kernbench.commands.torchrun_options import TorchrunCommand


def _params() -> list[click.Parameter]:
    """Those of ``kernbench run`` but the ones that each run has; races are looked for unless the user says otherwise."""
    params = []
    for each in one_run.command.params:
        if each.name not in (*one_run.GIVEN, "references"):
            param = copy.copy(each)
            if param.name == "races":
                param.default, param.envvar = "error", None
            params.append(param)
    return params


@click.command(cls=TorchrunCommand, params=_params(), context_settings={"allow_interspersed_args": False})
@click.option("--runs", type=click.IntRange(min=1), default=200, show_default=True, help="Schedules to try.")
@click.option("--how", metavar="random|pct:DEPTH|exhaustive[:BOUND]", default="pct:3", show_default=True,
              help="How schedules are made. exhaustive: all that can differ, with at most BOUND answers other than the "
              "default ones.")  # fmt: skip
@click.option("--jobs", "-j", type=click.IntRange(min=1), help="Runs at a time, here.  [default: 1]")
@click.option(
    "--scheduler", metavar="ADDRESS", help="Run on the workers of a running Dask scheduler, as tcp://host:8786."
)
@click.option("--differences/--no-differences", default=True, help="Values and output that differ from those of the default "
              "schedule are something that is found, too.")  # fmt: skip
@click.option(
    "--shrink/--no-shrink", default=True, help="Look for the fewest choices, and the fewest ranks, that find the same."
)
@run_options("report_file")
def command(
    runs: int, how: str, jobs: int | None, scheduler: str | None, differences: bool, shrink: bool, report_file: str | None,
    **values: object,
) -> None:  # fmt: skip
    """Run PROGRAM, as kernbench run does, under one schedule after the other until something is found.

    That is a race, a deadlock, a mismatch, an exception, or values that are not always the same. The exit code is 1 then. The
    schedule is printed: kernbench run --schedule replays it.
    """
    from kernbench.commands.explore_search import explore

    explore(runs, how, jobs, scheduler, values, differences=differences, shrink=shrink, report_file=report_file)
