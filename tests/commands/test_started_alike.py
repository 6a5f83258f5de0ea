"""All commands that run or import a program start it the same way, and end alike."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.commands.test_command_line import MAIN

pytest.importorskip("triton")
pytestmark = [pytest.mark.long, pytest.mark.usefixtures("started_warm")]  # minutes

PROGRAM = """
import json, os, sys
import torch, triton, triton.language as tl
import flash_attn
import beside
import kernbench

x = torch.arange(4, device="cuda") * beside.TWO
facts = {
    "path": sys.path[0], "program": os.path.basename(sys.argv[0]), "main": __name__ == "__main__", "arguments": sys.argv[1:],
    "here": os.getcwd(), "count": torch.cuda.device_count(), "device": str(x.device), "values": x.tolist(),
    "target": triton.runtime.driver.active.get_current_target().backend,
    "triton's device": str(triton.runtime.driver.active.get_active_torch_device()), "flash": flash_attn.__version__,
}
with open(os.environ["FACTS"], "a") as file:
    file.write(json.dumps(facts) + "\\n")
exec(os.environ.get("THEN", ""))


@kernbench.precompile.space(arguments={"x": "*fp32", "BLOCK": 16})
@triton.jit
def double(x, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at) * 2)


def point(ctx, size):
    return {"size": size}


if __name__ == "__main__":
    double[(4,)](torch.ones(64, device="cuda"), BLOCK=16)
"""
LINE = PROGRAM[: PROGRAM.index("exec(")].count("\n") + 1
FILES = {
    "program.py": PROGRAM,
    "beside.py": "TWO = 2\n",
    "sweep.yaml": "program: program.py:point\naxes: {size: [1]}\n",
    "modules.yaml": "program: program:point\naxes: {size: [1]}\n",
    "tune.yaml": "kernels:\n- {kernel: 'program.py:double', arguments: {x: 'fp32[64]'}, grid: [4], configs: [{BLOCK: 16}]}\n",
}
FILES["modules_tune.yaml"] = FILES["tune.yaml"].replace("program.py:", "program:")
PYTHON = sys.executable
FLASH = "--stand-in flash_attn"
RUN = (
    f"run {FLASH} program.py a b", f"run {FLASH} -m program a b", f"run {FLASH} --nproc-per-node 1 program.py a b",
    f"run {FLASH} --nproc-per-node 1 --isolation process -m program a b",
    f"kernel {FLASH} program.py a b", f"kernel {FLASH} -m program:double a b",
    f"explore {FLASH} --runs 1 --nproc-per-node 1 program.py a b",
    f"report serve {FLASH} --exit-when-done --port 0 program.py a b",
    "what-if --option --stand-in=flash_attn --gpus 1 --steps 0 --data program.py a b",
)  # fmt: skip
"""Commands whose program is ``__main__``."""

IMPORTED = (
    f"precompile {FLASH} -j 1 --values program.py", f"precompile {FLASH} -j 1 --values program",
    f"precompile {FLASH} --list program.py", f"tune {FLASH} tune.yaml", f"tune {FLASH} modules_tune.yaml",
    f"sweep {FLASH} -j 0 sweep.yaml", f"sweep {FLASH} -j 1 sweep.yaml", f"sweep {FLASH} -j 0 modules.yaml",
    f"sweep {FLASH} --list sweep.yaml",
)  # fmt: skip
"""Commands that import it for what it defines."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FACTS", str(tmp_path / "facts"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,3")
    for name in ("PYTHONPATH", "KERNBENCH_RACES"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def started(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kernbench", *line.split()],
        check=False, timeout=300, capture_output=True, text=True, env={**os.environ, **environment},
    )  # fmt: skip


def facts(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "facts").read_text().splitlines()]


@pytest.mark.parametrize("line", [*RUN, *IMPORTED])
def test_what_a_program_finds(folder: Path, line: str) -> None:
    ended = started(line)
    assert ended.returncode == 0, ended.stderr
    found = facts(folder)
    assert found
    is_main = line in RUN
    for each in found:
        assert each == {
            "path": str(folder), "program": "program.py", "main": is_main, "arguments": ["a", "b"] if is_main else [],
            "here": str(folder), "count": 2, "device": "cuda:0", "values": [0, 2, 4, 6], "target": "cuda",
            "triton's device": "cuda:0", "flash": found[0]["flash"],
        }  # fmt: skip
        assert each["flash"]


ONE_OF_EACH = (RUN[0], RUN[2], RUN[4], RUN[6], IMPORTED[0], IMPORTED[3], IMPORTED[5])


@pytest.mark.parametrize("line", ONE_OF_EACH)
def test_a_program_that_fails(folder: Path, line: str) -> None:
    ended = started(line, THEN="1 / 0")
    said = ended.stdout + ended.stderr
    assert ended.returncode == 1, said
    assert "ZeroDivisionError" in said
    if not line.startswith("explore"):  # which says what differs from run to run, and how to see the rest
        assert f'program.py", line {LINE}, in <module>' in said
        assert "kernbench: failed: " in said
    for name in ("click/core.py", "kernbench/commands", "kernbench/runtime_api", "kernbench/precompile"):
        assert name not in said


@pytest.mark.parametrize("line", ONE_OF_EACH)
@pytest.mark.parametrize("text", ["x = = 1\n", None], ids=["no Python", "no file"])
def test_a_program_that_cannot_be_started(folder: Path, line: str, text: str | None) -> None:
    if text is None:
        (folder / "program.py").unlink()
    else:
        (folder / "program.py").write_text(text)
    ended = started(line)
    assert ended.returncode == 2, ended.stderr
    assert "error: " in ended.stderr
    assert ("SyntaxError: invalid syntax" if text else "program.py: No such file") in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("line", ONE_OF_EACH)
def test_ctrl_c(folder: Path, line: str) -> None:
    """While the program runs."""
    waits = "open('waits', 'w').close()\nfor _ in range(10**9): x.sum().item()"
    process = subprocess.Popen(
        [PYTHON, "-c", MAIN, *line.split()], env={**os.environ, "THEN": waits}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while not Path("waits").exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 130, output + errors
    assert "Traceback" not in errors
    assert "Aborted" not in errors
