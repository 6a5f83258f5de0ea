"""The Chrome trace: valid, complete, and equal for equal simulations."""

from __future__ import annotations

import gzip
import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernbench
from kernbench.runtime_api.context import RuntimeContext
from kernbench.trace import Timeline, write_chrome_trace
from tests.trace.conftest import exchanges

Event = dict[str, Any]


def read(source: Any, folder: Path, **options: Any) -> dict[str, Any]:
    write_chrome_trace(source, folder / "trace.json", **options)
    document: dict[str, Any] = json.loads((folder / "trace.json").read_text())
    return document


@pytest.fixture
def document(ctx: RuntimeContext, tmp_path: Path) -> dict[str, Any]:
    return read(ctx, tmp_path)


@pytest.fixture
def events(document: dict[str, Any]) -> list[Event]:
    return list(document["traceEvents"])


def of_phase(events: list[Event], phase: str) -> list[Event]:
    return [event for event in events if event["ph"] == phase]


def names(events: list[Event], kind: str) -> dict[Any, str]:
    """Process or thread number -> name."""
    return {
        event["pid"] if kind == "process_name" else (event["pid"], event["tid"]): event["args"]["name"]
        for event in of_phase(events, "M")
        if event["name"] == kind
    }


REQUIRED = {
    "M": {"name", "pid", "args"},
    "X": {"name", "cat", "pid", "tid", "ts", "dur"},
    "C": {"name", "pid", "ts", "args"},
    "s": {"name", "cat", "id", "pid", "tid", "ts"},
    "f": {"name", "cat", "id", "pid", "tid", "ts", "bp"},
    "i": {"name", "pid", "tid", "ts", "s"},
}


def test_the_format_is_chromes(document: dict[str, Any], events: list[Event]) -> None:
    assert document["displayTimeUnit"] == "ns"
    assert document["otherData"]["title"] == "layers"
    for event in events:
        assert REQUIRED[event["ph"]] <= event.keys()
        assert all(isinstance(event[key], int) for key in ("pid", "tid", "id") if key in event)
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0


def test_events_are_in_the_order_of_time(events: list[Event]) -> None:
    times = [event["ts"] for event in events if event["ph"] != "M"]
    assert times == sorted(times)


def test_a_process_per_rank_and_one_for_links(events: list[Event]) -> None:
    assert names(events, "process_name") == {
        **{rank + 1: f"rank {rank} (SIP {rank})" for rank in range(8)},
        10: "links of sip8",
        11: "critical path",
    }


def test_a_track_per_stream(events: list[Event]) -> None:
    tracks = names(events, "thread_name")
    first = [name for (pid, _), name in sorted(tracks.items()) if pid == 1]
    assert first == ["host", "compute", "comm", "comm 1", "send to 1", "send to 2", "receive from 7"]
    used = {(event["pid"], event["tid"]) for event in of_phase(events, "X")}
    assert used == set(tracks)


def test_slices_of_a_track_nest(events: list[Event]) -> None:
    """On each track, a slice lies within the one that is open when it begins, or begins after it has ended."""
    by_track: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in of_phase(events, "X"):
        begin = round(event["ts"] * 1000)
        by_track.setdefault((event["pid"], event["tid"]), []).append((begin, begin + round(event["dur"] * 1000)))
    for slices in by_track.values():
        open_until: list[int] = []
        for begin, end in slices:
            while open_until and open_until[-1] <= begin:
                open_until.pop()
            assert not open_until or end <= open_until[-1]
            open_until.append(end)


def test_every_operation_is_there_with_its_times(ctx: RuntimeContext, events: list[Event]) -> None:
    tracks = names(events, "thread_name")
    written = Counter(
        (event["name"], event["pid"] - 1, tracks[event["pid"], event["tid"]], event["ts"])
        for event in of_phase(events, "X")
        if event["cat"] not in ("launch", "wait", "message", "critical path")
    )
    logged = Counter(
        (op.name, op.rank, op.stream, round((op.start or 0.0) * 1e9) / 1000) for op in ctx.engine.op_log.operations
    )
    assert written == logged


