"""``kernbench precompile``: compile kernels ahead of time, side by side, into Triton's cache."""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kernbench.commands.run_options import run_options
from kernbench.defaults import TARGETS
from kernbench.stand_ins import standing_in

if TYPE_CHECKING:
    from kernbench.precompile import Compilation, Report, Variant


@click.command(name="precompile")
@click.argument("spec")
@click.option("--jobs", "-j", type=click.IntRange(min=1), help="Processes; by default one per core.")
@click.option("--target", "targets", multiple=True, help=f"Compile for this one ({TARGETS}, ...); repeatable.")
@click.option("--cache-dir", type=click.Path(file_okay=False, path_type=Path), help="Instead of Triton's own cache.")
@click.option("--values", is_flag=True, help="Compile what kernbench's own engine runs, not the device's binaries.")
@click.option("--list", "list_only", is_flag=True, help="Print the variants and compile nothing.")
@click.option("--times", is_flag=True, help="Compare cold-serial, cold-parallel and warm, in caches of their own.")
@run_options("stand_ins")
@click.option("--verbose", "-v", is_flag=True, help="Print the whole traceback of each failure.")
def command(
    spec: str, jobs: int | None, targets: tuple[str, ...], cache_dir: Path | None, values: bool, list_only: bool,
    times: bool, stand_ins: tuple[str, ...], verbose: bool,
) -> None:  # fmt: skip
    """Compile every variant of SPEC: a YAML file, or a Python module or file with declared spaces.

    Modules are imported as kernbench run runs a program: they have simulated GPUs, of the first --target.

    Exits with 1 if a variant could not be compiled.
    """
    from kernbench.input_files import naming
    from kernbench.precompile import read_spaces, variants
    from kernbench.precompile.kernels import importing_within
    from kernbench.precompile.target import normalise
    from kernbench.runtime_api.program_gpus import device_for, program_gpus

    device = device_for(normalise(targets[0])) if targets else None
    with standing_in(stand_ins), importing_within(partial(program_gpus, device)):
        with naming(spec):
            todo = variants(read_spaces(spec), targets)
        if list_only:
            for variant in todo:
                click.echo(variant.name)
            return
        if times:
            report = _compare(todo, jobs, values)
        else:
            report = _with_bar("compiling", todo, jobs, cache_dir, values)
            click.echo(
                f"{len(todo)} variants: {report.compiled} compiled, {report.hits} in the cache, {len(report.failed)} failed; "
                f"{report.seconds:.1f} s with {report.jobs} processes"
            )
    for outcome in report.failed:
        click.echo(f"FAILED {outcome.name}: {outcome.error}", err=True)
        if verbose and outcome.detail:
            click.echo(outcome.detail, err=True)
    if report.failed:
        sys.exit(1)


def _with_bar(title: str, todo: list[Variant], jobs: int | None, cache_dir: Path | str | None, values: bool) -> Report:
    from kernbench.precompile.run import compile_all

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True, markup=False)) as bar:
        task = bar.add_task(title, total=len(todo))

        def advance(outcome: Compilation) -> None:
            if outcome.error:
                bar.console.print(f"failed: {outcome.name}", markup=False, highlight=False)
            bar.advance(task)

        return compile_all(todo, jobs=jobs, cache_dir=cache_dir, values=values, progress=advance)


def _compare(todo: list[Variant], jobs: int | None, values: bool) -> Report:
    """Cold with one process, cold with many, and warm; the first two in empty caches."""
    with tempfile.TemporaryDirectory() as serial, tempfile.TemporaryDirectory() as parallel:
        runs = {
            "cold-serial": _with_bar("cold-serial", todo, 1, serial, values),
            "cold-parallel": _with_bar("cold-parallel", todo, jobs, parallel, values),
            "warm": _with_bar("warm", todo, jobs, parallel, values),
        }
    for name, report in runs.items():
        ratio = runs["cold-serial"].seconds / report.seconds
        click.echo(
            f"{name:14}{report.seconds:8.2f} s  {report.jobs:3} processes  {report.compiled:4} compiled "
            f"{report.hits:4} hits  x{ratio:.1f}"
        )
    return runs["cold-parallel"]
