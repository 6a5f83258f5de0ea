"""``kernbench calibrate``: fit a system to its owner's measurements."""

from __future__ import annotations

from pathlib import Path

import click

from kernbench.names import SYSTEM


@click.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.option("--system", type=SYSTEM, metavar="NAME|FILE", required=True, help="System to start from.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="System file to write.")
@click.option("--collective", help="What nccl-tests ran, where its output does not say so.")
@click.option("--ranks", type=click.IntRange(1), help="GPUs, where the output does not list them.")
@click.option("--nodes", type=click.IntRange(1), help="Nodes, likewise.")
def command(source: Path, system: str, out: Path, collective: str | None, ranks: int | None, nodes: int | None) -> None:
    """Fit at most four figures of a system to SOURCE: a manifest of measured tables, or the output of nccl-tests."""
    from kernbench.commands.calibrate_fit import fit

    fit(source, system, out, collective, ranks, nodes)
