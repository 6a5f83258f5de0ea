"""A script that never heard of kernbench: ``KERNBENCH_TRITON=1 python script.py``."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

OWN_KERNEL = """
import sys
import torch, triton
import triton.language as tl

@triton.jit
def double_kernel(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n) * 2, mask=i < n)

x = torch.arange(100.0)
double_kernel[(4,)](x, 100, BLOCK=32)
assert torch.equal(x, torch.arange(100.0) * 2)
assert "kernbench" not in dir()
print("done")
"""

LIGER = """
import torch
from liger_kernel.transformers.functional import liger_rms_norm
x, w = torch.randn(6, 50, requires_grad=True), torch.randn(50)
y = liger_rms_norm(x, w, 1e-6)
torch.testing.assert_close(y, torch.nn.functional.rms_norm(x, (50,), w, 1e-6))
y.sum().backward()
assert x.grad is not None
print("done")
"""


@pytest.fixture
def environment(tmp_path) -> dict[str, str]:
    """The package as pip would install it: on the path, its entry points beside it."""
    path = [str(ROOT)]
    if "kernbench" not in {point.name for point in entry_points(group="triton.backends")}:
        information = tmp_path / "kernbench-0.dist-info"
        information.mkdir()
        (information / "METADATA").write_text("Metadata-Version: 2.1\nName: kernbench\nVersion: 0\n")
        (information / "entry_points.txt").write_text("[triton.backends]\nkernbench = kernbench.triton_engine.driver\n")
        path.append(str(tmp_path))
    path += [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("TRITON_", "KERNBENCH_"))}
    return inherited | {"PYTHONPATH": os.pathsep.join(path)}


def run(script: str, environment: dict[str, str], tmp_path: Path) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "script.py"
    file.write_text(script)
    return subprocess.run([sys.executable, file], env=environment, cwd=tmp_path, capture_output=True, text=True)


def test_own_kernel(environment, tmp_path):
    done = run(OWN_KERNEL, environment | {"KERNBENCH_TRITON": "1"}, tmp_path)
    assert done.stdout == "done\n", done.stderr
    assert done.stderr == ""


@pytest.mark.long  # compiles much
def test_public_package(environment, tmp_path):
    pytest.importorskip("liger_kernel")
    done = run(LIGER, environment | {"KERNBENCH_TRITON": "1"}, tmp_path)
    assert done.stdout.endswith("done\n"), done.stderr


def test_inactive_without_the_variable(environment, tmp_path):
    done = run(OWN_KERNEL, environment, tmp_path)
    assert "0 active drivers" in done.stderr
