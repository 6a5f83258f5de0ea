"""What-if: settings reach the program, every point is what ``kernbench run`` says of it, and a table says which is best."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kernbench.cli import app
from kernbench.errors import ConfigError
from kernbench.html_report import read_page
from kernbench.sweep.outcome import FAILED
from kernbench.trace.run_result import RunResult, read_result
from kernbench.what_if import Answer, Question, ask
from kernbench.what_if.picture import draw
from kernbench.what_if.point import metrics_of, run_task, tasks_of
from kernbench.what_if.run import ranked
from kernbench.what_if.templates import Template

PROGRAM = Path(__file__).with_name("training_program.py")


def question(**changes: Any) -> Question:
    given: dict[str, Any] = {
        "settings": {"width": [32, 64], "batch": [2]}, "gpus": [2], "steps": 2, "tokens_per_step": "{batch * 8 * gpus}",
        "arguments": ["--width", "{width}", "--batch={batch}"],
    }  # fmt: skip
    return Question(str(PROGRAM), **{**given, **changes})


pytestmark = pytest.mark.usefixtures("started_warm")
FRESH = sys.executable
"""One test has a fresh Python."""


@pytest.fixture(scope="module")
def answer(started_warm: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Answer, Path]:
    """Two widths, one of which fails on two systems."""
    output = tmp_path_factory.mktemp("answer")
    asked = question(
        systems=["dgx_h100", "dgx_b200"], arguments=["--width={width}", "--fail-at", "64", "--batch={batch}"]
    )
    return ask(asked, output=output, jobs=2), output


def test_a_row_per_point_best_first(answer: tuple[Answer, Path]) -> None:
    found, output = answer
    assert [(row["width"], row["status"]) for row in found.rows] == [(32, "ok")] * 2 + [(64, "failed")] * 2
    best, second = (row["throughput_per_gpu"] for row in found.rows[:2])
    assert best >= second > 0
    assert (found.measure, found.unit, found.ran) == ("tokens_per_second", "tokens/s", 4)
    assert {row["error"] for row in found.rows[2:]} == {"rank 0: ValueError: width 64 is not for this"}
    for row in found.rows[:2]:
        assert row["throughput_per_gpu"] == pytest.approx(8 * 2 / row["seconds_per_step"])
        assert row["fits"]
        assert 0 < row["device_bytes"] < row["capacity_bytes"]
    with (output / "table.csv").open() as file:
        assert [row["width"] for row in csv.DictReader(file)] == ["32", "32", "64", "64"]
    data = json.loads((output / "answer.json").read_text())
    assert (data["format"], data["version"], data["question"]["systems"]) == (
        "kernbench.what-if", 1, ["dgx_h100", "dgx_b200"],
    )  # fmt: skip
    assert data["rows"] == found.rows
    assert "<svg" in (output / "plot.svg").read_text()


@pytest.mark.long  # runs whole programs
def test_it_resumes(answer: tuple[Answer, Path]) -> None:
    found, output = answer
    asked = question(
        systems=["dgx_h100", "dgx_b200"], arguments=["--width={width}", "--fail-at", "64", "--batch={batch}"]
    )
    picture = (output / "plot.svg").read_bytes()
    again = ask(asked, output=output, jobs=0)
    assert (again.ran, again.rows) == (0, found.rows)
    assert (output / "plot.svg").read_bytes() == picture
    retried = ask(question(systems=["dgx_b200"], arguments=asked.arguments), output=output, jobs=0, retry_failed=True)
    assert retried.ran == 1


def test_a_page_of_it(answer: tuple[Answer, Path], tmp_path: Path) -> None:
    """The same command again runs nothing, and writes the page."""
    found, output = answer
    shown = CliRunner().invoke(
        app,
        ["what-if", "--set", "width=32,64", "--set", "batch=2", "--system", "dgx_h100,dgx_b200", "--gpus", "2", "--steps", "2",
         "--tokens-per-step", "{batch * 8 * gpus}", "-o", str(output), "--report", str(tmp_path / "page.html"), str(PROGRAM),
         "--", "--width={width}", "--fail-at", "64", "--batch={batch}"],
        catch_exceptions=False,
    )  # fmt: skip
    assert "4 points (0 run now)" in shown.output
    assert shown.output.rstrip().endswith("page.html")
    header, _ = read_page(tmp_path / "page.html")
    names = [column["name"] for column in header["heads"]]
    assert [dict(zip(names, row, strict=True)) for row in header["rows"]] == found.rows
    for row in found.rows[:2]:
        assert row["seconds_low"] < row["seconds_per_step"] < row["seconds_high"]


@pytest.mark.long  # runs whole programs
def test_a_point_is_what_kernbench_run_says(answer: tuple[Answer, Path], tmp_path: Path) -> None:
    asked = ("--no-data", "--steps", "2", "--json", tmp_path / "r.json", PROGRAM, "--width", "32", "--batch", "2")
    result = run(*asked, python=FRESH)
    assert result.returncode == 0, result.stderr
    read = read_result(tmp_path / "r.json")
    assert read.throughput is not None
    [row] = [row for row in answer[0].rows if row["system"] == "dgx_h100" and row["width"] == 32]
    assert row["seconds_per_step"] == read.throughput.seconds_per_step
    assert row["mfu"] == read.throughput.mfu
    assert row["device_bytes"] == max(rank.device_bytes for rank in read.ranks)


def run(*args: Any, python: str = "") -> subprocess.CompletedProcess[str]:
    asked = ["run", "--nproc-per-node", "2", "--system", "dgx_h100", *map(str, args)]
    command = [python or sys.executable, "-m", "kernbench", *asked]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.long  # runs whole programs
def test_a_stopped_run_is_torn_down_and_says_so(tmp_path: Path) -> None:
    ran = run(
        "--steps", "2", "--extrapolate", "1000", "--json", tmp_path / "r.json", "--trace", tmp_path / "t.json", PROGRAM
    )
    assert (ran.returncode, ran.stdout.count("torn down")) == (0, 2)
    assert "stopped after 2 steps" in ran.stdout
    assert "1000 steps: " in ran.stdout
    assert "MFU" in ran.stdout
    assert ran.stderr == ""
    result = read_result(tmp_path / "r.json")
    assert (result.status, len(result.steps), result.gpus) == ("stopped", 2, 2)
    assert result.extrapolated.keys() == {1000}
    assert (tmp_path / "t.json").stat().st_size > 0


@pytest.mark.long  # runs whole programs
def test_values_or_not_the_result_is_the_same(tmp_path: Path) -> None:
    results = []
    for name in ("--data", "--no-data"):
        assert run(name, "--steps", "2", "--json", tmp_path / "r.json", PROGRAM).returncode == 0
        results.append(read_result(tmp_path / "r.json"))
    real, hollow = results
    assert hollow.options == {**real.options, "enable_data": False}
    assert real.model_copy(update={"options": {}}) == hollow.model_copy(update={"options": {}})


@pytest.mark.long  # runs whole programs
def test_a_failed_run_has_a_result(tmp_path: Path) -> None:
    assert run("--json", tmp_path / "r.json", PROGRAM, "--fail-at", "32").returncode == 1
    result = read_result(tmp_path / "r.json")
    assert (result.status, result.failures[0].error) == ("failed", "ValueError: width 32 is not for this")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--steps", "0"], "0 is not in the range x>=1"),
        (["--tokens-per-step", "-3"], "-3 is not in the range"),
        (["--json", "/nowhere/r.json"], "there is no folder /nowhere"),
    ],
)
def test_wrong_options_of_run(options: list[str], message: str) -> None:
    ran = run(*options, PROGRAM)
    assert ran.returncode == 2
    assert message in ran.stderr


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"settings": {"width": [32], "batch": [2], "tp": [1]}}, "setting tp reaches nothing: write {tp}"),
        ({"arguments": ["--x={depth}"]}, "there is no setting 'depth'; there are width, batch, system, gpus"),
        ({"tokens_per_step": "{seq}"}, "--tokens-per-step '{seq}': there is no setting 'seq'"),
        ({"environment": {"A": "{b}"}}, "--env A '{b}': there is no setting 'b'"),
        ({"settings": {"width": [], "batch": [2]}}, "setting 'width' has no values"),
        ({"settings": {"gpus": [1]}}, "use --gpus"),
        ({"settings": {"a-b": [1]}}, "expected a name"),
        ({"gpus": [0]}, "0 GPUs"),
        ({"steps": 0}, "expected at least 1"),
        ({"where": ["width > 64"]}, "no combination of settings passes 'width > 64'"),
        ({"where": ["widht > 64"]}, "there is no 'widht'"),
        ({"where": ["().__class__"]}, "Attribute has no place in it"),
        ({"where": ["__import__('os')"]}, "there is no '__import__'"),
        ({"where": ["width >"]}, "is not an expression"),
        ({"systems": ["dgx_h1000"]}, "dgx_h1000"),
    ],
)
def test_wrong_questions(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        tasks_of(question(**changes))
    assert message in str(raised.value)


def test_a_program_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="cannot read nowhere"):
        tasks_of(Question("nowhere.py"))


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("--tp={tp}", "--tp=4"),
        ("{gpus // tp}x{tp}", "2x4"),
        ('{"a": {tp}, "b": {}}', '{"a": 4, "b": {}}'),
        ("{{tp}}", "{tp}"),
        ("{name.upper()}", "ADAM"),
        ("{max(tp, gpus)}", "8"),
        ("{1}", "{1}"),
        ("no braces", "no braces"),
    ],
)
def test_templates(text: str, filled: str) -> None:
    assert Template(text, ["tp", "gpus", "name"], "argument").at({"tp": 4, "gpus": 8, "name": "adam"}) == filled


def test_how_points_are_run() -> None:
    asked = question(
        systems=["dgx_h100"], gpus=[4, 16, 12], environment={"NAME": "w{width}"}, where=["width == 32"], options=["--seed=3"],
        data=True, steps=None,
    )  # fmt: skip
    first, second, third = tasks_of(asked)
    assert first.arguments == (
        "run", "--system", "dgx_h100", "--nproc-per-node", "4", "--memory-limit", "off", "--seed=3", "--tokens-per-step", "64",
        str(PROGRAM), "--width", "32", "--batch=2",
    )  # fmt: skip
    assert first.environment == {"NAME": "w32"}
    assert second.arguments[3:7] == ("--nproc-per-node", "8", "--nnodes", "2")
    assert third.problem == "12 GPUs are no whole nodes of 8"
    assert run_task(third).error == third.problem
    assert len({task.key for task in (first, second, third)}) == 3


@pytest.mark.long  # runs whole programs
def test_variables_reach_the_program_and_runs_are_given_up() -> None:
    [task] = tasks_of(
        question(settings={"n": [1]}, arguments=[], environment={"STEPS": "{n}"}, steps=None, tokens_per_step=None)
    )
    assert run_task(task).metrics["steps_per_second"] > 0
    [task] = tasks_of(question(settings={}, arguments=[], tokens_per_step=None), timeout=0.01)
    outcome = run_task(task)
    assert (outcome.status, outcome.error) == (FAILED, "not done after 0.01 s of real time")


def row(status: str = "ok", fits: bool = True, over: int = 0, **figures: Any) -> dict[str, Any]:
    base = {"gpus": 2, "status": status, "fits": fits, "over_bytes": over, "error": "", "tokens_per_second": None,
            "samples_per_second": None, "flops_per_second": 1.0, "steps_per_second": 1.0}  # fmt: skip
    return {**base, **figures}


def test_what_throughput_is_taken_from() -> None:
    assert ranked([row(tokens_per_second=8.0), row(tokens_per_second=10.0)])[0] == "tokens_per_second"
    assert ranked([row(tokens_per_second=8.0), row()])[0] == "flops_per_second"
    assert ranked([row(samples_per_second=8.0), row(fits=False)])[0] == "samples_per_second"
    assert ranked([row(flops_per_second=0.0)])[0] == "steps_per_second"
    assert ranked([])[2] == []
    rows = [row("failed", fits=False), row(fits=False, over=7), row(fits=False, over=5), row(steps_per_second=3.0),
            row(steps_per_second=4.0, flops_per_second=0.0)]  # fmt: skip
    measure, _, best_first = ranked(rows)
    assert (measure, [rows.index({k: v for k, v in each.items() if k != "throughput_per_gpu"}) for each in best_first]) == (
        "steps_per_second", [4, 3, 2, 1, 0],
    )  # fmt: skip


def made(status: str = "ok", peak: int = 10, short: int | None = None) -> RunResult:
    failures = [] if short is None else [{"rank": 0, "error": "OutOfMemoryError", "short_bytes": short}]
    rank = {"rank": 0, "seconds": 1, "compute": 1, "communication": 0, "host": 0, "idle": 0, "device_bytes": peak,
            "capacity_bytes": 80}  # fmt: skip
    return RunResult.model_validate({
        "kernbench": "0", "program": "p", "arguments": [], "system": "s", "gpus": 1, "status": status, "failures": failures,
        "seconds": 1, "steps": [], "throughput": None, "extrapolated": {}, "ranks": [rank], "collectives": [], "notes": [],
    })  # fmt: skip


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (made(), (True, 0, False)),
        (made(peak=93), (False, 13, False)),
        (made("out_of_memory", peak=70, short=30), (False, 30, True)),
    ],
)
def test_by_how_much_memory_does_not_suffice(result: RunResult, expected: tuple[bool, int, bool]) -> None:
    figures = metrics_of(result)
    assert (figures["fits"], figures["over_bytes"], figures["at_least"]) == expected


@pytest.mark.long
def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    common = ["what-if", str(PROGRAM), "--set", "width=32,64", "--gpus", "2"]
    program = ["--", "--width", "{width}"]
    listed = CliRunner().invoke(app, [*common, "--list", *program])
    assert listed.exit_code == 0
    assert [line.split()[-1] for line in listed.stdout.splitlines()] == ["32", "64"]
    ran = CliRunner().invoke(app, [*common, "--steps", "1", "--override", "--fail-at=64", *program])
    assert ran.exit_code == 0, ran.output
    lines = ran.stdout.splitlines()
    assert lines[0].startswith("2 points (2 run now): 1 fit, 0 out of memory, 1 failed; best first, by FLOP/s per GPU")
    assert lines[1].split()[:4] == ["system", "gpus", "width", "FLOP/s/GPU"]
    assert lines[3].endswith("failed: rank 0: ValueError: width 64 is not for this")
    assert (tmp_path / "what-if-training_program" / "answer.json").is_file()
    assert (
        CliRunner().invoke(app, [*common, "--steps", "1", "--override", "--fail-at={width}", *program]).exit_code == 1
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--set", "width"], "expected NAME=A,B"),
        (["--set", "width="], "a value is empty"),
        (["--set", "width=1,,2"], "a value is empty"),
        (["--set", "width=1,1"], "1 stands there twice"),
        (["--set", "width=1", "--set", "width=2"], "given twice"),
        (["--env", "width"], "expected NAME=TEXT"),
        (["--gpus", "many"], "'many' GPUs"),
    ],
)
def test_wrong_options(options: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["what-if", str(PROGRAM), *options, "--", "{width}"])
    assert result.exit_code != 0
    assert message in str(result.exception) + result.output


def test_the_picture_of_a_serving_engine(tmp_path: Path) -> None:
    """Throughput against TPOT where all have one, a line for each system and number of GPUs; else against memory."""
    pytest.importorskip("matplotlib")
    rows: list[dict[str, Any]] = [
        {
            "system": system, "gpus": gpus, "sequences": n, "throughput_per_gpu": 10.0 * n / gpus, "tpot_p50": 1e-3 * n,
            "device_bytes": 1 << 30, "capacity_bytes": 2 << 30, "fits": True,
        }
        for system in ("one", "other") for gpus in (4, 8) for n in (8, 32)
    ]  # fmt: skip
    pictures = []
    for changed in (rows, [{**row, "tpot_p50": None} for row in rows]):
        assert draw(tmp_path / "plot.svg", changed, ["sequences"], "tokens/s", "serving.py")
        pictures.append((tmp_path / "plot.svg").read_text())
    latency, memory = pictures
    assert "TPOT" in latency
    assert "TPOT" not in memory
    for system in ("one", "other"):
        for gpus in (4, 8):
            assert f"<!-- {system}, {gpus} GPUs -->" in latency
    assert latency.count("<!-- sequences=32 -->") == 4
