"""Pages of sweeps, what-if and explorations: tables, charts and findings are those of the runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kernbench.cli import app
from kernbench.explore import Trial, Trouble, explored
from kernbench.explore import study as explore_study
from kernbench.html_report import read_page
from kernbench.html_report.study import Study, StudyColumn, write_study
from kernbench.sweep import sweep
from kernbench.sweep.spec import SweepSpec
from kernbench.sweep.study import study_of as study_of_sweep
from kernbench.what_if import Answer, Question
from kernbench.what_if import study as what_if_study
from tests.html_report.conftest import Opened

PROGRAM = Path(__file__).parents[1] / "sweep" / "program.py"
AXES: dict[str, list[Any]] = {"world_size": [2, 4], "n": [8, 13, 64]}

_READ = """
  told.facts = [...document.querySelectorAll(".fact")].map((fact) => [...fact.children].map((each) => each.textContent));
  told.found = document.getElementById("findings").innerText;
  told.heads = [...document.querySelectorAll("#run-table th")].map((head) => head.innerText);
  const texts = (row) => [...row.cells].map((cell) => cell.innerText);
  const rows = () => [...document.querySelectorAll("#run-table tbody tr")].map(texts);
  told.rows = rows();
  const series = (at) => charts[at].chart.getOption().series;
