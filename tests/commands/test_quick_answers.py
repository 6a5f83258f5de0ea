"""What is answered before anything is simulated imports nothing that takes long."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from kernbench.benches.command_speed import COMPLETED, MISTYPED, command_paths, completing

SLOW = (
    "torch",
    "triton",
    "numpy",
    "pydantic",
    "networkx",
    "matplotlib",
    "dask",
    "distributed",
    "http.server",
)
"""Modules that take long to import, or bring others that do."""

MAIN = f"""
import atexit, sys
from kernbench.cli import main
atexit.register(lambda: print("SLOW", [name for name in {SLOW} if name in sys.modules], file=sys.stderr))
sys.argv = ["kernbench", *sys.argv[1:]]
main()
"""
NAMES = {"--system": "dgx_h100", "--device": "h100_sxm", "--fabric": "ndr400", "--algorithm": "ring_allreduce"}
"""Behind an option, a name that there is."""

PLACES = {
    "probe ": "dgx_h100", "systems show ": "dgx_h100", "ccl order ": "ring_allreduce", "bench ": "ccl_allreduce",
    "bench run ": "ccl_allreduce", "run --": "--nproc-per-node", "what-if --system sip8,": "sip8,dgx_h100",
}  # fmt: skip


def answered(*words: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    ended = subprocess.run(
        [sys.executable, "-c", MAIN, *words], check=False, timeout=120, capture_output=True, text=True,
        env={**os.environ, **(environment or {})},
    )  # fmt: skip
    assert "SLOW []" in ended.stderr
    return ended


@pytest.mark.parametrize("path", list(command_paths()), ids=lambda path: " ".join(("kernbench", *path)))
def test_help(path: tuple[str, ...]) -> None:
    ended = answered(*path, "--help")
    assert ended.returncode == 0
    assert ended.stdout.startswith(f"Usage: kernbench{''.join(f' {word}' for word in path)}")


@pytest.mark.parametrize("words", MISTYPED, ids=" ".join)
def test_wrong_command_lines(words: tuple[str, ...]) -> None:
    ended = answered(*words)
    assert ended.returncode == 2
    assert "Error: " in ended.stderr


@pytest.mark.parametrize("line", COMPLETED)
def test_completion(line: str) -> None:
    found = answered(environment=completing(line)).stdout.splitlines()
    assert f"plain,{PLACES.get(line) or NAMES[line.split()[-1]]}" in found
