"""Commands that run programs in processes of their own: a signal ends these, too, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.reliability.test_hangs import ENVIRON, LIMIT

SPINS = """
import os
def run(ctx=None, n=1):
    open(f"began-{os.getpid()}", "w").close()
    while True:
        pass

if __name__ == "__main__":
    run()
"""
COMPILES = """
import multiprocessing, os
if multiprocessing.parent_process() is not None:
    open(f"began-{os.getpid()}", "w").close()
    while True:
        pass
import triton

@triton.jit
def kernel(x):
    pass
"""
COMMANDS = {
    "what-if": ["what-if", "--set", "tp=1,2", "spins.py", "--", "{tp}"],
    "explore": ["explore", "--runs", "2", "--jobs", "1", "--nproc-per-node", "2", "spins.py"],
    "sweep": ["sweep", "sweep.yaml", "-j", "2"],
    "sweep here": ["sweep", "sweep.yaml", "-j", "0"],
    "precompile": ["precompile", "kernels.yaml", "-j", "1"],
    "launcher": ["run", "--", "torchrun", "--nproc-per-node", "2", "spins.py"],
    "carriers": ["run", "--nproc-per-node", "2", "spins.py"],
    "processes": ["run", "--isolation", "process", "--nproc-per-node", "2", "spins.py"],
}
NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)


@pytest.mark.long  # commands that import torch
@pytest.mark.parametrize("number", NUMBERS, ids=[each.name for each in NUMBERS])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_signal_ends_what_it_runs(tmp_path: Path, name: str, number: signal.Signals) -> None:
    """The signal is sent to the command alone, not to the processes that it has started."""
    (tmp_path / "spins.py").write_text(SPINS)
    (tmp_path / "sweep.yaml").write_text("program: spins.py:run\naxes: {n: [1, 2]}\n")
    (tmp_path / "compiles.py").write_text(COMPILES)
    (tmp_path / "kernels.yaml").write_text("kernels: [{kernel: 'compiles.py:kernel', arguments: {x: '*fp32'}}]\n")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with subprocess.Popen(
        [sys.executable, "-m", "kernbench", *COMMANDS[name]], cwd=tmp_path, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, env={**ENVIRON, "TMPDIR": str(temporary)}, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:  # fmt: skip
        # torchrun that is asked to end while it starts its workers loses them: both are waited for
        wanted = 2 if name == "launcher" else 1
        while len(list(tmp_path.glob("began-*"))) < wanted and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(number)
        said, _ = process.communicate(timeout=LIMIT)  # its children have the pipe, too
    assert not [each for each in session(process.pid) if is_running(each)]
    if number == signal.SIGKILL:
        assert process.returncode == -number
        return
    assert process.returncode == 128 + number, said
    assert re.search(r"kernbench: (interrupted|SIG\w+ has ended the run)", said)
    assert "Traceback" not in said or name == "launcher"  # of torchrun itself
    assert [each.name for each in temporary.iterdir() if not each.name.startswith("torchelastic_")] == []


def session(leader: int) -> list[int]:
    """The processes of a session."""
    return [int(each.name) for each in Path("/proc").glob("[0-9]*") if _field(each, 3) == str(leader)]


def is_running(pid: int) -> bool:
    """Whether it goes on: one that is about to end is waited for."""
    for _ in range(200):
        if _field(Path(f"/proc/{pid}"), 0) in ("", "Z"):
            return False
        time.sleep(0.05)
    return True


def _field(process: Path, number: int) -> str:
    try:
        return (process / "stat").read_text().rsplit(")", 1)[1].split()[number]
    except OSError:
        return ""


def test_the_pid_of_this_process_is_in_its_session() -> None:
    assert os.getpid() in session(os.getsid(0))
