"""``kernbench run -m pytest``: each rank runs a session of its own, as processes do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTS = """
import os
import pytest
import torch.distributed as dist

RANK = int(os.environ["RANK"])

@pytest.mark.parametrize("value", [RANK])
def test_parameters(value):
    assert value == RANK

@pytest.mark.xfail(strict=True)
def test_fails():
    assert RANK < 0

def test_ranks_meet():
    dist.init_process_group("gloo")
    dist.barrier()
    assert dist.get_rank() == RANK
    dist.barrier()
"""


def test_each_rank_has_its_tests_and_reports_its_failures(tmp_path: Path) -> None:
    (tmp_path / "test_in_ranks.py").write_text(TESTS)
    command = ["run", "--no-summary", "--nproc-per-node", "2", "-m", "pytest", "-s", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "kernbench", *command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(2):
        lines = [line for line in done.stdout.splitlines() if line.startswith(f"[rank{rank}]")]
        assert any("2 passed, 1 xfailed" in line for line in lines), lines
