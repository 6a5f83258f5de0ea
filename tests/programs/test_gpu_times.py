"""``kernbench.programs.gpu_times`` on a simulated GPU, and its results beside those of a real one."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kernbench.benches.gpu_compare import SHIPPED, ratios
from kernbench.commands.run import command
from kernbench.programs.gpu_times import SETS


def run(*words: str) -> Result:
    options = ("--no-data", "--system", "dgx_h100", "--nproc-per-node", "1", "-m", "kernbench.programs.gpu_times")
    return CliRunner().invoke(command, [*options, *words])


def test_a_group_has_a_time_for_each_reading_of_the_gpu(tmp_path: Path) -> None:
    out = tmp_path / "simulated.json"
    result = run("--groups", "floors", "--out", str(out))
    assert result.exit_code == 0, result.output
    simulated, real = json.loads(out.read_text()), json.loads(SHIPPED.read_text())
    assert [case for case in simulated["cases"] if "error" in case] == []
    compared = [case for cases in ratios(real, simulated).values() for case in cases]
    assert {name for name, _, _ in compared} == {case["name"] for case in simulated["cases"]}
    assert statistics.median(ratio for _, _, ratio in compared) == pytest.approx(1, abs=0.2)


def test_a_group_that_is_none_is_an_error_that_names_those_that_are(tmp_path: Path) -> None:
    result = run("--groups", "floors,nosuch", "--out", str(tmp_path / "none.json"))
    assert result.exit_code == 2, result.output
    assert "no set nosuch; there are " in result.output
    assert all(name in result.output for name in SETS)
    assert "Traceback" not in result.output
