"""The engine and Triton's own interpreter give the same answer; the interpreter runs once, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import triton

from tests.kernels.generated_kernels import Writer, run
from tests.kernels.shared_programs import EXACT, ROUNDED

pytestmark = pytest.mark.beyond_interpreter("would be compared with itself")

SEEDS = range(32)

INCAPABLE = "only 0-dimensional arrays can be converted to Python scalars"
"""What numpy 2.4 says to the interpreter of Triton 3.6, which converts arrays of one element to numbers."""


def by_interpreter(script: str, out: Path, *arguments: str) -> dict:
    """What a script of this folder writes to ``out`` under Triton's interpreter."""
    environment = {k: v for k, v in os.environ.items() if k != "KERNBENCH_TRITON"} | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, Path(__file__).with_name(script), *arguments, out]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if INCAPABLE in done.stderr:
        pytest.skip(
            f"the interpreter of Triton {triton.__version__} does not work with numpy {np.__version__}: {INCAPABLE}; "
            "numpy<2.4 serves it, and is what make test-triton-matrix installs"
        )
    assert done.returncode == 0, done.stderr
    return torch.load(out)


@pytest.fixture(scope="session")
def interpreted(tmp_path_factory) -> dict[str, list[torch.Tensor]]:
    """Results of every shared program."""
    return by_interpreter("shared_programs.py", tmp_path_factory.mktemp("interpreter") / "results.pt")


@pytest.fixture(scope="session")
def interpreted_seeds(tmp_path_factory) -> dict[int, torch.Tensor]:
    """Results of every generated kernel."""
    out = tmp_path_factory.mktemp("interpreter") / "generated.pt"
    return by_interpreter("generated_kernels.py", out, *map(str, SEEDS), "--out")


@pytest.mark.parametrize("seed", SEEDS)
def test_generated_kernels(seed, interpreted_seeds, tmp_path):
    out = run(seed, tmp_path)
    assert torch.equal(out, interpreted_seeds[seed]), Writer(seed).write().source


@pytest.mark.parametrize("name", EXACT)
def test_equal_bit_for_bit(name, interpreted):
    for ours, theirs in zip(EXACT[name](), interpreted[name], strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", ROUNDED)
def test_equal_within_rounding(name, interpreted):
    for ours, theirs in zip(ROUNDED[name](), interpreted[name], strict=True):
        eps = torch.finfo(ours.dtype).eps
        torch.testing.assert_close(ours, theirs, rtol=16 * eps, atol=32 * eps)
