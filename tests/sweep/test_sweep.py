"""Sweeps: the same table from every runner, and after a crash."""

from __future__ import annotations

import csv
import errno
import json
import os
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import kernbench
from kernbench.cli import app
from kernbench.errors import ConfigError, OutputError
from kernbench.sweep import Outcome, SweepResult, sweep
from kernbench.sweep.journal import Journal, JournalWarning
from kernbench.sweep.runner import StudyRunner
from kernbench.sweep.workers import _why_not_started

PROGRAM = Path(__file__).with_name("program.py")
AXES: dict[str, list[Any]] = {"system": ["sip8", "dgx_h100"], "world_size": [2, 4], "n": [8, 13, 64]}


def spec(**changes: Any) -> dict[str, Any]:
    return {"program": f"{PROGRAM}:run", "axes": AXES, **changes}


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory) -> tuple[SweepResult, bytes]:
    """The sweep one point after the other, and its table."""
    output = tmp_path_factory.mktemp("serial")
    result = sweep(spec(), output=output, jobs=0)
    return result, (output / "table.csv").read_bytes()


def test_a_row_per_point_in_the_order_of_the_grid(serial: tuple[SweepResult, bytes]) -> None:
    result, text = serial
    rows = list(csv.DictReader(text.decode().splitlines()))
    assert [(row["system"], int(row["world_size"]), int(row["n"])) for row in rows] == [
        (system, world, n) for system in AXES["system"] for world in AXES["world_size"] for n in AXES["n"]
    ]
    for row in rows:
        if row["n"] == "13":
            assert (row["status"], row["error"], row["sum"]) == (
                "failed", "ValueError: is not a size (program.py:13 in run)", "",
            )  # fmt: skip
        else:
            world = int(row["world_size"])
            assert float(row["sum"]) == int(row["n"]) * world * (world + 1) / 2
            assert (row["result_n"], row["name"], row["status"]) == (row["n"], row["system"], "ok")
            assert float(row["virtual_seconds"]) > 0
    assert (result.ran, len(result.failed)) == (12, 4)
    assert "program.py" in result.failed[0].detail


def test_parquet_holds_the_same(serial: tuple[SweepResult, bytes]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    result, _ = serial
    table = parquet.read_table(result.files[1])
    assert table.to_pylist() == result.rows


def test_it_resumes_after_a_crash(serial: tuple[SweepResult, bytes], tmp_path: Path) -> None:
    log, output = tmp_path / "log", tmp_path / "out"
    described = spec(fixed={"log": str(log)})
    sweep(described, output=output, jobs=0)
    journal = output / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:7]) + lines[7][:40])  # five are missing, one of them cut off
    (output / "table.csv").unlink()
    log.unlink()
    result = sweep(described, output=output, jobs=0)
    assert result.ran == len(log.read_text().splitlines()) == 5
    assert (output / "table.csv").read_bytes() == serial[1]
    assert sweep(described, output=output, jobs=0).ran == 0
    assert sweep(described, output=output, jobs=0, retry_failed=True).ran == 4
    assert sweep(described, output=output, jobs=0, resume=False).ran == 12


@dataclass(frozen=True)
class Numbered:
    """A point for which nothing has to be simulated."""

    index: int
    key: str
    point: dict[str, Any]


def outcome_of(key: str) -> Outcome:
    return Outcome(0, key, "ok", {"n": 1})


def write_journal(path: Path, *keys: str) -> list[str]:
    journal = Journal(path)
    with journal.opened(fresh=True):
        for key in keys:
            journal.add(outcome_of(key))
    return path.read_text().splitlines(keepends=True)


