"""What a program sets as ``sys.excepthook`` is called with what ends its rank."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from kernbench.commands.run import command

HOOK = """
import sys, torch.distributed as dist
def hook(kind, error, trace):
    print(f"hooked {kind.__name__} of line {trace.tb_lineno}")
    WHAT
"""
FAILS = """
dist.init_process_group("gloo")
if dist.get_rank() == 0:
    raise KeyError("x")
dist.barrier()
"""


def said(tmp_path: Path, hook: str, *options: str) -> list[str]:
    (tmp_path / "program.py").write_text(hook + FAILS)
    before = sys.excepthook
    result = CliRunner().invoke(command, ["--no-summary", *options, str(tmp_path / "program.py")])
    assert result.exit_code == 1, result.output
    assert sys.excepthook is before
    return result.output.splitlines()


TWO = ("--nproc-per-node", "2")


@pytest.mark.parametrize("how", [TWO, (*TWO, "--isolation", "process"), ()], ids=["carrier", "process", "one"])
def test_a_hook_is_called_in_the_rank_that_fails(tmp_path: Path, how: tuple[str, ...]) -> None:
    lines = said(tmp_path, HOOK.replace("WHAT", "") + "sys.excepthook = hook", *how)
    hooked = [each.removeprefix("[rank0]").strip(": ") for each in lines if "hooked" in each]
    assert hooked == ["hooked KeyError of line 9"]
    assert [each for each in lines if "hooked" in each and "[rank1]" in each] == []
    assert sum("KeyError: 'x'" in each for each in lines) == 1


def test_one_that_raises_hides_nothing(tmp_path: Path) -> None:
    hook = HOOK.replace("WHAT", "raise ValueError('of the hook')") + "sys.excepthook = hook"
    text = "\n".join(said(tmp_path, hook, "--nproc-per-node", "2"))
    assert "Error in sys.excepthook:" in text
    assert "ValueError: of the hook" in text
    assert "KeyError: 'x'" in text


def test_without_one_nothing_is_called(tmp_path: Path) -> None:
    """What ``init_process_group`` has put there prints what is said of the rank anyway."""
    text = "\n".join(said(tmp_path, HOOK.replace("WHAT", ""), "--nproc-per-node", "2"))
    assert "hooked" not in text
    assert text.count("KeyError: 'x'") == 1
