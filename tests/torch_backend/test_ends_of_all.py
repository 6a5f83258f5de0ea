"""A rank that ends the process which all ranks share: it is said which one it was, and where."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import ctypes, os, signal
import torch.distributed as dist

def ends():
    {how}

dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 1:
    ends()
dist.barrier()
"""


@pytest.mark.long  # seconds
@pytest.mark.usefixtures("started_warm")
@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        ("os._exit(7)", 7, "os._exit(7)"),
        ("os.abort()", -signal.SIGABRT, "os.abort()"),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, "kill with SIGKILL"),
        ("signal.raise_signal(signal.SIGSEGV)", -signal.SIGSEGV, "raise_signal with SIGSEGV"),
        ("os.execvp('true', ['true'])", 0, "os.exec of "),
    ],
)
def test_who_ends_them_all(tmp_path: Path, how: str, code: int, said: str) -> None:
    ended = _run(tmp_path, how)
    assert ended.returncode in (code, 128 - code)
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("kernbench:")]
    assert line.startswith(f"kernbench: rank 1 ends the process that all ranks share: {said}")
    assert f"{tmp_path / 'ends.py'}:6 in ends. With --isolation process" in line


@pytest.mark.usefixtures("started_warm")
def test_a_crash_in_c_code(tmp_path: Path) -> None:
    ended = _run(tmp_path, "ctypes.string_at(0)")
    assert ended.returncode in (-signal.SIGSEGV, 128 + signal.SIGSEGV)
    stack = ended.stderr[ended.stderr.index("Fatal Python error") :].splitlines()
    places = [number for number, line in enumerate(stack) if "ends.py" in line]
    assert "line 6 in ends" in stack[places[0]]
    assert any("in rank 1 (ranks share this process: see --isolation process)" in line for line in stack[places[1] :])


@pytest.mark.usefixtures("started_warm")
def test_a_process_that_a_rank_has_forked_ends_alone(tmp_path: Path) -> None:
    ended = _run(tmp_path, "pid = os.fork()\n    if pid == 0: os._exit(3)\n    assert os.waitpid(pid, 0)[1] == 3 << 8")
    assert ended.returncode == 0
    assert "ends the process" not in ended.stderr


def _run(folder: Path, how: str) -> subprocess.CompletedProcess[str]:
    (folder / "ends.py").write_text(PROGRAM.format(how=how))
    command = [sys.executable, "-m", "kernbench", "run", "--nproc-per-node", "2", str(folder / "ends.py")]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
