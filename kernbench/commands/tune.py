"""``kernbench tune``: rank the configs of autotuned kernels for a device that is not there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from kernbench.commands.run_options import run_options
from kernbench.names import DEVICE
from kernbench.stand_ins import standing_in

if TYPE_CHECKING:
    from kernbench.autotune.tune import Tuned

_PIPED_WIDTH = 160  # columns when the output is no terminal, so that nothing is wrapped


@click.command(name="tune")
@click.argument("spec", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--device", type=DEVICE, help="Tune for this one (shipped name or YAML file) instead of the file's.")
@click.option("--output", "-o", type=click.Path(dir_okay=False, path_type=Path), help="Write a file for `seeded`.")
@run_options("stand_ins")
@click.option("--top", type=click.IntRange(min=1), default=5, show_default=True, help="Configs to print per launch.")
def command(spec: Path, device: str | None, output: Path | None, stand_ins: tuple[str, ...], top: int) -> None:
    """Rank the configs of every launch that SPEC (a YAML file) describes, by modelled time on the device."""
    from kernbench.autotune.seeds import write_seeds
    from kernbench.autotune.tune import tune
    from kernbench.input_files import naming

    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=_PIPED_WIDTH)
    with standing_in(stand_ins), naming(spec):
        name, results = tune(spec, device=device, progress=lambda tuned: console.print(_table(tuned, top)))
    if output is not None:
        write_seeds(output, name, [tuned.entry for tuned in results])
        console.print(f"{len(results)} rankings for {name} written to {output}")


def _table(tuned: Tuned, top: int) -> Table:
    table = Table(title=tuned.name, title_justify="left", box=None, pad_edge=False)
    for column in ("us", "limit", "registers", "shared", "resident", "config"):
        table.add_column(column, justify="right" if column in ("us", "registers", "shared", "resident") else "left")
    for each in tuned.ranked[:top]:
        config = ", ".join(f"{name}={value}" for name, value in each.config.items())
        us = f"{each.seconds * 1e6:.1f}"
        table.add_row(us, each.limit, str(each.registers), str(each.shared), str(each.resident), config)
    return table
