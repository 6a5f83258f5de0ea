"""The page of a serving engine's run: requests by phase, and what its steps were of; colours that can be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kernbench
from kernbench.html_report import write_report
from tests.html_report.conftest import Opened, source_of

_LOOKS = """
  const kindOf = (type) => CATEGORIES[run.kindOf[type]][0];
  const at = (kind) => run.types.filter((_, type) => kindOf(type) === kind).map(([name]) => name).sort();
  told.phases = { first: at("first-token"), decoding: at("decoding"), other: at("other") };
  told.lanes = timeline.lines.filter(({ rank }) => rank === null).map(({ label, name }) => [label, name]);
  told.legend = document.getElementById("legend").innerText;
  timeline.pick(run.lanes.filter(({ rank }) => rank === null)[0].first);
  told.chosen = document.getElementById("details").innerText.replace(/\\s+/g, " ");
  told.contents = document.getElementById("contents").innerText;
  const chart = echarts.getInstanceByDom(document.getElementById("serving-chart"));
  told.series = Object.fromEntries(chart.getOption().series.map(({ name, data }) => [name, data.map(([, value]) => value)]));
  told.texts = {};
  for (const theme of ["light", "dark"]) {
    if (document.documentElement.dataset.theme !== theme) document.getElementById("theme").click();
    told.texts[theme] = CATEGORIES.map(([name], kind) => [name, colour(name), timeline.texts[kind]]);
  }
"""


def _engine(rank: int) -> None:
    for name, arrived in (("a", 0.001), ("b", 0.002)):
        kernbench.report_request(name, "arrived", tokens=300, at=arrived)
        kernbench.report_request(name, "token", at=arrived + 0.001)
        kernbench.report_engine_step(prefill=300, running=1, at=arrived + 0.001, blocks_used=3, blocks=12)
        kernbench.report_request(name, "token", at=arrived + 0.003)
        kernbench.report_request(name, "ended", at=arrived + 0.003)


@pytest.fixture(scope="module")
def served(opened: Opened, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the page says of two requests."""
    page: Path = tmp_path_factory.mktemp("served") / "report.html"
    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(_engine, nprocs=1)
        write_report(page, source_of(ctx))
    return opened(page, _LOOKS)


def test_phases_of_requests_are_told_apart(served: dict[str, Any]) -> None:
    assert served["wrong"] == []
    assert served["phases"] == {
        "first": ["a: to the first token", "b: to the first token"],
        "decoding": ["a: decoding", "b: decoding"],
        "other": [],
    }
    assert served["lanes"] == [["engine", "requests"], ["", "requests (2)"]]
    assert "requests, to the first token" in served["legend"]
    assert "where engine, requests" in served["chosen"]
    assert "requests" in served["contents"]


def test_steps_of_the_engine_are_drawn(served: dict[str, Any]) -> None:
    assert served["series"] == {
        "prefill tokens of a step": [300, 300], "decode tokens of a step": [0, 0], "running requests": [1, 1],
        "waiting requests": [0, 0], "cache used, %": [25, 25],
    }  # fmt: skip


def _luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_labels_can_be_read_on_every_colour(served: dict[str, Any]) -> None:
    """At WCAG's contrast for text, 4.5, in both themes."""
    assert set(served["texts"]) == {"light", "dark"}
    for kinds in served["texts"].values():
        for name, *colours in kinds:
            dark, light = sorted(map(_luminance, colours))
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (name, colours)
