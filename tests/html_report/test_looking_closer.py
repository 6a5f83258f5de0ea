"""What a page adds up, marks and ticks: steps, ranges, what a search finds, memory to the end of the run."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernbench.html_report import source_of_trace, write_report
from kernbench.simulation.operation_descriptions import STACK, Descriptions
from kernbench.trace.reading import TraceFile
from kernbench.trace.spans import Span
from tests.html_report.conftest import Opened

US = 1e-6
SPANS = (
    Span(0, 0, "compute", "mm", "gemm", 0, 10 * US), Span(0, 0, "compute", "add", "math", 10 * US, 11 * US),
    Span(0, 0, "compute", "mm", "gemm", 20 * US, 24 * US), Span(1, 1, "compute", "add", "math", 2 * US, 40 * US),
)  # fmt: skip
STEPS = [
    {"number": number, "begin": begin * US, "seconds": 20 * US, "compute": None, "communication": None, "idle": None,
     "model_flops": 0, "recomputed_flops": 0, "tokens": 0, "samples": 0}
    for number, begin in ((1, 0), (2, 20))
]  # fmt: skip
MEMORY = {
    "rank": 0, "device": 0, "allocated": 4096, "reserved": 8192, "device_bytes": 8192, "limit": None, "capacity": 2**30,
    "stated": {}, "peak_time": 10 * US, "peak_step": 1, "peak_place": "a.py:1", "moments": [10 * US],
    "categories": {"activations": [4096]}, "at_peak": {},
}  # fmt: skip

_LOOKS = """
  const details = () => document.getElementById("details").innerText.replace(/\\s+/g, " ");
  const { series } = timeline.chart.getOption();
  told.steps = series.find(({ id }) => id === "steps").markLine.data.map(({ name, xAxis }) => [name, xAxis]);
  timeline.sum(5e3, 22e3);
  told.sum = details();
  timeline.look(25e3, 35e3);
  const search = document.getElementById("search");
  search.value = "mm";
  search.dispatchEvent(new Event("input"));
  const first = timeline.selected;
  told.first = { begin: run.begin[first], name: run.types[run.type[first]][0], window: timeline.window };
  told.ticks = timeline.ticks;
  search.value = "";
  search.dispatchEvent(new Event("input"));
  told.noTicks = timeline.ticks;
  timeline.look(0, run.length);
  const box = timeline.chart.getDom(), { left, top } = box.getBoundingClientRect(), canvas = box.querySelector("canvas");
  const [from, y] = timeline.chart.convertToPixel("grid", [30e3, 0]), [to] = timeline.chart.convertToPixel("grid", [10e3, 0]);
  const mouse = (name, x) => {
    const place = { clientX: left + x, clientY: top + y };
    canvas.dispatchEvent(new MouseEvent(name, { bubbles: true, shiftKey: true, ...place }));
  };
  mouse("mousedown", from);
  mouse("mousemove", to);
  mouse("mouseup", to);
  mouse("click", to);
  told.dragged = timeline.range;
  told.still = timeline.window;
  press(document.getElementById("lanes"), "s");
  told.view = timeline.range;
  timeline.pick(0);
  told.picked = timeline.range;
  told.memory = charts.map(({ chart }) => chart.getOption()).find(({ series }) => series[0]?.stack).series[0].data;
"""


@pytest.fixture
def looked(opened: Opened, tmp_path: Path) -> dict[str, Any]:
    """What the page of :data:`SPANS` says."""
    source = source_of_trace(TraceFile("two ranks", SPANS, {}), "x")
    write_report(tmp_path / "page.html", replace(source, steps=STEPS, memory=[MEMORY]))
    told = opened(tmp_path / "page.html", _LOOKS)
    assert told["wrong"] == []
    return told


def test_steps_ranges_and_searches(looked: dict[str, Any]) -> None:
    assert looked["steps"] == [["step 2", 20e3]]
    assert "a range of 17 us" in looked["sum"]
    assert (
        "matrix products 7 us, 20.6 %" in looked["sum"]
    )  # 5 of the first and 2 of the second, of 17 on each of two ranks
    assert "bound by memory 18 us, 52.9 %" in looked["sum"]  # 1 on one rank, 17 on the other
    assert "operation calls time add 2 18 us mm 2 7 us" in looked["sum"]
    assert (looked["first"]["name"], looked["first"]["begin"]) == ("mm", 0)
    begin, end = looked["first"]["window"]
    assert begin == 0
    assert end == pytest.approx(10e3)
    assert (looked["ticks"], looked["noTicks"]) == (2, 0)
    assert looked["dragged"] == pytest.approx([10e3, 30e3], abs=100)
    assert looked["still"] == looked["view"] == [0, 40e3]
    assert looked["picked"] is None


def test_what_is_in_use_last_is_drawn_to_the_end_of_the_run(looked: dict[str, Any]) -> None:
    assert looked["memory"] == [[10 * US, 4], [pytest.approx(40 * US), 4]]  # KiB


def test_lines_that_led_to_an_operation_begin_with_the_program() -> None:
    """Not with what has started it: here pytest, in ``kernbench run`` what reads the command line."""
    op = SimpleNamespace(detail=None)
    program = compile("def inner():\n    look()\n\ninner()", "/home/me/train.py", "exec")
    exec(program, {"__name__": "__main__", "look": lambda: Descriptions().place(op)})
    assert op.detail[STACK][:2] == ("/home/me/train.py:4 in <module>", "/home/me/train.py:2 in inner")
    module = compile("look()", "/home/me/part.py", "exec")  # further in than the script: it is no end
    exec(module, {"__name__": "part", "look": lambda: Descriptions().place(op)})
    assert op.detail[STACK][0] != "/home/me/part.py:1 in <module>"
    assert sys._getframe().f_code.co_name in op.detail[STACK][-3]
