"""What a stranger has: the wheel, in an environment where nothing else is, and README."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kernbench.version import __version__
from tests.docs.pages import ROOT, Page

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree, built by pip as an index's would be."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, timeout=300)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def tools(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The commands of an environment into which the wheel was installed, with what it needs: gigabytes, while tests use it."""
    folder = tmp_path_factory.mktemp("stranger") / "venv"
    try:
        venv.create(folder, with_pip=True)
        bin_folder = folder / "bin"
        install = [bin_folder / "python", "-m", "pip", "install", "--quiet", str(wheel)]
        subprocess.run(install, check=True, timeout=600)
        yield bin_folder
    finally:
        shutil.rmtree(folder)


@dataclass
class Followed(Page):
    """A page whose commands are those of another environment, in which the repository is not to be found."""

    tools: Path = Path()

    def _execute(self, command: str) -> tuple[int, str]:
        return ran(command, self.tools, self.folder)


def ran(command: str, tools: Path, folder: Path) -> tuple[int, str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV", "KERNBENCH"))
    }
    environment = {
        **kept, "PATH": f"{tools}{os.pathsep}{kept['PATH']}", "COLUMNS": "120", "KERNBENCH_PROGRESS": "0",
    }  # fmt: skip
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        check=False, timeout=300,
    )  # fmt: skip
    return done.returncode, done.stdout.replace(f"{folder}/", "")


def test_the_wheel_has_one_name_at_the_top_and_what_comes_with_it(wheel: Path) -> None:
    assert wheel.name == f"kernbench-{__version__}-py3-none-any.whl"
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"kernbench", f"kernbench-{__version__}.dist-info"}
    for folder, home in (("examples", ROOT), ("configs", ROOT), ("benches", ROOT / "kernbench")):
        there = {path.relative_to(home).as_posix() for path in (home / folder).rglob("*") if path.is_file()}
        inside = {name.removeprefix("kernbench/") for name in names if name.startswith(f"kernbench/{folder}/")}
        assert inside == {name for name in there if "__pycache__" not in name}


def test_readme_alone_leads_from_the_wheel_to_a_race_explained(tools: Path, tmp_path: Path) -> None:
    page = Followed(Path("README.md"), tmp_path, tools=tools)
    page.run()
    assert page.problems == []
    commands = [line for line in page.lines if line.startswith("$ ")]
    assert "$ pip install kernbench" in commands
    assert any("--races early.py" in line for line in commands)


def test_examples_and_benches_are_those_of_the_wheel(tools: Path, tmp_path: Path) -> None:
    code, printed = ran("kernbench examples copy first", tools, tmp_path)
    assert (code, len(printed.splitlines())) == (0, 3)
    code, printed = ran("kernbench run --nproc-per-node 2 --races examples/first/early.py", tools, tmp_path)
    assert code == 1
    assert "nothing orders the two" in printed
    code, printed = ran("kernbench bench list", tools, tmp_path)
    assert code == 0
    assert "ccl_allreduce" in printed
    assert "no module" not in printed
    for command in ("kernbench bench ccl_allreduce", "python -m kernbench.benches.ccl_allreduce"):
        code, printed = ran(f"{command} -e 4K", tools, tmp_path)
        assert (code, "4" in printed) == (0, True), printed
    assert ran("python -c 'import benches'", tools, tmp_path)[0] == 1
