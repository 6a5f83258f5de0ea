"""The workflow that ``examples/ci`` has for packages: its steps are run where a checkout of such a package is."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "examples" / "ci"
WORKFLOW: dict[str, Any] = yaml.safe_load((PACKAGE / "workflow.yml").read_text())
STEPS: list[dict[str, Any]] = WORKFLOW["jobs"]["tests"]["steps"]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The package as it would be in a repository of its own."""
    folder = tmp_path / "package"
    shutil.copytree(PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / ".github" / "workflows").mkdir(parents=True)
    (folder / "workflow.yml").rename(folder / ".github" / "workflows" / "tests.yml")
    return folder


def run(step: dict[str, Any], folder: Path) -> subprocess.CompletedProcess[str]:
    """A step as the service runs it, with this Python; what it installs has to be there."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment = {
        **kept, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}", "PIP_NO_INDEX": "1",
        "PYTHONPATH": str(ROOT), "KERNBENCH_PROGRESS": "0", "CI": "true",
    }  # fmt: skip
    return subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", step["run"]], cwd=folder, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=250,
    )  # fmt: skip


@pytest.mark.long  # installs, and a run of pytest
def test_every_step_succeeds_in_a_checkout(checkout: Path) -> None:
    printed = {}
    for step in STEPS:
        if "run" in step:
            done = run(step, checkout)
            assert done.returncode == 0, f"{step['name']}:\n{done.stdout}"
            printed[step["name"]] = done.stdout
    assert list(printed) == [
        "Install", "Say what is installed", "Test on simulated ranks", "Run the program itself, and look for races",
    ]  # fmt: skip
    assert "all is well" in printed["Say what is installed"]
    assert re.search(r"^3 passed", printed["Test on simulated ranks"], re.M)
    assert "16777216.0" in printed["Run the program itself, and look for races"]  # 8192 halves, in 4 x 1024 places


@pytest.mark.long
def test_a_fault_of_the_package_stops_it(checkout: Path) -> None:
    """The layer forgets to reduce: the step of the tests fails with the line, and so would the job."""
    module = checkout / "split_linear.py"
    module.write_text(module.read_text().replace("        dist.all_reduce(result)\n", ""))
    (step,) = (step for step in STEPS if "pytest -q" in step.get("run", ""))
    done = run(step, checkout)
    assert done.returncode == 1
    assert re.search(r"2 failed, 1 passed", done.stdout)
    assert "test_split_linear.py" in done.stdout


def test_other_steps_are_those_that_fetch_the_package_and_python() -> None:
    assert [step["uses"].partition("@")[0] for step in STEPS if "run" not in step] == [
        "actions/checkout", "actions/setup-python",
    ]  # fmt: skip
    assert WORKFLOW[True] == ["push", "pull_request"]  # YAML 1.1 reads `on` so


def test_the_page_shows_it() -> None:
    page = (ROOT / "docs" / "testing.md").read_text()
    assert (PACKAGE / "workflow.yml").read_text().partition("\n\n")[2] in page
