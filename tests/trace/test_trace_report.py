"""``kernbench trace summary``: from files to figures, against the simulation that wrote them."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from click.testing import CliRunner

import kernbench
from kernbench.cli import app
from kernbench.cost.estimate import total
from kernbench.cost.uncertainty import HOST, step_interval
from kernbench.errors import ConfigError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.trace import Timeline, write_chrome_trace
from kernbench.trace.critical import critical_path
from kernbench.trace.reading import read_trace
from kernbench.trace.report import report_of
from kernbench.trace.spans import Span
from kernbench.trace.step_parts import parts_of


def train(rank: int) -> None:
    """A collective behind a product, one in front of everybody, and a late rank."""
    dist.init_process_group("nccl")
    x, a = torch.ones(1 << 22, device="cuda"), torch.ones(2048, 2048, device="cuda")
    work = dist.all_reduce(x, async_op=True)
    a @ a
    work.wait()
    if rank == 1:
        for _ in range(4):
            a @ a
    dist.all_reduce(x)
    x.sum().item()


@pytest.fixture(scope="module")
def ctx() -> RuntimeContext:
    with kernbench.simulate("dgx_h100", correlation_id="two steps") as ctx:
        ctx.multiprocessing.spawn(train, nprocs=4)
    return ctx


@pytest.fixture(scope="module")
def path(ctx: RuntimeContext, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("trace") / "t.json.gz"
    write_chrome_trace(ctx, target)
    return target


def test_a_file_says_what_the_simulation_did(ctx: RuntimeContext, path: Path) -> None:
    written, live = report_of(read_trace(path).spans), report_of(Timeline.of(ctx).spans)
    assert written.length == pytest.approx(live.length, abs=2e-9)
    for name in ("kernels", "collectives", "ranks"):
        assert len(getattr(written, name)) == len(getattr(live, name)) > 0
    for mine, theirs in zip(written.ranks, live.ranks, strict=True):
        assert mine.communication == pytest.approx(theirs.communication, abs=1e-8)
        assert mine.overlapped == pytest.approx(theirs.overlapped, abs=1e-8)
    (reduces,) = written.collectives
    assert (reduces.name, reduces.calls) == ("all_reduce", 2)
    products = next(line for line in written.kernels if line.name == "mm.default")
    assert products.calls == 4 + 4
    assert products.low < products.seconds < products.high


def test_the_path_goes_through_the_late_rank(ctx: RuntimeContext) -> None:
    spans = Timeline.of(ctx).spans
    steps = critical_path(spans)
    assert steps[0].begin == pytest.approx(0, abs=1e-15)
    assert steps[-1].end == max(span.end for span in spans)
    for step, following in pairwise(steps):
        assert step.end == pytest.approx(following.begin, abs=3e-9)
    products = [step.span for step in steps if step.span is not None and step.span.name == "mm.default"]
    assert {span.rank for span in products} == {1}
    assert len(products) >= 4
    report = report_of(spans)
    assert sum(report.path_shares.values()) == pytest.approx(report.length, rel=1e-6)
    assert report.low < report.length < report.high
    second = report.collectives[0]
    late = 3 * products[0].seconds
    assert second.waited > late


def test_waiting_for_members_is_not_the_collectives_time(ctx: RuntimeContext) -> None:
    (line,) = report_of(Timeline.of(ctx).spans).collectives
    operations = [op for op in ctx.engine.op_log.operations if op.kind == "collective"]
    assert line.seconds == pytest.approx(sum(op.duration or 0 for op in operations if op.rank == 1), rel=0.05)


def test_the_trace_shows_path_memory_and_intervals(path: Path) -> None:
    events: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    on_path = [event for event in events if event.get("cat") == "critical path"]
    assert all(first["ts"] + first["dur"] <= then["ts"] + 0.003 for first, then in pairwise(on_path))
    assert any(event["name"] == "rank 1: mm.default" for event in on_path)
    memory = [event["args"] for event in events if event["name"] == "memory (bytes)" and event["pid"] == 1]
    by_use = [event["args"] for event in events if event["name"] == "memory by use (bytes)" and event["pid"] == 1]
    assert [sum(args.values()) for args in by_use] == [args["allocated"] for args in memory]
    assert max(args["allocated"] for args in memory) == memory[-1]["peak"] >= 4 * (1 << 22) + 4 * 2048**2
    assert memory[-1]["allocated"] == 32 << 20  # the workspace of its products stays
    operations = [event for event in events if event.get("cat") in ("gemm", "collective")]
    for event in operations:
        assert event["args"]["low us"] < event["dur"] < event["args"]["high us"]


def test_memory_of_the_contexts_tensors(tmp_path: Path) -> None:
    with kernbench.simulate() as ctx:

        def worker(rank: int) -> None:
            x = ctx.zeros(1 << 10, dtype=torch.float32)
            y = x + 1
            del x, y

        ctx.multiprocessing.spawn(worker, nprocs=2, isolation="greenlet")
    changes = [change.change for change in Timeline.of(ctx).memory() if change.sip == 1]
    assert changes == [4096, 4096, -4096, -4096]


def test_a_profilers_trace(tmp_path: Path) -> None:
    """What torch.profiler writes of one rank of a GPU program: kernels, NCCL's, copies, runtime calls."""
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 90, "dur": 20, "pid": 1, "tid": 1},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 100, "dur": 5, "pid": 1, "tid": 1},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 106, "dur": 4, "pid": 1, "tid": 1},
        {"ph": "X", "cat": "kernel", "name": "ampere_gemm", "ts": 108, "dur": 100, "pid": 0, "tid": 7, "args": {"stream": 7}},
        {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce", "ts": 158, "dur": 80, "pid": 0, "tid": 20,
         "args": {"stream": 20, "Collective name": "allreduce", "Process Group Name": "0"}},
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoH", "ts": 238, "dur": 12, "pid": 0, "tid": 7,
         "args": {"stream": 7}},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaStreamSynchronize", "ts": 111, "dur": 140, "pid": 1, "tid": 1},
        {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}},
    ]  # fmt: skip
    path = tmp_path / "torch.json"
    path.write_text(json.dumps({"schemaVersion": 1, "distributedInfo": {"rank": 3}, "traceEvents": events}))
    report = report_of(read_trace(path).spans)
    (rank,) = report.ranks
    assert rank.rank == 3
    assert rank.compute == pytest.approx(100e-6)
    assert rank.overlapped == pytest.approx(50e-6)
    assert rank.communication == pytest.approx(30e-6)
    assert rank.copy == pytest.approx(12e-6)
    assert [line.name for line in report.collectives] == ["allreduce"]
    on_path = [step.span.name for step in report.path if step.span is not None and step.kind != "host"]
    assert on_path == ["allreduce", "Memcpy DtoH"]


