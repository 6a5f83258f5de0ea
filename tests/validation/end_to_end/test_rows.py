"""Rows that are quick to run come to what the file says that ``docs/accuracy.md`` is made of."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernbench.benches.accuracy_page import replaced
from kernbench.validation.end_to_end.left_out import left_out
from kernbench.validation.end_to_end.published import published, selected
from kernbench.validation.end_to_end.report import report
from kernbench.validation.end_to_end.results import StepResult, read_results, result_of, score
from kernbench.validation.end_to_end.runs import run_rows

RESULTS = Path("docs/end_to_end.json")
QUICK = ("e043", "e292")
MORE = ("e001", "e121", "e141", "e171", "e218", "e259")


@pytest.fixture(scope="module")
def kept() -> dict[str, StepResult]:
    return {result.row.id: result for result in read_results(RESULTS, published())}


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("started_warm")
@pytest.mark.parametrize("names", [QUICK, pytest.param(MORE, marks=pytest.mark.long)], ids=["quick", "more"])
def test_a_row_comes_to_what_the_file_says(names: tuple[str, ...], kept: dict[str, StepResult], tmp_path: Path) -> None:
    rows = [row for row in selected(()) if row.id in names]
    found = run_rows(rows, output=tmp_path)
    for row in rows:
        result = result_of(row, found[row.id])
        assert result.seconds is not None, result.problem
        assert result.seconds == pytest.approx(kept[row.id].seconds, rel=0.005), "write docs/end_to_end.json again"
        assert sum(part.seconds for part in result.parts) == pytest.approx(result.seconds, rel=1e-3)
        assert result.reserved == pytest.approx(kept[row.id].reserved, rel=0.01)


def test_the_page_is_what_the_file_says(kept: dict[str, StepResult]) -> None:
    page = Path("docs/accuracy.md").read_text(encoding="utf-8")
    assert replaced(page, "steps", report(list(kept.values()))) == page, "run python -m benches.accuracy_page"


def test_steps_are_as_good_as_the_page_says(kept: dict[str, StepResult]) -> None:
    results = list(kept.values())
    seen = score(results)
    unseen = score([each for fold in left_out(results).values() for each in fold])
    assert seen is not None
    assert unseen is not None
    assert seen.median <= 0.10
    assert seen.worst <= 0.25
    assert seen.covered >= 0.70  # of those on H100 fewer: they are 8 to 15 % too quick
    assert unseen.median <= 0.15
