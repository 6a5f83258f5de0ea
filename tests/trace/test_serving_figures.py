"""Figures of requests, by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import kernbench
from kernbench.errors import ConfigError
from kernbench.simulation.ranks.serving_requests import Requests
from kernbench.trace import write_trace
from kernbench.trace.serving_figures import Distribution, limits_of, serving_result
from kernbench.trace.serving_report import serving_report


def reported() -> Requests:
    requests = Requests()
    for rank in (0, 1):  # two ranks of one engine: the second's word does not count
        requests.event(rank, "a", "arrived", 10, 1.0)
        requests.event(rank, "b", "arrived", 20, 1.5)
        for at in (2.0, 2.5, 4.0):
            requests.event(rank, "a", "token", 0, at + rank)
        requests.event(rank, "b", "preempted", 0, 2.0)
        requests.event(rank, "b", "token", 0, 3.0 + rank)
        requests.event(rank, "a", "ended", 0, 4.0 + rank)
        requests.step(rank, 2.0, 30, 0, 2, 0, 3, 8)
        requests.step(rank, 4.0, 0, 2, 1, 1, 5, 8)
    return requests


def test_figures_of_two_requests() -> None:
    result = serving_result(reported(), 2, {"ttft": 1.2, "tpot": 1.0})
    assert result is not None
    assert (result.requests, result.ended, result.seconds) == (2, 1, 3.0)
    assert result.ttft == Distribution(count=2, mean=1.25, p50=1.0, p90=1.5, p99=1.5, most=1.5)
    assert result.tpot == Distribution(count=1, mean=1.0, p50=1.0, p90=1.0, p99=1.0, most=1.0)
    assert result.itl == Distribution(count=2, mean=1.0, p50=0.5, p90=1.5, p99=1.5, most=1.5)
    assert result.latency is not None
    assert result.latency.mean == (3.0 + 1.5) / 2
    assert result.generated_tokens_per_second == pytest.approx(4 / 3)
    assert result.generated_tokens_per_second_per_gpu == pytest.approx(2 / 3)
    assert result.tokens_per_second == pytest.approx(34 / 3)
    assert (result.preemptions, result.steps, result.blocks, result.most_blocks_used) == (1, 2, 8, 5)
    assert result.goodput is not None
    assert (result.goodput.requests, result.goodput.share) == (1, 0.5)
    text = "\n".join(serving_report(result))
    assert "2 requests, of which 1 ended: 30 tokens of prompts, 4 generated" in text
    assert "goodput within TTFT 1.2 s, TPOT 1 s: 1 request (50%)" in text


def test_nothing_is_said_where_nothing_was_reported() -> None:
    assert serving_result(Requests(), 1) is None
    assert list(serving_report(None)) == []


def test_limits() -> None:
    assert limits_of("ttft=0.5s, itl=50ms") == {"ttft": 0.5, "itl": 0.05}
    for text in ("ttft", "ttft=fast", "e2e=1s", "ttft=1.2.3s"):
        with pytest.raises(ConfigError, match="expected limits of ttft"):
            limits_of(text)


def _engine(rank: int) -> None:
    kernbench.report_request("a", "arrived", tokens=3, at=0.001)
    kernbench.report_request("a", "token", at=0.002)
    kernbench.report_engine_step(prefill=3, running=1, at=0.002)
    kernbench.report_request("a", "token", at=0.003)
    kernbench.report_request("a", "ended", at=0.003)


@pytest.mark.parametrize("isolation", ["carrier", "process"])
def test_a_trace_has_lanes_of_requests(isolation: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(_engine, nprocs=1, isolation=isolation)  # type: ignore[arg-type]
        write_trace(ctx, path)
        result = serving_result(ctx.simulation.requests, 1)
    assert result is not None
    assert result.ended == 1
    events = json.loads(path.read_text())["traceEvents"]
    slices = [(each["name"], each["ts"], each["dur"]) for each in events if each.get("cat") == "request"]
    assert slices == [("a: to the first token", 1000.0, 1000.0), ("a: decoding", 2000.0, 1000.0)]
    counters = {each["name"]: each["args"] for each in events if each["ph"] == "C"}
    assert counters["tokens of a step"] == {"prefill": 3, "decode": 0}
    assert counters["requests"] == {"running": 1, "waiting": 0}


@pytest.mark.parametrize(
    "given", [{"event": "begun"}, {"event": "token", "tokens": -1}, {"event": "token", "tokens": 1.5}]
)
def test_reports_that_say_nothing_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="report_request"):
        kernbench.report_request("a", **given)  # type: ignore[arg-type]
