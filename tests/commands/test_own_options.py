"""An error's advice is in the words of the command that was called."""

from __future__ import annotations

import sys

import click
import pytest

import kernbench.cli
from kernbench.benches import ccl_allreduce, ccl_sweep
from kernbench.benching import invoke
from kernbench.command_ends import for_command
from kernbench.topology import resolve_topology


def test_run_names_nnodes(tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "train.py").write_text("")
    arguments = ["run", "--nproc-per-node", "9", "--system", "dgx_h100", str(tmp_path / "train.py")]
    monkeypatch.setattr("sys.argv", ["kernbench", *arguments])
    monkeypatch.setattr(kernbench.cli, "end_process", sys.exit)
    with pytest.raises(SystemExit):
        kernbench.cli.main()
    assert "To hold it, use --nnodes 2, which holds 16;" in capsys.readouterr().err


@pytest.mark.parametrize("bench", [ccl_allreduce, ccl_sweep])
def test_benches_name_nodes(bench, capsys) -> None:
    assert invoke(bench.command, ["--system", "dgx_h100", "--ngpus", "9"], "bench") == 2
    assert "To hold it, use --nodes 2, which holds 16;" in capsys.readouterr().err


def test_python_and_commands_without_the_option_have_its_name() -> None:
    with pytest.raises(kernbench.KernbenchError) as caught:
        resolve_topology("dgx_h100").topology_obj.require_world(9)
    for command in (None, click.Command("other")):
        assert "use nodes=2, which holds 16;" in for_command(caught.value, command)


def test_a_command_that_starts_its_own_ranks_is_told_from_a_file(monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.argv", ["kernbench", "run", "--nproc-per-node", "2", "--", "torchrun", "train.py"])
    monkeypatch.setattr(kernbench.cli, "end_process", sys.exit)
    with pytest.raises(SystemExit):
        kernbench.cli.main()
    assert "torchrun is a command, not a file" in capsys.readouterr().err
