"""One rule for how commands end, whichever command it is."""

from __future__ import annotations

import signal
from pathlib import Path

import click
import pytest

from kernbench.benching import invoke
from kernbench.errors import ConfigError, DeadlockError, OutputError
from kernbench.plugins.problems import PluginError
from tests.commands.test_command_line import SMALL
from tests.commands.test_command_line import kernbench as started

SWEEP = "program: point.py:point\naxes: {size: [1]}\n"
POINT = "def point(ctx, size):\n    return {'size': size}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in {"small.py": SMALL, "sweep.yaml": SWEEP, "point.py": POINT}.items():
        Path(name).write_text(text)
    for name in ("full.json", "full.html", "full.svg"):
        Path(name).symlink_to("/dev/full")
    return tmp_path


FULL = (
    "run --nproc-per-node 2 --json full.json small.py", "run --nproc-per-node 2 --report full.html small.py",
    "run --nproc-per-node 2 --trace full.json small.py", "bench ccl_allreduce -e 1K --trace full.svg",
    "bench ccl_allreduce -e 1K -J full.json", "sweep sweep.yaml -j 0 --report full.html", "validate --json full.json",
    "systems show sip8 --svg full.svg",
)  # fmt: skip


@pytest.mark.parametrize("line", FULL)
def test_a_full_disk(folder: Path, line: str) -> None:
    ended = started(*line.split())
    assert ended.returncode == 1
    assert "error: cannot write full." in ended.stderr
    assert "No space left on device" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (OutputError("cannot write it"), 1, "it: error: cannot write it"),
        (DeadlockError("nothing goes on"), 1, "it: error: nothing goes on"),
        (ConfigError("no such thing"), 2, "it: error: no such thing"),
        (PluginError("no such plugin"), 2, "it: error: no such plugin"),
        (click.UsageError("no such option"), 2, "Error: no such option"),
        (KeyboardInterrupt(), 128 + signal.SIGINT, "it: interrupted"),
        (ZeroDivisionError("by zero"), 1, "ZeroDivisionError: by zero"),
        (SystemExit("enough"), 1, "enough"),
        (SystemExit(3), 3, ""),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_of_a_bench(error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    @click.command()
    def command() -> None:
        raise error

    assert invoke(command, [], "it") == code
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("error", ["KeyboardInterrupt()", "OSError(9, 'gone')", "SystemExit(3)", "EOFError()"])
def test_a_bench_ends_as_a_command_does(folder: Path, error: str) -> None:
    """Of what a program raises, click makes nothing of its own."""
    Path("point.py").write_text(f"def run(ctx):\n    raise {error}\n")
    code = (
        "import sys, kernbench.commands.bench as b, kernbench.cli\n"
        "sys.path.insert(0, '.')\n"
        "b.find_benches = lambda: [b.Bench('mine', 'point', 'mine')]\n"
        "sys.argv = ['kernbench', *sys.argv[1:]]\nkernbench.cli.main()\n"
    )
    ended = started("bench", "mine", code=code)
    told = {"KeyboardInterrupt()": "interrupted", "SystemExit(3)": ""}.get(error, f"{error.partition('(')[0]}")
    assert ended.returncode == {"KeyboardInterrupt()": 130, "SystemExit(3)": 3}.get(error, 1)
    assert told in ended.stderr
    assert "Aborted" not in ended.stderr


def test_lost_output_of_a_bench_is_said_once(folder: Path) -> None:
    with Path("/dev/full").open("w") as full:
        ended = started("bench", "ccl_allreduce", "-e", "1K", stdout=full, capture_output=False, stderr=-1)
    assert ended.returncode == 1
    assert ended.stderr.count("cannot write standard output") == 1


@pytest.mark.parametrize("option", ["--progress", "--no-progress", None])
def test_progress_is_also_that_of_scouts(folder: Path, option: str | None) -> None:
    code = (
        "import sys, contextlib, kernbench.cli, kernbench.runtime_api.scouting as s\n"
        "@contextlib.contextmanager\n"
        "def showing(simulation, folding, descriptor):\n"
        "    import os; os.write(descriptor, b'SCOUT')\n"
        "    yield\n"
        "s.showing = showing\n"
        "sys.argv = ['kernbench', *sys.argv[1:]]\nkernbench.cli.main()\n"
    )
    options = ["--no-data", "--ranks", "auto", "--nproc-per-node", "4", *([option] if option else [])]
    ended = started("run", *options, "small.py", code=code)
    assert ended.returncode == 0, ended.stderr
    assert ("SCOUT" in ended.stderr) == (option != "--no-progress")