def test_a_message_is_an_arrow_from_slice_to_slice(ctx: RuntimeContext, events: list[Event]) -> None:
    starts = {event["id"]: event for event in of_phase(events, "s")}
    ends = {event["id"]: event for event in of_phase(events, "f")}
    steps = sum(len(trace.run.plan) for trace in ctx.engine.op_log.collectives)
    assert starts.keys() == ends.keys()
    assert len(starts) == steps
    slices = {
        (event["pid"], event["tid"], event["ts"], event["args"]["collective"]): event["args"]
        for event in of_phase(events, "X")
        if event["cat"] == "message"
    }
    tracks = names(events, "thread_name")
    for number, start in starts.items():
        end = ends[number]
        assert start["ts"] <= end["ts"]
        sender = slices[start["pid"], start["tid"], start["ts"], start["name"]]
        receiver = slices[end["pid"], end["tid"], end["ts"], end["name"]]
        assert sender["from"] + 1 == start["pid"]
        assert sender["to"] + 1 == end["pid"]
        assert receiver["from"] == sender["from"]
        assert tracks[start["pid"], start["tid"]] == f"send to {sender['to']}"
        assert tracks[end["pid"], end["tid"]] == f"receive from {sender['from']}"


def test_links_carry_what_the_messages_carry(ctx: RuntimeContext, events: list[Event]) -> None:
    """The area under a link's counter is the bytes of the plans that cross it, and no link exceeds its bandwidth."""
    expected: Counter[str] = Counter()
    for trace in ctx.engine.op_log.collectives:
        plan = trace.run.plan
        for queue, nbytes in zip(plan.queue.tolist(), plan.nbytes.tolist(), strict=True):
            for link in plan.queue_links[queue]:
                expected[ctx.topology.links[link].name] += nbytes
    counters: dict[str, list[tuple[float, float]]] = {}
    for event in of_phase(events, "C"):
        if "GB/s" not in event["args"]:
            continue  # memory
        counters.setdefault(event["name"], []).append((event["ts"] * 1e-6, event["args"]["GB/s"] * 1e9))
    assert counters.keys() == {name for name, nbytes in expected.items() if nbytes}
    # a message is shown at its average rate: where two groups' messages meet, that is more at times than the link gives
    limit = float(np.max(ctx.topology.link_bandwidth)) * (1.5 if len(ctx.engine.op_log.collectives) > 4 else 1.001)
    for name, points in counters.items():
        assert points[-1][1] == 0
        area = sum(rate * (after - at) for (at, rate), (after, _) in itertools.pairwise(points))
        assert area == pytest.approx(expected[name], rel=0.03, abs=4)  # times are rounded to nanoseconds
        assert max(rate for _, rate in points) <= limit


def test_messages_and_groups_of_every_kind(tmp_path: Path) -> None:
    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(exchanges, args=(8, ctx), nprocs=8)
        events = read(ctx, tmp_path)["traceEvents"]
    test_events_are_in_the_order_of_time(events)
    test_slices_of_a_track_nest(events)
    test_every_operation_is_there_with_its_times(ctx, events)
    test_a_message_is_an_arrow_from_slice_to_slice(ctx, events)
    test_links_carry_what_the_messages_carry(ctx, events)


