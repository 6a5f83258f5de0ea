"""Plugins on the command line: ``--plugin``, their options, the environment, sweeps; and the doctor."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kernbench.cli import app
from kernbench.commands import doctor
from kernbench.plugins.manager import default_manager

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"

PROGRAM = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
x = torch.full((256,), float(dist.get_rank()))
dist.all_reduce(x)
print(x[0].item())
"""

PLUGIN = """
import click

def kernbench_options():
    return [click.Option(["--greeting"], default="hello")]

def kernbench_rank_started(ctx, event):
    print(ctx.options["greeting"], event.rank)

def kernbench_systems():
    from pathlib import Path
    return {"acme_pair": Path(__file__).parent / "pair.yaml"}
"""

PAIR = """
system:
  name: acme_pair
  sips: {count: 2, device: sip, topology: ring_1d, link: {bandwidth: 1 GB/s, latency: 1 us}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "greets.py").write_text(PLUGIN)
    (tmp_path / "pair.yaml").write_text(PAIR)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def kernbench(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def run(*arguments: str) -> Result:
    return kernbench("run", *arguments, "--no-summary", "--nproc-per-node", "2", "program.py")


def test_a_file_is_what_it_is_where_and_when_it_is_given(folder: Path) -> None:
    """Also in a process that has loaded one by the same words."""
    assert run("--plugin", "greets.py").stdout.count("hello") == 2
    (folder / "greets.py").write_text(PLUGIN.replace("hello", "good evening"))
    assert run("--plugin", "greets.py").stdout.count("good evening") == 2


def test_a_plugin_and_its_option(folder: Path) -> None:
    result = run("--plugin", "greets.py", "--greeting", "good morning")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert [line for line in lines if "morning" in line] == ["[rank0] good morning 0", "[rank1] good morning 1"]
    assert default_manager().names == []  # it was the command's


def test_the_options_of_plugins_are_in_the_help(folder: Path) -> None:
    shown = kernbench("run", "--plugin", "greets.py", "--help").output
    assert "--greeting" in shown
    assert "--greeting" not in kernbench("run", "--help").output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--greeting", "x"], "No such option '--greeting'"),
        (["--plugin", "nothing.py"], "plugin 'nothing.py' cannot be imported: FileNotFoundError"),
        (["--plugin"], "there is no file|cannot be imported|requires an argument"),
        (["--plugin", "greets.py", "--plugin", "greets2.py"], "both have an option 'greeting'"),
        (["--plugin", "clash.py"], "plugin clash has an option --seed, which run has itself"),
    ],
)
def test_what_is_wrong_is_said(folder: Path, arguments: list[str], message: str) -> None:
    (folder / "greets2.py").write_text(PLUGIN)
    (folder / "clash.py").write_text("import click\ndef kernbench_options():\n    return [click.Option(['--seed'])]\n")
    result = run(*arguments)
    assert result.exit_code != 0
    assert re.search(message, result.output + str(result.exception)), (result.output, result.exception)


def test_a_second_plugin_behind_the_option_of_the_first(folder: Path) -> None:
    result = run("--plugin", "greets.py", "--greeting", "hi", "--plugin", str(EXAMPLES / "live_ranks.py"))
    assert result.exit_code == 0, result.output
    assert "[rank1] hi 1" in result.stdout
    assert "returned" in result.stderr


def test_systems_of_a_plugin_are_listed_and_run_on(folder: Path) -> None:
    assert "acme_pair" in kernbench("systems", "--plugin", "greets.py").output
    assert "acme_pair" in kernbench("systems", "show", "--plugin", "greets.py", "acme_pair").output
    assert kernbench("systems", "show", "acme_pair").exit_code != 0
    result = run("--plugin", "greets.py", "--system", "acme_pair")
    assert result.exit_code == 0, result.output


def test_a_bench_takes_plugins(folder: Path) -> None:
    bench = ["bench", "run", "ccl_allreduce", "--plugin", "greets.py", "--system", "acme_pair", "--greeting", "hi"]
    result = kernbench(*bench, "-b", "1K", "-e", "1K")
    assert result.exit_code == 0, result.output
    assert "hi 1" in result.output


def test_a_sweep_takes_plugins(folder: Path) -> None:
    (folder / "program.py").write_text(
        "def program(ctx, n):\n"
        "    ctx.multiprocessing.spawn(lambda rank: ctx.distributed.all_reduce(ctx.ones(n)), nprocs=2)\n"
    )
    (folder / "sweep.yaml").write_text(
        "program: program.py:program\naxes: {system: [acme_pair], n: [16, 64]}\nplugins: [greets.py]\n"
    )
    result = kernbench("sweep", "sweep.yaml", "--jobs", "0", "--plugin", str(EXAMPLES / "csv_recorder.py"))
    assert result.exit_code == 0, result.output
    assert "2 points: 2 run now, 0 failed" in result.output
    table = (folder / "sweep" / "table.csv").read_text().splitlines()
    assert [line.split(",")[:2] for line in table[1:]] == [["acme_pair", "16"], ["acme_pair", "64"]]


@pytest.mark.parametrize(("value", "loaded"), [("greets", ["greets"]), ("greets,no:gre*", []), ("", [])])
def test_the_environment_names_plugins(folder: Path, value: str, loaded: list[str]) -> None:
    code = "from kernbench.plugins import default_manager; print(default_manager().names)"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": f"{ROOT}:{folder}", "KERNBENCH_PLUGINS": value},
        capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    assert done.stdout.strip() == str(loaded), done.stderr


@pytest.mark.parametrize(
    ("own", "found"),
    [
        ('OWN_MODULES = frozenset({"discovery", "newer"})\n', ["kernbench.plugins.acme_part"]),  # another checkout
        ("", []),  # a copy that does not say which modules are its own
        (None, ["kernbench.plugins.acme_part", "kernbench.plugins.newer"]),  # a part of the package, no kernbench
    ],
)
def test_modules_of_another_kernbench_on_the_path_are_no_plugins(
    tmp_path: Path, own: str | None, found: list[str]
) -> None:
    other = tmp_path / "kernbench" / "plugins"
    other.mkdir(parents=True)
    for name in ("newer", "acme_part"):
        (other / f"{name}.py").write_text("def kernbench_run_started(event):\n    pass\n")
    if own is not None:
        (other.parent / "cli.py").touch()
        (other / "manager.py").touch()
        (other / "discovery.py").write_text(own)
    code = "from kernbench.plugins.discovery import find_plugins; print([found.name for found in find_plugins()])"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], env={"PYTHONPATH": f"{ROOT}:{tmp_path}"},
        capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    assert (done.stdout.strip(), done.stderr) == (str(found), "")


# -- the examples --------------------------------------------------------------------------------------------------------


def test_the_csv_recorder_writes_the_same_file_every_time(folder: Path) -> None:
    for name in ("a.csv", "b.csv"):
        result = run("--plugin", str(EXAMPLES / "csv_recorder.py"), "--csv", name)
        assert result.exit_code == 0, result.output
    lines = (folder / "a.csv").read_text().splitlines()
    assert lines == (folder / "b.csv").read_text().splitlines()
    assert lines[0] == "what,name,ranks,start_us,end_us,nbytes,detail"
    (collective,) = (line.split(",") for line in lines if line.startswith("collective"))
    assert collective[1:3] + collective[5:] == ["all_reduce", "0 1", "1024", "the default group"]
    assert sum(line.startswith("rank,returned") for line in lines) == 2


def test_the_live_view_ends_with_what_each_rank_came_to(folder: Path) -> None:
    (folder / "program.py").write_text(
        PROGRAM + "if dist.get_rank() == 1:\n    raise ValueError('mine')\ndist.barrier()\n"
    )
    result = run("--plugin", str(EXAMPLES / "live_ranks.py"))
    assert result.exit_code == 1
    table = [line.split() for line in result.stderr.splitlines() if line[:1].isdigit()]
    assert [(line[0], line[1]) for line in table] == [("0", "unwound"), ("1", "raised")]
    assert table[1][-2:] == ["ValueError:", "mine"]


# -- the autotune report ---------------------------------------------------------------------------------------------------


TUNED = """
import torch, triton, triton.language as tl

