"""``kernbench validate``: how wrong the cost models are, table by table."""

from __future__ import annotations

import json
from pathlib import Path

import click

from kernbench.errors import ConfigError
from kernbench.output_files import write_file


@click.command()
@click.argument("manifest", type=click.Path(path_type=Path), required=False)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write all scores to a JSON file.")
@click.option("--plot", "plot_directory", type=click.Path(path_type=Path), help="Draw each table into a directory.")
@click.option("--end-to-end", is_flag=True, help="Run training steps that were published, and compare with those.")
@click.option(
    "--parallel", is_flag=True, help="With --end-to-end: steps with tensor, pipeline and context parallelism."
)
@click.option("--only", "names", multiple=True, metavar="TEXT", help="Of the published steps those with this id or source, or "
              "with this in their title; may be repeated.")  # fmt: skip
@click.option("--jobs", "-j", type=click.IntRange(min=1), help="Steps to run side by side; by default one per core.")
@click.option(
    "--scheduler", metavar="ADDRESS", help="Run them on the workers of this Dask scheduler, as tcp://host:8786."
)
@click.option("--output", "-o", type=click.Path(file_okay=False, path_type=Path), default="end-to-end", show_default=True,
              help="Directory of their journal: an interrupted call goes on from it.")  # fmt: skip
@click.option("--fresh", is_flag=True, help="Forget what an earlier call has run.")
@click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS", help="Give a run up after this long."
)
def command(
    manifest: Path | None, json_path: Path | None, plot_directory: Path | None, end_to_end: bool, parallel: bool,
    names: tuple[str, ...], jobs: int | None, scheduler: str | None, output: Path, fresh: bool, timeout: float | None,
) -> None:  # fmt: skip
    """Compare the models with measured tables; MANIFEST lists them (without one, the tables that are shipped)."""
    if end_to_end:
        if manifest is not None or plot_directory is not None:
            raise ConfigError("--end-to-end has one table of its own, and no pictures")
        from kernbench.commands.end_to_end import validate_end_to_end

        validate_end_to_end(
            names,
            parallel=parallel,
            output=output,
            scheduler=scheduler,
            jobs=jobs,
            fresh=fresh,
            timeout=timeout,
            json_path=json_path,
        )
        return
    if names or parallel:
        raise ConfigError(f"{'--only' if names else '--parallel'} is for --end-to-end")
    from kernbench.commands.validate_tables import as_json, draw, report
    from kernbench.validation.manifests import SHIPPED_MANIFEST
    from kernbench.validation.scores import compare_manifest

    comparisons = compare_manifest(manifest or SHIPPED_MANIFEST)
    click.echo(report(comparisons))
    if json_path is not None:
        write_file(json_path, json.dumps(as_json(comparisons), indent=2) + "\n")
        click.echo(f"wrote {json_path}")
    if plot_directory is not None:
        for path in draw(comparisons, plot_directory):
            click.echo(f"wrote {path}")
