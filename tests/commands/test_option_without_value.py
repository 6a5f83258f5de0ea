"""An option that may stand without its value, before the program."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from kernbench.commands.torchrun_options import DASHES, TorchrunCommand


@click.command(cls=TorchrunCommand, context_settings={"allow_interspersed_args": False})
@click.option("--races", is_flag=False, flag_value="error", default="off", type=click.Choice(["off", "warn", "error"]))
@click.option("--nproc-per-node", default="1")
@click.argument("program", nargs=-1)
@click.pass_context
def command(ctx: click.Context, races: str, nproc_per_node: str, program: tuple[str, ...]) -> None:
    click.echo(f"{races} {nproc_per_node} {' '.join(program)} {ctx.meta[DASHES]}")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--races train.py", "error 1 train.py False"),
        ("--races train.py --races warn", "error 1 train.py --races warn False"),
        ("--races warn train.py", "warn 1 train.py False"),
        ("--races=warn train.py", "warn 1 train.py False"),
        ("--races --nproc 4 train.py", "error 4 train.py False"),
        ("--races -- torchrun train.py", "error 1 torchrun train.py True"),
    ],
)
def test_stands_alone(line: str, said: str) -> None:
    result = CliRunner().invoke(command, line.split())
    assert (result.exit_code, result.output) == (0, said + "\n")
