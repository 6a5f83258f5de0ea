"""``kernbench calibrate``: fit a system to its owner's measurements."""

from __future__ import annotations

from pathlib import Path

import click

from kernbench.errors import ConfigError
from kernbench.names import SYSTEM


@click.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.option("--system", type=SYSTEM, metavar="NAME|FILE", help="System to start from.  [required]")
@click.option("--out", type=click.Path(path_type=Path), help="System file to write.  [required]")
@click.option("--collective", help="What nccl-tests ran, where its output does not say so.")
@click.option("--ranks", type=click.IntRange(1), help="GPUs, where the output does not list them.")
@click.option("--nodes", type=click.IntRange(1), help="Nodes, likewise.")
def command(
    source: Path, system: str | None, out: Path | None, collective: str | None, ranks: int | None, nodes: int | None
) -> None:
    """Fit at most four figures of a system to SOURCE: a manifest of measured tables, or the output of nccl-tests.

    If SOURCE is the word `host`, this machine's Python and torch are timed, and give the system's `host.factor`.
    """
    if system is None or out is None:
        missing = [name for name, value in (("--system NAME|FILE", system), ("--out PATH", out)) if value is None]
        raise click.UsageError(
            f"it needs {' and '.join(missing)}: the system to start from, and the file to write, as in "
            f"`kernbench calibrate {source} --system dgx_h100 --out my_node.yaml`"
        )
    if str(source) == "host":
        given = {"--collective": collective, "--ranks": ranks, "--nodes": nodes}
        if wrong := [name for name, value in given.items() if value is not None]:
            raise ConfigError(
                f"calibrate host: {wrong[0]} says what nccl-tests ran, and a host is timed here: leave it out"
            )
        from kernbench.commands.calibrate_host import calibrate_host

        calibrate_host(system, out)
        return
    from kernbench.commands.calibrate_fit import fit

    fit(source, system, out, collective, ranks, nodes)
