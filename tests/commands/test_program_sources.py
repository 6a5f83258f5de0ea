"""Programs that are no plain file: pipes, folders, archives, and what is no text at all."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import kernbench
from kernbench.program_files import compiled_program, source_of
from tests.reliability.test_hangs import ENVIRON, LIMIT

PROGRAM = """
import sys
import torch
import beside

print(beside.NAME, sys.argv, torch.ones(2, device="cuda").shape)
"""


@pytest.fixture(params=["folder", "archive"])
def program(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / request.param
    parts = {"__main__.py": PROGRAM, "beside.py": "NAME = 'a module beside it'\n"}
    if request.param == "folder":
        path.mkdir()
        for name, text in parts.items():
            (path / name).write_text(text)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            for name, text in parts.items():
                archive.writestr(name, text)
    return path


def test_what_is_executed_of_a_folder_or_an_archive(program: Path) -> None:
    source = source_of(str(program))
    assert source.text.decode() == PROGRAM
    assert (source.file, source.place) == (str(program / "__main__.py"), str(program))


def test_one_without_a_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(kernbench.KernbenchError, match=r"cannot run .*: there is no __main__\.py in it"):
        source_of(str(tmp_path))


@pytest.mark.parametrize("data", ["--data", "--no-data"])
@pytest.mark.long  # interpreters that import torch
def test_it_runs_as_in_python(program: Path, data: str) -> None:
    command = [sys.executable, "-m", "kernbench", "run", "--no-summary", "--no-prefix", "--nproc-per-node", "1", data]
    ended = subprocess.run(
        [*command, str(program), "one"], capture_output=True, text=True, env=ENVIRON, timeout=LIMIT, check=False
    )
    assert ended.stdout == f"a module beside it {[str(program), 'one']} torch.Size([2])\n", ended.stderr


@pytest.mark.long  # an interpreter that imports torch
def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "kernbench",
        "run",
        "--no-summary",
        "--no-data",
        "--nproc-per-node",
        "1",
        "/dev/stdin",
    ]
    ended = subprocess.run(
        command, input="print('read')\n", capture_output=True, text=True, env=ENVIRON, timeout=LIMIT, check=False
    )
    assert ended.stdout.endswith("read\n"), ended.stderr


@pytest.mark.parametrize("text", [b"x = 1\0\n", b"\x7fELF\0", b"(" * 1_000], ids=["null", "binary", "deep"])
def test_what_cannot_be_compiled_is_named(text: bytes) -> None:
    with pytest.raises(kernbench.KernbenchError, match=r"program\.py"):
        compiled_program(text, "program.py")