"""


def test_a_sweep_is_a_page(opened: Opened, tmp_path: Path) -> None:
    spec = SweepSpec(program=f"{PROGRAM}:run", axes=AXES, fixed={"system": "sip8"})
    result = sweep(spec, output=tmp_path / "out", jobs=0)
    write_study(tmp_path / "sweep.html", study_of_sweep(spec, result))
    told = opened(
        tmp_path / "sweep.html",
        _READ
        + """
      told.lines = series(0).map(({ name, data }) => [name, data.map(({ value }) => value)]);
      const [y, x] = document.querySelectorAll("#chart-list select");
      told.figures = [...y.options].map((option) => option.value);
      y.value = "sum";
      x.value = "world_size";
      x.dispatchEvent(new Event("change"));
      told.other = series(0).map(({ name, data }) => [name, data.map(({ value }) => value)]);
      document.querySelectorAll("#run-table th button")[2].click();
      told.sorted = rows().map((row) => row[1]);
      const search = document.getElementById("search");
      search.value = "failed";
      search.dispatchEvent(new Event("input"));
      told.searched = rows().length;
    """,
    )
    assert told["wrong"] == []
    seconds = {(row["world_size"], row["n"]): row["virtual_seconds"] for row in result.rows}
    assert told["lines"] == [
        [f"world_size {world}", [[n, seconds[world, n]] for n in (8, 64)]] for world in AXES["world_size"]
    ]
    assert told["figures"] == ["virtual_seconds", "sum", "result_n"]
    assert told["other"] == [[f"n {n}", [[2, 3 * n], [4, 10 * n]]] for n in (8, 64)]
    assert told["facts"][:2] == [["points", "6", "6 run now"], ["failed", "2", ""]]
    assert "2 points failed" in told["found"]
    assert "ValueError: is not a size" in told["found"]
    assert "world_size=4, n=13" in told["found"]
    assert told["heads"] == list(result.rows[0])
    assert len(told["rows"]) == 6
    assert told["searched"] == 2
    place = told["heads"].index("sum")
    assert told["rows"][0][place] == "24"


def test_a_sweep_writes_its_page_and_looks_before_it_runs(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(f"program: {PROGRAM}:run\naxes: {{system: [sip8], world_size: [2], n: [8]}}\n")
    command = ["sweep", str(tmp_path / "sweep.yaml"), "-j", "0", "--report"]
    refused = CliRunner().invoke(app, [*command, str(tmp_path / "nowhere" / "sweep.html")])
    assert refused.exit_code != 0
    assert not (tmp_path / "sweep").exists()
    result = CliRunner().invoke(app, [*command, str(tmp_path / "sweep.html")], catch_exceptions=False)
    assert result.exit_code == 0
    assert result.output.rstrip().endswith("sweep.html")
    header, _ = read_page(tmp_path / "sweep.html")
    assert (header["format"], len(header["rows"])) == ("kernbench.study", 1)


def _row(batch: int, seconds: float | None, **more: Any) -> dict[str, Any]:
    row = {
        "system": "dgx_h100", "gpus": 8, "batch": batch, "seconds_per_step": seconds, "seconds_low": seconds and 0.8 * seconds,
        "seconds_high": seconds and 1.5 * seconds, "device_bytes": batch << 30, "capacity_bytes": 80 << 30, "fits": batch < 80,
        "throughput_per_gpu": seconds and batch / seconds, "mfu": seconds and 0.4, "notes": "assumed: <b>x</b>", "status": "ok",
        "error": "",
    }  # fmt: skip
    return {**row, **more}


def test_what_if_is_a_page(opened: Opened, tmp_path: Path) -> None:
    failed = _row(3, None, status="failed", error="rank 0: ValueError", fits=None, notes=None, device_bytes=None)
    rows = [_row(4, 0.5), _row(2, 0.3), _row(96, 4.0), failed]
    question = Question("train.py", settings={"batch": [2, 3, 4, 96]}, gpus=[8], arguments=["--batch", "{batch}"])
    answer = Answer(rows, "samples_per_second", "samples/s", 4, [], [])
    write_study(tmp_path / "what_if.html", what_if_study.study_of(question, answer))
    told = opened(
        tmp_path / "what_if.html",
        _READ
        + """
      told.bars = series(0)[0].data.map(({ value, itemStyle }) => [value, itemStyle.color === colour("alert")]);
      told.intervals = series(0)[1].data;
      told.names = charts[0].chart.getOption().yAxis[0].data;
      told.points = series(1)[0].data.map(({ value }) => value);
      told.notes = document.getElementById("note-list").innerText;
    """,
    )
    assert told["wrong"] == []
    assert told["bars"] == [[0.5, False], [0.3, False], [4.0, True]]
    assert told["intervals"] == [
        [pytest.approx(0.8 * seconds), at, pytest.approx(1.5 * seconds)] for at, seconds in enumerate((0.5, 0.3, 4.0))
    ]
    assert told["names"] == ["batch 4", "batch 2", "batch 96"]
    assert told["points"] == [[row["device_bytes"], pytest.approx(row["throughput_per_gpu"])] for row in rows[:3]]
    assert told["notes"] == "assumed: <b>x</b>"
    assert ["failed", "1", ""] in told["facts"]
    assert ["best", "8 samples/s/GPU", "system dgx_h100, gpus 8, batch 4"] in told["facts"]
    step = told["heads"].index("seconds_per_step")
    assert [row[step] for row in told["rows"]] == ["500 ms", "300 ms", "4 s", "-"]
    assert told["rows"][0][told["heads"].index("mfu")] == "40.0 %"


def test_an_exploration_is_a_page(opened: Opened, tmp_path: Path) -> None:
    """Of runs, the fourth finds something."""

    def run(schedules: Iterable[str]) -> Iterator[Trial]:
        for number, schedule in enumerate(schedules):
            trouble = Trouble("deadlock", "key", "nobody <can> go on") if schedule == "random:3" else None
            yield Trial(schedule, asked=5, steps=7 + number, trouble=trouble)

    log = explore_study.RunLog()
    found, count = explored(log.noting(run), "random", 10)
    assert found is not None
    assert (count, len(log.rows)) == (4, 4)
    log.part = "shrink"
    list(log.noting(run)(["r.0=1"]))
    words = [("replay", "kernbench run --schedule random:3")]
    write_study(tmp_path / "explore.html", explore_study.study_of(log, "leader.py", "random", found, words))
    told = opened(
        tmp_path / "explore.html",
        _READ + 'told.red = series(0)[0].data.map(({ itemStyle }) => itemStyle.color === colour("alert"));',
    )
    assert told["wrong"] == []
    assert told["facts"] == [["found", "deadlock", "in run 4"], ["runs", "4", ""], ["runs to shrink", "1", ""]]
    assert told["red"] == [False, False, False, True, False]
    assert [row[:3] for row in told["rows"]] == [
        ["1", "search", "default"], *([str(at), "search", f"random:{at - 1}"] for at in (2, 3, 4)), ["5", "shrink", "r.0=1"],
    ]  # fmt: skip
    assert "nobody <can> go on" in told["found"]
    assert "kernbench run --schedule random:3" in told["found"]


def test_a_run_that_differs_from_the_default_one_is_marked() -> None:
    def run(schedules: Iterable[str]) -> Iterator[Trial]:
        for schedule in schedules:
            yield Trial(schedule, values=[("all_reduce #0", "other" if schedule == "random:2" else "usual")])

    log = explore_study.RunLog()
    found, _ = explored(log.noting(run), "random", 5)
    study = explore_study.study_of(log, "p.py", "random", found, [])
    assert [row[-1] for row in study.rows] == ["", "", "difference"]


def test_what_json_does_not_know_is_text(tmp_path: Path) -> None:
    columns = [StudyColumn(name) for name in "abcd"]
    write_study(tmp_path / "s.html", Study("s", "", [], columns, [[float("nan"), float("inf"), [1, 2], None]]))
    header, _ = read_page(tmp_path / "s.html")
    assert header["rows"] == [["nan", "inf", "[1, 2]", None]]
