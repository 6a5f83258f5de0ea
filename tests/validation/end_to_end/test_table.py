"""The table of published steps, how its rows are run, and how results are kept and judged."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from kernbench.cli import app
from kernbench.errors import ConfigError
from kernbench.sweep.outcome import FAILED, Outcome
from kernbench.topology import resolve_topology
from kernbench.trace.step_parts import PathPart
from kernbench.validation.end_to_end.jobs import job_of
from kernbench.validation.end_to_end.pairs import speedups
from kernbench.validation.end_to_end.published import GIB, Published, published, selected
from kernbench.validation.end_to_end.report import report
from kernbench.validation.end_to_end.results import StepResult, read_results, result_of, score, write_results
from kernbench.validation.end_to_end.runs import arguments_of


def row(name: str) -> Published:
    return next(each for each in published() if each.id == name)


def done(name: str, factor: float, **more: object) -> StepResult:
    """A row whose step was modelled to take ``factor`` times as long as published, all of it products."""
    found = row(name)
    seconds = found.seconds * factor
    return StepResult(found, seconds, (PathPart("product", seconds, seconds * 0.9, seconds * 1.1),), **more)  # type: ignore[arg-type]


def test_the_table_is_read_whole() -> None:
    rows = published()
    assert len(rows) == 75
    assert len({each.id for each in rows}) == 75
    assert {each.source for each in rows} == {"torchtitan", "llm-foundry", "nanoGPT"}
    assert all(each.reference.startswith("github:") for each in rows)


def test_a_row_says_how_long_its_step_took() -> None:
    eager = row("e001")  # 5762 tokens/s, two sequences of 8192
    assert eager.seconds == pytest.approx(2 * 8192 / 5762)
    assert (eager.memory, eager.compiled) == (round(82.4 * GIB), False)
    assert row("e043").seconds == pytest.approx(0.250)  # "~250" ms
    several = row("e117")
    assert several.global_batch == several.batch * several.gpus * several.accumulate


def test_every_row_has_a_job() -> None:
    for each in published():
        job = job_of(each)
        assert (Path("kernbench/programs") / f"{job.program}.py").name in arguments_of(job)[-len(job.arguments) - 1]
        assert resolve_topology(job.system).topology_obj.sips_per_node == 8
        assert ("--float8" in job.arguments) == ("float8" in each.dtype)


def test_a_job_has_all_gpus_of_its_row() -> None:
    arguments = arguments_of(job_of(row("e004")))
    assert arguments[arguments.index("--nnodes") + 1] == "16"
    assert arguments[arguments.index("--nproc-per-node") + 1] == "8"


def test_rows_are_chosen_by_id_source_and_title() -> None:
    assert [each.id for each in selected(("e001",))] == ["e001"]
    assert len(selected(("nanoGPT",))) == 2
    assert {each.model for each in selected(("mpt-13b",))} == {"MPT-13b"}
    with pytest.raises(ConfigError, match="no such row"):
        selected(("e9999",))


def test_results_survive_their_file(tmp_path: Path) -> None:
    results = [done("e001", 0.9, reserved=int(80 * GIB)), StepResult(row("e003"), None, problem="took too long")]
    write_results(tmp_path / "r.json", results)
    again = read_results(tmp_path / "r.json", published())
    assert [each.row.id for each in again] == ["e001", "e003"]
    assert again[0].error == pytest.approx(-0.1)
    assert again[0].memory_error == pytest.approx(80 / 82.4 - 1)
    assert again[1].problem == "took too long"
    (tmp_path / "r.json").write_text("{}")
    with pytest.raises(ConfigError, match="of another format"):
        read_results(tmp_path / "r.json", published())


def test_scores_count_what_was_run() -> None:
    found = score([done("e001", 0.9), done("e002", 1.2), done("e004", 1.02), StepResult(row("e003"), None)])
    assert found is not None
    assert found.rows == 3
    assert found.median == pytest.approx(0.1)
    assert found.worst == pytest.approx(0.2)
    assert found.signed == pytest.approx(0.02)
    assert score([StepResult(row("e003"), None)]) is None


def test_pairs_differ_in_one_thing() -> None:
    found = speedups([done("e001", 1.0), done("e002", 1.1), done("e004", 1.0), done("e136", 1.0)])
    (compiled,) = found["compile off to on"]
    assert (compiled.first.row.id, compiled.second.row.id) == ("e001", "e002")
    assert compiled.published == pytest.approx(6667 / 5762)
    assert compiled.error == pytest.approx(1 / 1.1 - 1)
    assert compiled.right_sign
    assert set(found) == {"compile off to on"}  # 8 and 128 GPUs are not twice as many


def test_a_failed_run_says_why_in_the_table() -> None:
    failed = result_of(row("e001"), Outcome(0, "", FAILED, {"host_seconds": 3.0}, "rank 0: ValueError: no"))
    text = report([failed, done("e002", 0.9)])
    assert "not run: rank 0: ValueError: no" in text
    assert "-10.0%" in text


def test_only_is_for_steps() -> None:
    found = CliRunner().invoke(app, ["validate", "--only", "e001"])
    assert "--end-to-end" in str(found.exception) + found.output
