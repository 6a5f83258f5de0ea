"""``kernbench kernel``."""

from __future__ import annotations

from click.testing import CliRunner

from kernbench.cli import app

SCRIPT = """
import sys, torch, triton, triton.language as tl

@triton.jit
def negate(x, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(x + i, -tl.load(x + i))

x = torch.ones(int(sys.argv[1]))
negate[(1,)](x, N=64)
"""


def test_report(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    result = CliRunner().invoke(app, ["kernel", f"{path}:negate", "--ttir", "64"])
    assert result.exit_code == 0, result.output
    for part in ("negate", "bytes read", "256", "script.py:7", "tt.store"):
        assert part in result.output


def test_unknown_kernel_lists_those_launched(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    result = CliRunner().invoke(app, ["kernel", f"{path}:nope", "64"])
    assert "kernels launched: negate" in str(result.exception)