@pytest.mark.parametrize("damage", ["\0" * 40 + "\n", '{"index": 0, "key"\n', "{}\n", "[1]\n", '"text"\n'])
def test_a_damaged_line_is_said_and_its_point_runs_again(tmp_path: Path, damage: str) -> None:
    """Each point is known, or its line is said to be damaged, and it runs again: none is lost silently."""
    path = tmp_path / "journal.jsonl"
    lines = write_journal(path, "a", "b", "c")
    path.write_text(lines[0] + damage + lines[2])
    tasks = [Numbered(index, key, {"n": index}) for index, key in enumerate("abc")]
    ran: list[str] = []

    def run(task: Numbered) -> Outcome:
        ran.append(task.key)
        return outcome_of(task.key)

    with pytest.warns(
        JournalWarning, match=re.escape(f"{path}: line 2 is damaged: what it told of is run again")
    ) as said:
        points = StudyRunner(tmp_path, jobs=0).run(tasks, run, own_processes=False)
    assert (ran, points.ran, len(said)) == (["b"], 1, 1)
    assert [outcome.key for outcome in points.outcomes] == ["a", "b", "c"]
    with warnings.catch_warnings():  # nothing is missing now
        warnings.simplefilter("error")
        assert StudyRunner(tmp_path, jobs=0).run(tasks, run, own_processes=False).ran == 0


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_last_line_that_a_crash_cut_off_is_no_damage(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "journal.jsonl"
    lines = write_journal(path, "a", "b")
    path.write_text(lines[0] + lines[1][:cut])
    journal = Journal(path)
    assert ([*journal.read()], journal.damaged) == (["a"], [])
    with journal.opened(fresh=False):
        journal.add(outcome_of("b"))
    assert path.read_text().splitlines(keepends=True) == lines


def test_a_last_line_that_lacks_its_end_alone_counts(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    lines = write_journal(path, "a", "b")
    path.write_text("".join(lines).rstrip())
    journal = Journal(path)
    assert [*journal.read()] == ["a", "b"]
    with journal.opened(fresh=False):
        journal.add(outcome_of("c"))
    assert [*Journal(path).read()] == ["a", "b", "c"]


def test_a_journal_that_cannot_be_written_is_an_error_in_a_line(tmp_path: Path) -> None:
    full, locked = tmp_path / "journal.jsonl", tmp_path / "file" / "journal.jsonl"
    full.symlink_to("/dev/full")
    locked.parent.touch()
    journal = Journal(full)
    with journal.opened(fresh=True), pytest.raises(OutputError, match=r"cannot write .*journal.jsonl: No space left"):
        journal.add(outcome_of("a"))
    with pytest.raises(OutputError, match=r"cannot write .*file: File exists"), Journal(locked).opened(fresh=True):
        pass


def test_a_cluster_that_cannot_be_started_says_why() -> None:
    error = RuntimeError("Nanny failed to start.")
    error.__cause__ = OSError(errno.EMFILE, "Too many open files")
    assert _why_not_started(error) == (
        "Dask could not start its processes: OSError: [Errno 24] Too many open files. Allow more files (ulimit -n), or run "
        "one point after the other, with jobs=0"
    )


def test_another_text_of_the_program_is_another_sweep(tmp_path: Path) -> None:
    program = tmp_path / "p.py"
    for text in ("1", "2"):
        program.write_text(f"def run(ctx, n):\n    return {{'x': {text}}}\n")
        sys.modules.pop(next((name for name in sys.modules if name.startswith("_kernbench_file_p_")), ""), None)
        result = sweep({"program": f"{program}:run", "axes": {"n": [1]}}, output=tmp_path / "out", jobs=0)
        assert (result.ran, result.rows[0]["x"]) == (1, int(text))


def _start(*args: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(kernbench.__file__).parents[1])}
    return subprocess.Popen(
        [sys.executable, "-m", *args], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment, text=True
    )


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, list[subprocess.Popen[str]]]]:
    """A scheduler and two workers as processes of their own, on loopback."""
    pytest.importorskip("distributed")
    file = tmp_path / "scheduler.json"
    processes = [
        _start("distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard",
               "--scheduler-file", str(file))
    ]  # fmt: skip
    try:
        while not file.exists() or not file.read_text().endswith("}"):
            assert processes[0].poll() is None
            time.sleep(0.05)
        address = json.loads(file.read_text())["address"]
        processes += [
            _start("distributed.cli.dask_worker", address, "--nthreads", "1", "--no-nanny", "--no-dashboard",
                   "--host", "127.0.0.1", "--local-directory", str(tmp_path / f"worker-{at}"))
            for at in range(2)
        ]  # fmt: skip
        yield address, processes[1:]
    finally:
        for process in reversed(processes):
            process.kill()
            process.wait()


@pytest.mark.long  # two sweeps
def test_a_worker_killed_in_the_middle_changes_nothing(
    serial: tuple[SweepResult, bytes], cluster: tuple[str, list[subprocess.Popen[str]]], tmp_path: Path
) -> None:
    address, workers = cluster
    log = tmp_path / "log"
    order: list[int] = []

    def kill_one(outcome: Outcome, done: int, total: int) -> None:
        order.append(outcome.index)
        pids = {int(line.split()[0]) for line in log.read_text().splitlines()}
        if len(pids) == 2:  # both are at work
            workers[0].kill()

    described = spec(fixed={"log": str(log), "slow": 0.2})
    result = sweep(described, output=tmp_path / "out", scheduler=address, progress=kill_one)
    assert sorted(order) == list(range(12))
    assert result.ran == 12
    assert workers[0].poll() is not None
    assert (tmp_path / "out" / "table.csv").read_bytes() == serial[1]


@pytest.mark.long  # seconds
def test_a_local_cluster_and_the_plot(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    pytest.importorskip("matplotlib")
    path = tmp_path / "mine.yaml"
    path.write_text(
        f"program: {PROGRAM}:run\naxes: {{n: [8, 64], algorithm: [ring_allreduce]}}\nfixed: {{world_size: 2}}\n"
        "plot: {x: n, by: [algorithm], log: true}\n"
    )
    outputs = {}
    for jobs in ("0", "2"):
        output = tmp_path / jobs
        result = CliRunner().invoke(app, ["sweep", str(path), "-j", jobs, "-o", str(output)], catch_exceptions=False)
        assert "2 points: 2 run now, 0 failed" in result.output
        outputs[jobs] = {file.name: file.read_bytes() for file in output.iterdir() if file.suffix != ".jsonl"}
    assert outputs["0"] == outputs["2"]
    assert b"algorithm=ring_allreduce" in outputs["0"]["plot.svg"]
    assert CliRunner().invoke(app, ["sweep", str(path), "--list"]).output.splitlines() == [
        "n=8,algorithm=ring_allreduce",
        "n=64,algorithm=ring_allreduce",
    ]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"program": "kernbench.nowhere:run"}, "no module named kernbench.nowhere"),
        ({"program": f"{PROGRAM}:walk"}, "there is no function 'walk'"),
        ({"axes": {"m": [1], "n": [1]}}, "has no parameter m; it has n, dtype"),
        ({"fixed": {"n": 1}}, "n: both an axis and fixed"),
        ({"where": ["n > 100"]}, "no point of the grid passes n > 100"),
        ({"axes": {"n": [1, 1]}}, "the grid has a point twice: n=1"),
    ],
)
def test_wrong_sweeps_are_explained(changes: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=complaint):
        sweep(spec(**changes), output=tmp_path, jobs=0)


def test_the_room_can_be_called(tmp_path: Path) -> None:
    from tests.sweep import program

    result = kernbench.sweep({"program": program.run, "axes": {"n": [4]}}, output=tmp_path, jobs=0)
    assert result.rows[0]["sum"] == 4 * 10
