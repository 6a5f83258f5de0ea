"""An option that may stand without its value, before the program."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from kernbench.cli import app
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
        ("--races torchrun train.py", "error 1 torchrun train.py False"),
        ("--races --nproc 4 train.py", "error 4 train.py False"),
        ("--races -- torchrun train.py", "error 1 torchrun train.py True"),
    ],
)
def test_stands_alone(line: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    result = CliRunner().invoke(command, line.split())
    assert (result.exit_code, result.output) == (0, said + "\n")


def test_a_word_that_is_neither_value_nor_program_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    result = CliRunner().invoke(command, ["--races", "maybe", "train.py"])
    assert (result.exit_code, "'maybe' is not one of 'off', 'warn', 'error'" in result.output) == (2, True)


def test_options_that_mean_nothing_here_are_not_suggested() -> None:
    result = CliRunner().invoke(app, ["run", "--seeed", "1", "train.py"])
    assert "No such option '--seeed'. Did you mean '--seed'?" in result.output
