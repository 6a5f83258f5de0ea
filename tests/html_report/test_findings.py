"""Pictures of what went wrong: their data are what the run and its errors say, and a browser shows them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kernbench
from kernbench.html_report import write_report
from kernbench.html_report.source import ReportSource
from tests.html_report.conftest import Opened, source_of
from tests.html_report.failing_programs import (
    needs_too_much,
    reads_what_nobody_wrote,
    shapes_differ,
    sizes_of_messages_differ,
    streams_race,
)

HERE = "failing_programs.py"


def _ran(program: Callable[[int], None], ranks: int, **options: Any) -> ReportSource:
    with kernbench.simulate("dgx_h100", **options) as ctx:
        errors: dict[int, BaseException] = {}
        try:
            ctx.multiprocessing.spawn(program, nprocs=ranks)
        except kernbench.SpawnException as error:
            errors = error.errors
        return source_of(ctx, **{f"rank{rank}": each for rank, each in errors.items()})


@pytest.fixture(scope="module")
def mismatched() -> ReportSource:
    return _ran(shapes_differ, 2)


@pytest.fixture(scope="module")
def raced() -> ReportSource:
    return _ran(streams_race, 1, races="warn")


@pytest.fixture(scope="module")
def out_of_memory() -> ReportSource:
    return _ran(needs_too_much, 1, memory_limit=30 << 20)


def test_a_mismatch_says_who_called_what_and_what_came_before(mismatched: ReportSource) -> None:
    (found,) = mismatched.findings
    assert (found["kind"], found["sequence"], found["differs"]) == ("mismatch", 1, ["shape"])
    assert [column["ranks"] for column in found["columns"]] == [[0], [1]]
    calls = [dict(column["calls"]) for column in found["columns"]]
    assert [[each["operation"] for each in column.values()] for column in calls] == [["broadcast", "all_reduce"]] * 2
    assert [column[1]["shape"] for column in calls] == ["(1,)", "(1024,)"]
    assert all(HERE in column[1]["at"] for column in calls)
    assert calls[0][0] == calls[1][0]


def test_the_two_sides_of_a_message_are_a_mismatch_too() -> None:
    (found,) = _ran(sizes_of_messages_differ, 2).findings
    assert (found["sequence"], found["differs"]) == (-1, ["shape"])
    sides = [dict(column["calls"])[-1] for column in found["columns"]]
    assert [(each["operation"], each["shape"]) for each in sides] == [("send", "(8,)"), ("recv", "(4,)")]


def test_a_race_has_both_accesses_and_what_the_second_knew(raced: ReportSource) -> None:
    (found,) = raced.findings
    first, second = found["sides"]
    assert (first["strand"], second["strand"]) == ("rank 0, the default stream", "rank 0, stream 1")
    assert [name for _, name, _ in first["accesses"]] == ["ones", "mm", "mm"]
    assert first["meets"] == first["accesses"][-1][0]
    assert second["knew"] == first["accesses"][1]  # the first product: what wait_stream was called behind
    assert first["knew"] is None
    assert ("races", "1") in [fact[:2] for fact in raced.facts]


def test_a_look_at_undefined_memory_has_its_steps() -> None:
    (found,) = _ran(reads_what_nobody_wrote, 1, races=True).findings
    assert "sides" not in found
    assert [each["does"] for each in found["accesses"]] == ["allocates", "makes", "reads"]


def test_an_allocation_without_room_adds_up(out_of_memory: ReportSource) -> None:
    (found,) = out_of_memory.findings
    layer = 1024 * 1024 * 4
    assert (found["requested"], found["whole"]) == (layer, 30 << 20)
    assert found["parts"] == [("parameters", 5 * layer)]
    assert sum(nbytes for _, nbytes in found["parts"]) + found["room"] == found["whole"]
    assert found["missing"] == found["wanted"] - found["room"] > 0
    assert found["module"] == [(f"Sequential.{number}", layer) for number in range(5)]
    assert HERE in found["place"]


_LOOK = """
  const part = (kind) => document.querySelector(`.finding[data-kind="${kind}"]`);
  told.words = Object.fromEntries(["mismatch", "race", "out of memory"].map((kind) => [kind, part(kind).innerText]));
  told.wrong_calls = [...part("mismatch").querySelectorAll("td.wrong")].map((cell) => cell.innerText);
  const charted = (kind) => charts.find(({ chart }) => part(kind).contains(chart.getDom())).chart.getOption();
  const edges = charted("race").series[0].links.filter(({ kind }) => kind !== "order");
  told.links = edges.map(({ kind, source, target }) => [kind, source, target]);
  told.bars = charted("out of memory").series.map(({ name, data }) => [name, data[0]]);
  told.capacity = charted("out of memory").series[0].markLine.data[0].xAxis;
  document.getElementById("theme").click();
  told.hidden = document.getElementById("failures").hidden;
"""


def test_pictures_of_what_went_wrong(
    opened: Opened, mismatched: ReportSource, raced: ReportSource, out_of_memory: ReportSource, tmp_path: Path
) -> None:
    """One page with the findings of three runs."""
    findings = [*mismatched.findings, *raced.findings, *out_of_memory.findings]
    write_report(tmp_path / "failed.html", dataclasses.replace(mismatched, findings=findings))
    told = opened(tmp_path / "failed.html", _LOOK)
    assert told["wrong"] == []
    assert not told["hidden"]
    words = told["words"]
    assert "Collective #1 of the default group differs in: shape" in words["mismatch"]
    assert [cell.split("\n")[:2] for cell in told["wrong_calls"]] == [
        ["all_reduce", "shape (1,)"],
        ["all_reduce", "shape (1024,)"],
    ]
    first, second = raced.findings[0]["sides"]
    assert told["links"] == [
        ["knew", f"0:{second['knew'][0]}", f"1:{second['meets']}"],
        ["missing", f"0:{first['meets']}", f"1:{second['meets']}"],
    ]
    assert "wait_stream" in words["race"]
    found = out_of_memory.findings[0]
    assert told["bars"] == [["parameters", 20], ["the request", found["wanted"] / 2**20]]
    assert told["capacity"] == 30
    assert "Sequential.4" in words["out of memory"]
    assert all(remedy in words["out of memory"] for remedy in found["remedies"])


def test_of_several_races_one_is_chosen(opened: Opened, raced: ReportSource, tmp_path: Path) -> None:
    (race,) = raced.findings
    again = {**race, "title": "write after read"}
    write_report(tmp_path / "races.html", dataclasses.replace(raced, findings=[race, again]))
    told = opened(
        tmp_path / "races.html",
        """
      const part = document.querySelector(".finding"), choice = part.querySelector("select");
      choice.value = "1";
      choice.dispatchEvent(new Event("change"));
      told.words = part.innerText;
      told.canvases = part.querySelectorAll("canvas").length;
    """,
    )
    assert told["wrong"] == []
    assert "Write after read" in told["words"]
    assert told["canvases"] == 1