def test_the_host_track_shows_launches_and_waits(ctx: RuntimeContext, events: list[Event]) -> None:
    host = [event for event in of_phase(events, "X") if event["pid"] == 1 and event["tid"] == 1]
    launches = [event for event in host if event["cat"] == "launch"]
    own = [op for op in ctx.engine.op_log.operations if op.rank == 0]
    own.sort(key=lambda op: op.enqueue)  # the log has a collective when it is matched
    assert [event["name"] for event in launches] == [f"launch {op.name}" for op in own]
    overhead, called = ctx.topology.device.launch.overhead * 1e6, ctx.topology.system.host.operator * 1e6
    for event in launches:  # a kernel or a copy is a launch, an operator of torch a call besides
        assert event["dur"] in (pytest.approx(overhead, abs=0.002), pytest.approx(overhead + called, abs=0.002))
    waits = [event["name"] for event in host if event["cat"] == "wait"]
    assert waits == [
        "wait for device to host",
        "sleep",
        "wait for barrier",
    ]  # it runs ahead of its stream until it looks


def test_a_limit_leaves_out_whole_collectives_and_says_so(ctx: RuntimeContext, tmp_path: Path) -> None:
    sizes = [len(trace.run.plan) for trace in ctx.engine.op_log.collectives]
    all_events = read(ctx, tmp_path, max_steps=None)
    assert all_events["otherData"]["note"] == ""
    limited = read(ctx, tmp_path, max_steps=sizes[0])
    note = limited["otherData"]["note"]
    assert f"{sum(sizes[1:])} chunk steps of {len(sizes) - 1} collectives are not shown" in note
    assert [event["name"] for event in of_phase(limited["traceEvents"], "i")] == [note]
    assert len(of_phase(limited["traceEvents"], "s")) == sizes[0]
    comm = [event for event in of_phase(limited["traceEvents"], "X") if event["cat"] == "collective"]
    assert len(comm) == len([op for op in ctx.engine.op_log.operations if op.kind == "collective"])


def test_an_engine_will_do(ctx: RuntimeContext, tmp_path: Path, events: list[Event]) -> None:
    assert read(ctx.engine, tmp_path)["traceEvents"] == events


def test_gzip(ctx: RuntimeContext, tmp_path: Path, document: dict[str, Any]) -> None:
    for name in ("a.json.gz", "b.json.gz"):
        write_chrome_trace(ctx, tmp_path / name)
    assert json.loads(gzip.decompress((tmp_path / "a.json.gz").read_bytes())) == document
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


def test_an_empty_simulation(tmp_path: Path) -> None:
    with kernbench.simulate() as ctx:
        assert of_phase(read(ctx, tmp_path)["traceEvents"], "X") == []


def test_main_has_a_process_where_it_does_something(tmp_path: Path) -> None:
    with kernbench.simulate() as ctx:
        (ctx.ones(8) + 1).sum().item()
        events = read(ctx, tmp_path)["traceEvents"]
    assert list(names(events, "process_name").values()) == ["main", "links of sip8"]
    assert {event["name"] for event in of_phase(events, "X")} >= {"add.Tensor", "sum.default", "device to host"}


def test_a_rank_that_drives_two_sips_has_a_track_for_each(tmp_path: Path) -> None:
    def worker(rank: int, torch: Any) -> None:
        for sip in (0, 3):
            torch.accelerator.set_device_index(sip)
            torch.relu(torch.ones(8))
        torch.synchronize()

    with kernbench.simulate() as ctx:
        ctx.multiprocessing.spawn(worker, args=(ctx,), nprocs=1)
        events = read(ctx, tmp_path)["traceEvents"]
    assert [name for name in names(events, "thread_name").values() if "compute" in name] == [
        "compute",
        "compute (SIP 3)",
    ]


def test_what_has_not_ended_is_left_out_and_noted(tmp_path: Path) -> None:
    def worker(rank: int, torch: Any) -> None:
        if rank:
            torch.distributed.all_reduce(torch.ones(8))

    with kernbench.simulate() as ctx:
        with pytest.raises(kernbench.SpawnException):
            ctx.multiprocessing.spawn(worker, args=(ctx,), nprocs=2)
        timeline = Timeline.of(ctx)
        read(ctx, tmp_path)
    assert timeline.unfinished == sum(op.end is None for op in ctx.engine.op_log.operations)
    assert bool(timeline.note) is bool(timeline.unfinished)
