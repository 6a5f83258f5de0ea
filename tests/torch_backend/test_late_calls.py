"""What a rank's libraries do in finalizers and at exit, when its simulation is over, is harmless and makes no noise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import atexit
import kernbench, torch

class Keeps:
    def __init__(self):
        self.x = torch.ones(4, device="cuda")
        self.stream = torch.cuda.Stream()

    def __del__(self):
        try:
            torch.accelerator.synchronize()
        finally:
            print("collected")
            self.stream.synchronize()

class Wrong:
    def __del__(self):
        raise RuntimeError("of its own")

def worker(rank):
    torch.cuda.set_device(rank)
    kept.append(Keeps())
    atexit.register(torch.cuda.synchronize)

kept = []
with kernbench.simulate("dgx_h100") as ctx:
    ctx.multiprocessing.spawn(worker, nprocs=2)
kept.clear()
Wrong()
"""


@pytest.mark.usefixtures("started_warm")
def test_a_gpu_that_is_asked_for_when_there_is_none_any_more(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(PROGRAM)
    command = [sys.executable, str(tmp_path / "late.py")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert ended.stdout.splitlines() == ["collected"] * 2
    assert "RuntimeError: of its own" in ended.stderr
    assert ended.stderr.count("Traceback") == 1
