"""The engine and Triton's own interpreter give the same answer; the interpreter runs once, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.kernels.shared_programs import EXACT, ROUNDED

pytestmark = pytest.mark.beyond_interpreter("would be compared with itself")


@pytest.fixture(scope="session")
def interpreted(tmp_path_factory) -> dict[str, list[torch.Tensor]]:
    """Results of every shared program by the interpreter."""
    out = tmp_path_factory.mktemp("interpreter") / "results.pt"
    environment = {k: v for k, v in os.environ.items() if k != "KERNBENCH_TRITON"} | {"TRITON_INTERPRET": "1"}
    script = Path(__file__).with_name("shared_programs.py")
    done = subprocess.run([sys.executable, script, out], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return torch.load(out)


@pytest.mark.parametrize("name", EXACT)
def test_equal_bit_for_bit(name, interpreted):
    for ours, theirs in zip(EXACT[name](), interpreted[name], strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", ROUNDED)
def test_equal_within_rounding(name, interpreted):
    for ours, theirs in zip(ROUNDED[name](), interpreted[name], strict=True):
        eps = torch.finfo(ours.dtype).eps
        torch.testing.assert_close(ours, theirs, rtol=16 * eps, atol=32 * eps)
