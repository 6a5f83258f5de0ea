"""What ``kernbench calibrate host`` does: it times this machine as a host, prints what it took and writes the system."""

from __future__ import annotations

from pathlib import Path

import click

from kernbench.commands.calibrate_fit import base_of
from kernbench.cost.host_speed import REFERENCE, measure_host
from kernbench.output_files import write_file


def calibrate_host(system: str, out: Path) -> None:
    """Time, print, write. The arguments are the command's."""
    speed = measure_host()
    click.echo(f"{'class':26} {'this machine':>13} {'reference':>11} {'ratio':>8}")
    for name, ratio in speed.ratios.items():
        took, reference = (f"{1e6 * seconds:.2f} us" for seconds in (speed.seconds[name], REFERENCE[name]))
        click.echo(f"{name:26} {took:>13} {reference:>11} {ratio:>8.2f}")
    click.echo(f"host.factor {speed.factor:.3g} ({speed.cpu})")
    write_file(out, speed.document(base_of(system), out.stem))
    click.echo(f"wrote {out}")
