"""A third party's distribution, installed by pip into a fresh environment: everything that it brings is found."""

from __future__ import annotations

import os
import pkgutil
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import kernbench.plugins
from kernbench.ccl.config import load_ccl_config
from kernbench.plugins.discovery import OWN_MODULES
from tests.plugins.third_party import write

ROOT = Path(__file__).parents[2]


def test_the_list_of_own_modules_is_right() -> None:
    own = os.path.dirname(kernbench.plugins.__file__)
    assert {info.name for info in pkgutil.iter_modules([own])} == OWN_MODULES


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment: kernbench from this tree, its dependencies from here, and the distribution."""
    folder = tmp_path_factory.mktemp("third-party")
    venv.create(folder / "env", with_pip=False)
    interpreter = folder / "env" / "bin" / "python"
    (site_packages,) = (folder / "env").glob("lib/python*/site-packages")
    dependencies = [path for path in (*site.getsitepackages(), *sys.path) if path.endswith("site-packages")]
    (site_packages / "here.pth").write_text("\n".join([str(ROOT), *dict.fromkeys(dependencies)]) + "\n")
    source = write(folder / "source")
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", interpreter, "install", "--quiet", "--disable-pip-version-check",
         "--no-index", "--no-deps", "--no-build-isolation", "--no-compile", source],
        check=True, timeout=250, env={**os.environ, "PIP_CONFIG_FILE": os.devnull},
    )  # fmt: skip
    return interpreter


def run(python: Path, *arguments: str, cwd: Path) -> str:
    """The output of a command in that environment, outside the source tree."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "KERNBENCH_PLUGINS")}
    done = subprocess.run([python, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    return done.stdout


def test_its_plugins_system_algorithm_and_bench_are_found_and_used(python: Path, tmp_path: Path) -> None:
    bench = [
        "-m",
        "kernbench.cli",
        "bench",
        "run",
        "acme_bench",
        "--system",
        "acme_pair",
        "--algorithm",
        "acme_exchange",
    ]
    saw, part, result = run(python, *bench, cwd=tmp_path).splitlines()
    assert saw == "acme saw all_reduce by acme_exchange"
    assert part == "acme's part of kernbench.plugins saw 1 collective"
    assert result.startswith("acme_pair: ")


def test_the_doctor_names_what_it_brings(python: Path, tmp_path: Path) -> None:
    code = "from kernbench.commands import doctor as d; print(*d._plugins(), *d._configuration(), sep='\\n')"
    plugin, part, systems, algorithms = run(python, "-c", code, cwd=tmp_path).splitlines()
    assert "found='entry point of acme-kernbench 1.2; collective_completed'" in plugin
    assert "subject='plugin kernbench.plugins.acme_part'" in part
    assert "shipped, and acme_pair of others" in systems
    assert f"{len(load_ccl_config().algorithms) + 1} in ccl.yaml" in algorithms
