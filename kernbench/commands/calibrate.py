"""``kernbench calibrate``: fit a system to its owner's measurements."""

from __future__ import annotations

from pathlib import Path

import click

from kernbench.cost.calibration import calibrate, measure_log, measure_manifest, system_document
from kernbench.errors import ConfigError


@click.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.option("--system", required=True, help="System to start from: a shipped name or a YAML path.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="System file to write.")
@click.option("--collective", help="What nccl-tests ran, where its output does not say so.")
@click.option("--ranks", type=click.IntRange(1), help="GPUs, where the output does not list them.")
@click.option("--nodes", type=click.IntRange(1), help="Nodes, likewise.")
def command(source: Path, system: str, out: Path, collective: str | None, ranks: int | None, nodes: int | None) -> None:
    """Fit at most four figures of a system to SOURCE: a manifest of measured tables, or the output of nccl-tests."""
    if source.suffix in (".yaml", ".yml"):
        tables = measure_manifest(source)
    else:
        tables = measure_log(source, collective=collective, ranks=ranks, nodes=nodes)
    result = calibrate(system, tables, name=out.stem)
    for parameter, (before, after) in result.values.items():
        click.echo(f"{parameter.name:32} {before:12.4g} -> {after:.4g}")
    for title, state in (("before", result.before), ("after", result.after)):
        click.echo(
            f"{title:7} {state.points} points: median error {100 * state.median:.1f} %, "
            f"p90 {100 * state.p90:.1f} %, signed {100 * state.signed:+.1f} %"
        )
    base = str(Path(system).resolve()) if Path(system).suffix in (".yaml", ".yml") else system
    try:
        out.write_text(system_document(base, result))
    except OSError as error:
        raise ConfigError(f"{out}: {error.strerror or error}") from None
    click.echo(f"wrote {out}")
