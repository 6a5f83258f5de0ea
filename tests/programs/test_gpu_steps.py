"""Programs whose steps are timed on a real GPU run on a simulated one, by the same command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernbench.benches.gpu_compare import SHIPPED_STEPS, STEPS, ratios
from kernbench.programs.gpu_steps.timed import SETS


def _timed(out: Path, *options: str) -> list[dict[str, Any]]:
    command = [
        sys.executable,
        "-m",
        "kernbench",
        "run",
        "--no-data",
        "--no-summary",
        "--system",
        "dgx_h100",
        "--nproc-per-node",
        "1",
    ]
    subprocess.run([*command, "-m", STEPS, "--out", str(out), *options], check=True, stdout=subprocess.DEVNULL)
    found: list[dict[str, Any]] = json.loads(out.read_text())["cases"]
    return found


def test_a_step_is_timed(tmp_path: Path) -> None:
    (case,) = _timed(tmp_path / "out.json", "--sets", "others", "--only", "wide fp32", "--steps", "2", "--kernels")
    assert 1e-3 < case["seconds"] < 5e-3
    assert set(case["phases"]) == {"forward", "backward", "optimizer"}
    assert sum(case["phases"].values()) == pytest.approx(case["host"], rel=0.3)
    assert sum(seconds for _, seconds in case["kernels"].values()) == pytest.approx(case["seconds"], rel=0.1)


def test_there_is_a_reading_of_each_program() -> None:
    read = {
        (case["group"], case["name"]) for case in json.loads(SHIPPED_STEPS.read_text())["cases"] if "error" not in case
    }
    assert {(each.group, each.name) for make in SETS.values() for each in make()} == read


def test_what_cannot_be_compared_is_refused_in_a_line(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text('{"cases": [{"group": "a", "name": "b", "seconds": 1.0}]}')
    (tmp_path / "no.json").write_text('{"cases": 3}')
    said = {"nosuch.json": "nosuch.json", str(tmp_path / "no.json"): "cases", str(SHIPPED_STEPS): "no case in common"}
    for name, words in said.items():
        command = [sys.executable, "-m", "kernbench.benches.gpu_compare", name, str(other)]
        found = subprocess.run(command, check=False, capture_output=True, text=True)
        assert found.returncode == 2
        assert words in found.stderr.splitlines()[-1]


@pytest.mark.long
def test_programs_take_about_as_long_as_on_an_h100(tmp_path: Path) -> None:
    cases = _timed(tmp_path / "out.json", "--sets", "language,vision,others,triton")
    assert [case["name"] for case in cases if "error" in case] == []
    found = ratios(json.loads(SHIPPED_STEPS.read_text()), {"cases": cases})
    for group, within in (("training", 0.2), ("inference", 0.2), ("triton", 0.2)):
        off = sorted(abs(ratio - 1) for _, _, ratio in found[group])
        assert off[len(off) // 2] < within, group
