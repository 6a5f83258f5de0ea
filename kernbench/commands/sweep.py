"""``kernbench sweep``: a program over a grid, on this machine or beyond it."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from kernbench.commands.points_bar import points_bar
from kernbench.commands.run_options import run_options
from kernbench.plurals import counted
from kernbench.stand_ins import standing_in


@click.command(name="sweep")
@click.argument("spec", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--scheduler", metavar="ADDRESS", help="A running Dask scheduler, as tcp://host:8786.")
@click.option(
    "--jobs", "-j", type=click.IntRange(min=0), help="Local processes; by default one per core; 0: in this one."
)
@click.option("--output", "-o", type=click.Path(file_okay=False, path_type=Path), help="Directory of the results.")
@click.option("--fresh", is_flag=True, help="Forget what an earlier run of this sweep has done.")
@click.option("--retry-failed", is_flag=True, help="Run again the points that failed before.")
@click.option("--plugin", "plugins", metavar="MODULE", multiple=True, help="A plugin that takes part in every point, "
              "besides those of SPEC: a module, module:object or .py file; repeatable.")  # fmt: skip
@run_options("stand_ins", "report_file")
@click.option("--list", "list_only", is_flag=True, help="Print the points and run nothing.")
def command(
    spec: Path, scheduler: str | None, jobs: int | None, output: Path | None, fresh: bool, retry_failed: bool,
    plugins: tuple[str, ...], stand_ins: tuple[str, ...], report_file: str | None, list_only: bool,
) -> None:  # fmt: skip
    """Run the program of SPEC (a YAML file) at every point of its grid; resumes where an earlier run ended.

    Exits with 1 if a point has failed.
    """
    from kernbench.grid import label
    from kernbench.html_report.study import write_study
    from kernbench.input_files import naming
    from kernbench.sweep import read_sweep
    from kernbench.sweep import sweep as run_sweep
    from kernbench.sweep.spec import plugin_beside, tasks_of
    from kernbench.sweep.study import study_of

    described = read_sweep(spec)
    beside = [plugin_beside(reference, Path.cwd()) for reference in plugins]
    given = {
        "plugins": [*described.plugins, *beside],
        "stand_ins": [*dict.fromkeys([*described.stand_ins, *stand_ins])],
    }
    described = described.model_copy(update=given)
    if list_only:
        with standing_in(described.stand_ins), naming(spec):
            for task in tasks_of(described):
                click.echo(label(task.point))
        return
    with points_bar(spec.stem) as advance, naming(spec):
        result = run_sweep(
            described, output=output or spec.with_suffix(""), scheduler=scheduler, jobs=jobs, resume=not fresh,
            retry_failed=retry_failed, progress=advance,
        )  # fmt: skip
    click.echo(f"{counted(len(result.rows), 'point')}: {result.ran} run now, {len(result.failed)} failed")
    for row in result.rows:
        if row["error"]:
            point = {name: row[name] for name in described.axes}
            click.echo(f"failed: {label(point)}: {row['error']}", err=True)
    files = [str(path) for path in result.files]
    if report_file is not None:
        write_study(report_file, study_of(described, result))
        files.append(report_file)
    click.echo("written: " + ", ".join(files))
    if result.failed:
        sys.exit(1)
