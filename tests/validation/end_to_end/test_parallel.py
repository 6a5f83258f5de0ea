"""Steps with tensor, pipeline and context parallelism: the table, how rows are run, what they come to, and the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernbench.benches.accuracy_page import replaced
from kernbench.trace.step_parts import PathPart
from kernbench.validation.end_to_end.jobs import job_of
from kernbench.validation.end_to_end.parallel_report import parallel_report
from kernbench.validation.end_to_end.published import GIB, Published, published_parallel, selected
from kernbench.validation.end_to_end.results import StepResult, read_results, result_of, write_results
from kernbench.validation.end_to_end.runs import arguments_of, run_rows

RESULTS = Path("docs/end_to_end_parallel.json")


@pytest.fixture(scope="module")
def kept() -> dict[str, StepResult]:
    return {result.row.id: result for result in read_results(RESULTS, published_parallel())}


def row(name: str) -> Published:
    return next(each for each in published_parallel() if each.id == name)


def done(name: str, factor: float) -> StepResult:
    """A row whose step was modelled to take ``factor`` times as long as published, with a tenth more memory."""
    found = row(name)
    seconds = found.seconds * factor
    parts = (PathPart("product", seconds, seconds * 0.9, seconds * 1.1),)
    return StepResult(found, seconds, parts, allocated=round((found.allocated or 0) * 1.1))


def test_the_table_is_read_whole() -> None:
    rows = published_parallel()
    assert len({each.id for each in rows}) == len(rows) == 27
    assert {each.source for each in rows} == {"Megatron-Core", "NeMo"}
    for each in rows:
        degrees = each.layout
        assert each.reference.startswith("github:")
        assert degrees["TP"] * degrees["PP"] * degrees["CP"] * degrees["DP"] == each.gpus
        assert each.global_batch == each.batch * each.accumulate * degrees["DP"]


def test_a_row_says_how_long_its_step_took_and_what_it_held() -> None:
    first = row("s001")
    assert first.seconds == pytest.approx(0.843)
    assert first.allocated == round(66.55 * GIB)
    assert dict(first.layout) == {"TP": 1, "PP": 2, "CP": 1, "EP": 1, "DP": 4}


def test_a_row_is_run_as_its_launcher_runs_it() -> None:
    job = job_of(row("s004"))
    assert (job.program, job.system, job.gpus) == ("megatron", "dgx_b200", 8)
    line = " ".join(arguments_of(job))
    assert "--model llama3-70b --layers 12 --seq 4096 --micro-batch 1 --global-batch 4 --tp 8 --pp 1" in line
    nemo = job_of(row("f397"))
    assert "--nnodes 16" in " ".join(arguments_of(nemo))
    assert {"--overlap-grad-reduce", "bfloat16"} <= set(nemo.arguments)


def test_selecting_rows() -> None:
    assert [each.id for each in selected(("f394",), parallel=True)] == ["f394"]
    assert len(selected(("NeMo",), parallel=True)) == 4


def test_the_report_says_how_wrong_ratios_are(tmp_path: Path) -> None:
    """TP 4 instead of TP 2 is published to be 725.5 * 2 / (409.8 * 4) as quick on as many GPUs; one of both is 10 % off."""
    results = [done("s002", 1.0), done("s003", 1.1)]
    text = parallel_report(results)
    assert "TP twice as much instead of DP" in text
    line = next(line for line in text.splitlines() if line.startswith("TP twice as much"))
    assert line.split()[-2:] == ["9.1%", "9.1%"]
    assert "peak memory allocated, 2 rows: median 10.0%, worst 10.0%" in text
    write_results(tmp_path / "found.json", results)
    assert read_results(tmp_path / "found.json", published_parallel())[0].allocated == results[0].allocated


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("started_warm")
@pytest.mark.parametrize("names", [("s004",), pytest.param(("s001", "s028", "f394"), marks=pytest.mark.long)])
def test_a_row_comes_to_what_the_file_says(names: tuple[str, ...], kept: dict[str, StepResult], tmp_path: Path) -> None:
    rows = [each for each in published_parallel() if each.id in names]
    found = run_rows(rows, output=tmp_path)
    for each in rows:
        result = result_of(each, found[each.id])
        assert result.seconds is not None, result.problem
        assert result.seconds == pytest.approx(kept[each.id].seconds, rel=0.005), (
            "write the file again: docs/accuracy.md"
        )
        assert result.allocated == pytest.approx(kept[each.id].allocated, rel=0.01)


def test_the_page_is_what_the_file_says(kept: dict[str, StepResult]) -> None:
    page = Path("docs/accuracy.md").read_text(encoding="utf-8")
    assert replaced(page, "parallel", parallel_report(list(kept.values()))) == page, (
        "run python -m kernbench.benches.accuracy_page"
    )
