"""The page in a real browser, without a window: it opens, and clicks tell what the trace says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import kernbench
from kernbench.html_report import source_of_trace, write_report
from kernbench.runtime_api.context import RuntimeContext
from kernbench.trace import Timeline
from kernbench.trace.reading import TraceFile
from kernbench.trace.spans import Span
from tests.html_report.conftest import Opened, source_of

_CHOOSE = """
  const product = run.types.findIndex(([name]) => name === "mm.default"), span = run.type.indexOf(product);
  const line = timeline.lineOf(run.laneOf(span)), middle = (run.begin[span] + run.end[span]) / 2;
  timeline.look(middle - 1e4, middle + 1e4);
  const [x, y] = timeline.chart.convertToPixel("grid", [middle, line]);
  click(timeline.chart, x, y);
  told.span = { begin: run.begin[span], end: run.end[span] };
  told.clicked = document.getElementById("details").innerText;
  press(document.getElementById("lanes"), "n");
  told.next = run.types[run.type[timeline.selected]][0];
  press(document.getElementById("lanes"), "0");
  told.window = timeline.window;
  const search = document.getElementById("search");
  search.value = "ALL_reduce";
  search.dispatchEvent(new Event("input"));
  told.found = document.getElementById("found").textContent;
  press(search, "Enter");
  told.match = document.getElementById("details").innerText;
  told.theme = document.documentElement.dataset.theme;
  document.getElementById("theme").click();
  told.other = document.documentElement.dataset.theme;
  told.views = [...document.getElementById("view").options].map((option) => option.value);
  for (const view of told.views) timeline.show(view);
  const picture = () => timeline.bitmap.canvas.toDataURL();
  timeline.show("lines");
  const whole = picture();
  timeline.zoom(0.25);
  told.redrawn = picture() !== whole;
  told.text = document.body.innerText;
"""


def test_clicks_tell_what_the_trace_says(opened: Opened, reported: RuntimeContext, page: Path) -> None:
    told = opened(page, _CHOOSE)
    assert told["wrong"] == []
    spans = Timeline.of(reported).spans
    product = next(span for span in spans if span.name == "mm.default" and span.rank == 0)
    assert (told["span"]["begin"], told["span"]["end"]) == (round(product.begin * 1e9), round(product.end * 1e9))
    assert "mm.default" in told["clicked"]
    assert "float32[64, 64], float32[64, 64] -> float32[64, 64]" in told["clicked"]
    assert f"{product.nbytes:,} (" in told["clicked"]
    assert "conftest.py:" in told["clicked"]
    after = min(
        (s for s in spans if (s.rank, s.track) == (0, product.track) and s.begin >= product.end), key=lambda s: s.begin
    )
    assert told["next"] == after.name
    assert told["window"] == [0, round(Timeline.of(reported).end * 1e9)]
    reductions = [span for span in spans if "all_reduce" in span.name]
    assert told["found"].startswith(f"{len(reductions)} found")
    assert "all_reduce" in told["match"]
    assert {told["theme"], told["other"]} == {"light", "dark"}
    assert told["views"] == ["ranks", "groups", "lines"]
    assert told["redrawn"]
    assert "Where time goes" in told["text"]


_FLAME = """
  const box = document.getElementById("flame-chart"), words = document.getElementById("flame-words");
  const rows = () => Number.parseInt(box.style.height);
  const keys = (...names) => names.map((name) => { press(box, name); return words.textContent; });
  told.focus = box.tabIndex;
  told.whole = rows();
  told.down = keys("ArrowDown", "ArrowDown", "ArrowDown");
  told.up = keys("ArrowUp")[0];
  press(box, "Enter");
  told.closer = rows();
  press(box, "Escape");
  told.back = rows();