@triton.autotune(configs=[triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})], key=["n"])
@triton.jit
def scale(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, at < n) * 2, at < n)

x = torch.ones(64)
scale[lambda meta: (triton.cdiv(64, meta["BLOCK"]),)](x, 64)
"""


@pytest.mark.parametrize("ranks", [["--nproc-per-node", "2"], []])
def test_run_reports_what_the_autotuners_chose(folder: Path, ranks: list[str]) -> None:
    pytest.importorskip("triton")
    (folder / "program.py").write_text(TUNED)
    result = kernbench("run", "--autotune-report", "tuned.json", *ranks, "program.py")
    assert result.exit_code == 0, result.output
    rows = json.loads((folder / "tuned.json").read_text())
    (row,) = (row for row in rows if row["kernel"] == "scale")  # both ranks chose the same
    assert row["key"]["n"] == 64
    assert row["config"]["BLOCK"] in (16, 32)
    assert row["config"]["num_warps"] == 4


def test_a_report_that_has_no_place_is_an_error_before_the_run(folder: Path) -> None:
    result = run("--autotune-report", "nowhere/tuned.json")
    assert "there is no folder" in str(result.exception)


def test_a_report_that_cannot_be_written_fails_no_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(path: Path, rows: list[Any]) -> int:
        raise OSError("disk full")

    monkeypatch.setattr("kernbench.autotune.collect.write_report", fails)
    result = run("--autotune-report", "tuned.json")
    assert result.exit_code == 0
    assert "no autotune report: OSError: disk full" in result.stderr


# -- the doctor ------------------------------------------------------------------------------------------------------------


def test_the_doctor_finds_this_installation_well() -> None:
    result = kernbench("doctor", "--json")
    findings = {each["subject"]: each for each in json.loads(result.stdout)}
    assert [each for each in findings.values() if each["status"] == "FAIL"] == []
    assert result.exit_code == 0
    assert findings["Python"]["found"].startswith(".".join(map(str, sys.version_info[:3])))
    assert "an all-reduce of 8 ranks" in findings["a program"]["found"]


def test_the_doctor_names_plugins_and_what_is_wrong(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder / "program.py" / "cache"))
    monkeypatch.setenv("KERNBENCH_PLUGIN", "x")
    monkeypatch.setattr(doctor, "_program", lambda: iter(()))
    monkeypatch.setattr(doctor, "_kernel", lambda: iter(()))
    result = kernbench("doctor", "--plugin", "greets.py")
    assert result.exit_code == 1
    assert "ok    plugin greets" in result.stdout
    assert "FAIL  Triton cache" in result.stdout
    assert "-> set TRITON_CACHE_DIR to a folder that you may write to" in result.stdout
    assert "-> did you mean KERNBENCH_PLUGINS?" in result.stdout


def test_the_doctor_says_what_to_do_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel() -> None:
        subprocess.run(["/nowhere/cc"])

    for name in ("_program", "_imports", "_requirements", "_driver"):
        monkeypatch.setattr(doctor, name, lambda: iter(()))
    monkeypatch.setattr(doctor, "_kernel", kernel)
    finding = list(doctor.examine())[-1]
    assert (finding.status, finding.subject) == (doctor.FAIL, "kernel")
    assert (
        finding.advice
        == "there is no C compiler: install one (apt-get install gcc, or dnf install gcc), or set CC to one"
    )


@pytest.mark.parametrize(
    ("version", "wanted", "good"),
    [
        ("2.13.0+cpu", ">=2.13,<2.14", True), ("2.14.0", ">=2.13,<2.14", False), ("2.9.1", ">=2.13", False),
        ("3.10", "<3.10,>=3.6", False), ("3.7.1", "<3.10,>=3.6", True), ("1.0", "", True), ("8", "==8.0", True),
        ("1.4.9", "~=1.4.2", True), ("1.5", "~=1.4.2", False), ("2.0", "!=2", False),
    ],
)  # fmt: skip
def test_versions(version: str, wanted: str, good: bool) -> None:
    assert doctor.satisfies(version, wanted) is good


def test_requirements_are_read_as_pip_writes_them() -> None:
    assert doctor.parse_requirement("triton<3.10,>=3.6; platform_system == 'Linux'") == (
        "triton", "<3.10,>=3.6", " platform_system == 'Linux'",
    )  # fmt: skip
    assert doctor.parse_requirement("kernbench[plot,sweep]; extra == 'dev'")[::2] == ("kernbench", " extra == 'dev'")