def test_the_command(path: Path) -> None:
    runner = CliRunner()
    shown = runner.invoke(app, ["trace", "summary", str(path), "--steps", "4"], catch_exceptions=False).output
    assert "two steps: " in shown
    for word in ("all_reduce", "mm.default", "critical path", "exposed comm", "... "):
        assert word in shown
    found = json.loads(runner.invoke(app, ["trace", "summary", str(path), "--json"], catch_exceptions=False).output)
    assert found["low"] < found["seconds"] < found["high"]
    assert len(found["ranks"]) == 4


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    for name, text, words in (
        ("a.json", "{", "a.json:1:2: broken JSON"),
        ("b.json", "{}", "no traceEvents"),
        ("c.json", '{"traceEvents": []}', "nothing in it ran"),
    ):
        path = tmp_path / name
        path.write_text(text)
        with pytest.raises(ConfigError, match=words):
            read_trace(path)
    with pytest.raises(ConfigError, match="No such file"):
        read_trace(tmp_path / "none.json")


def test_errors_of_one_model_add_up_and_those_of_two_partly_cancel() -> None:
    part = (10.0, 9.0, 12.0)
    assert total([("gemm", *part), ("gemm", *part)]) == (20.0, 18.0, 24.0)
    seconds, low, high = total([("gemm", *part), ("copy", *part)])
    assert (seconds, low, high) == (20.0, pytest.approx(20 - 2**0.5), pytest.approx(20 + 8**0.5))
    assert total([]) == (0.0, 0.0, 0.0)


def test_a_path_of_nothing() -> None:
    assert critical_path([]) == []
    lone = Span(0, 0, "compute", "kernel", "kernel", 1.0, 2.0)
    assert [(step.kind, step.begin, step.end) for step in critical_path([lone])] == [
        ("gap", 0.0, 1.0),
        ("compute", 1.0, 2.0),
    ]


def test_a_run_that_its_host_bounds_is_as_uncertain_as_a_host() -> None:
    def small(rank: int) -> None:
        x = torch.ones(16, 16, device="cuda")
        for _ in range(200):
            x = x + 1

    with kernbench.simulate("dgx_h100", enable_data=False) as ctx:
        ctx.multiprocessing.spawn(small, nprocs=1)
        spans = Timeline.of(ctx).spans
    report = report_of(spans)
    assert report.path_shares["host"] > 0.95 * report.length
    assert report.low == pytest.approx((1 - HOST) * report.length, rel=0.01)
    assert report.high == pytest.approx((1 + HOST) * report.length, rel=0.01)
    measured = report_of([replace(span, interval=None) for span in spans])
    assert (measured.low, measured.high) == (measured.length, measured.length)


def test_the_interval_is_the_one_that_whole_steps_are_judged_by(ctx: RuntimeContext) -> None:
    report = report_of(Timeline.of(ctx).spans)
    parts = parts_of(report.path, 0.0, report.length)
    assert {part.kind for part in parts} >= {"product", "communication"}
    assert (report.low, report.high) == pytest.approx(step_interval(parts))