"""


def test_the_flame_is_walked_by_keys(opened: Opened, page: Path) -> None:
    told = opened(page, _FLAME)
    assert told["wrong"] == []
    assert told["focus"] == 0
    first, second, third = told["down"]
    assert first.startswith("all: ")
    assert ", 100.0 %, " in first
    assert ".py:" in second
    assert third.endswith(" operations")
    assert told["up"] == second != third
    assert told["back"] == told["whole"] == told["closer"] + 21  # a row less, below the outermost call


def _nothing(rank: int, world_size: int, torch: object) -> None:
    """A program that fails before it does anything."""
    raise ValueError(f"<b>rank {rank}</b> & größer 大")


def test_a_run_that_did_nothing_has_a_page(opened: Opened, tmp_path: Path) -> None:
    path = tmp_path / "empty.html"
    with kernbench.simulate() as ctx:
        with pytest.raises(kernbench.SpawnException) as caught:
            ctx.multiprocessing.spawn(_nothing, args=(1, ctx), nprocs=1)
        write_report(path, source_of(ctx, rank0=caught.value.errors[0]))
    told = opened(path, "told.text = document.body.innerText;")
    assert told["wrong"] == []
    assert "<b>rank 0</b> & größer 大" in told["text"]
    assert "before its first operation" in told["text"]


def _waits_in_a_ring(rank: int, world_size: int, torch: Any) -> None:
    """Each rank receives from the rank before, and none sends."""
    torch.distributed.recv(torch.zeros(8), (rank - 1) % world_size)


def test_a_deadlock_is_a_picture(opened: Opened, tmp_path: Path) -> None:
    path = tmp_path / "deadlock.html"
    with kernbench.simulate() as ctx:
        with pytest.raises(kernbench.SpawnException) as caught:
            ctx.multiprocessing.spawn(_waits_in_a_ring, args=(3, ctx), nprocs=3)
        write_report(path, source_of(ctx, **{f"rank{rank}": error for rank, error in caught.value.errors.items()}))
    told = opened(
        path,
        """
      const { series } = charts[0].chart.getOption();
      told.links = series[0].links.map(({ source, target, inCycle }) => [source, target, inCycle]);
      told.words = document.getElementById("failures").innerText;
    """,
    )
    assert told["wrong"] == []
    assert sorted(told["links"]) == [["0", "2", True], ["1", "0", True], ["2", "1", True]]
    assert "Wait-for cycle: rank 0 -> rank 2 -> rank 1 -> rank 0" in told["words"]
    assert "waits in recv from rank 2" in told["words"]


def test_two_reports_are_compared_by_operation(opened: Opened, tmp_path: Path) -> None:
    def run(name: str, seconds: float, more: tuple[Span, ...] = ()) -> Path:
        spans = (
            Span(0, 0, "compute", "mm", "gemm", 0, seconds),
            Span(0, 0, "compute", "add", "math", seconds, seconds + 1e-6),
        )
        write_report(tmp_path / name, source_of_trace(TraceFile(name, (*spans, *more), {}), name))
        return tmp_path / name

    before = run("before.html", 10e-6)
    now = run("now.html", 15e-6, (Span(0, 0, "compute", "gelu", "math", 20e-6, 22e-6),))
    told = opened(now, f"""
      const file = new File([{json.dumps(before.read_text())}], "before.html"), list = new DataTransfer();
      list.items.add(file);
      const input = document.getElementById("earlier");
      input.files = list.files;
      input.dispatchEvent(new Event("change"));
      const shown = document.getElementById("compared");
      for (let i = 0; i < 4000 && !shown.querySelector("td"); i++) await new Promise((done) => setTimeout(done, 10));
      told.rows = [...shown.querySelectorAll("tbody tr")].map((row) => [...row.cells].map((cell) => cell.innerText));
    """.replace("</script", "<\\/script"))  # fmt: skip
    assert told["wrong"] == []
    assert told["rows"] == [
        ["mm", "10 us", "15 us", "+5 us", "x 1.500", "1", "1"],
        ["gelu", "0", "2 us", "+2 us", "new", "0", "1"],
        ["add", "1 us", "1 us", "0", "x 1.000", "1", "1"],
    ]


def test_any_name_is_shown_as_it_is(opened: Opened, tmp_path: Path) -> None:
    name = '</script><b>"größer" & 大 \u202e'
    path = tmp_path / "name.html"
    write_report(path, source_of_trace(TraceFile("one rank", (Span(0, 0, "compute", name, "math", 0, 1e-6),), {}), "x"))
    told = opened(path, 'timeline.pick(0); told.details = document.getElementById("details").innerText;')
    assert told["wrong"] == []
    assert name in told["details"]
