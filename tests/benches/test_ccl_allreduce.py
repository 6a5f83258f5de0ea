"""The all-reduce bench: its table, its flags, its verdict, and what may be replaced in it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import kernbench
from kernbench.benches import ccl_allreduce
from kernbench.benches.harness.collective import Plan, session_of
from kernbench.benching import SimulationOptions, invoke
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.types import DeviceSelector
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import TopologyHandle

SMALL = ("-e", "4K")


def bench(*arguments: str) -> Result:
    """Run the command in this process; fails unless it exits by itself."""
    result = CliRunner().invoke(ccl_allreduce.command, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def rows(result: Result) -> list[list[str]]:
    """The table's rows, cell by cell."""
    return [line.split() for line in result.stdout.splitlines() if line and not line.startswith("#")]


def close(text: str, value: float) -> bool:
    """Whether ``text`` is ``value``, rounded as it is."""
    decimals = len(text.partition(".")[2])
    return abs(float(text) - value) <= 0.51 * 10.0**-decimals


# -- the table ---------------------------------------------------------------------------------------------------------


def test_the_default_run_is_eight_ranks_and_1_kib_to_64_mib() -> None:
    options = {option.name: option.default for option in ccl_allreduce.command.params}
    assert (options["begin"], options["end"]) == ("1K", "64M")
    result = bench("-e", "16K")
    assert result.exit_code == 0
    assert "step: 4(factor)" in result.stdout
    assert [int(row[0]) for row in rows(result)] == [1024, 4096, 16384]
    assert "nGpus 8 " in result.stdout
    assert "system: sip8, 1 node x 8 SIPs (ring_1d)" in result.stdout
    assert "algorithm: ring_allreduce" in result.stdout
    assert f"kernbench {kernbench.__version__}" in result.stdout


def test_columns_are_those_of_nccl_tests() -> None:
    result = bench(*SMALL, "-g", "4")
    lines = result.stdout.splitlines()
    header = next(line for line in lines if "redop" in line)
    place = ["time", "algbw", "busbw", "#wrong"]
    assert header.lstrip("#").split() == ["size", "count", "type", "redop", "root", *place, *place]
    for row in rows(result):
        size, count, kind, op, root = int(row[0]), int(row[1]), *row[2:5]
        assert (size, kind, op, root) == (count * 4, "float", "sum", "-1")
        for time, algbw, busbw, wrong in (row[5:9], row[9:13]):
            assert close(algbw, size / float(time) / 1e3)
            assert close(busbw, size / float(time) / 1e3 * 2 * 3 / 4)
            assert wrong == "0"
    assert "# Out of bounds values : 0 OK" in lines
    average = float(re.search(r"# Avg bus bandwidth +: ([\d.]+)", result.stdout)[1])  # type: ignore[index]
    assert average == pytest.approx(sum(float(row[k]) for row in rows(result) for k in (7, 11)) / 4, abs=0.006)


def test_header_and_rows_line_up() -> None:
    lines = bench(*SMALL).stdout.splitlines()
    header = next(line for line in lines if "redop" in line)
    for row in (line for line in lines if not line.startswith("#")):
        assert len(row) == len(header)


def test_the_time_is_the_engines() -> None:
    """A single operation is timed from the barrier's end to its own, as the log has it."""
    with kernbench.simulate() as ctx:
        results = ccl_allreduce.run(ctx, Plan.of([65536], average="max"))
        ends = [max(op.end or 0.0 for op in ctx.engine.op_log.operations if op.name == "all_reduce" and op.rank == 3)]
        calls = [op for op in ctx.engine.op_log.operations if op.kind == "collective" and op.rank == 3]
    barrier, in_place = calls[2], calls[3]
    assert in_place.end == ends[0]
    assert results.rows[0].in_place.seconds == pytest.approx(in_place.end - barrier.end, rel=1e-2)  # type: ignore[union-attr, operator]


# -- flags -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sizes"),
    [
        (("-b", "8", "-e", "128", "-f", "2"), [8, 16, 32, 64, 128]),
        (("-b", "1K", "-e", "3K", "-i", "1K"), [1024, 2048, 3072]),
        (("-b", "2K", "-e", "2K"), [2048]),
        (("--minbytes", "1K", "--maxbytes", "2K", "--stepfactor", "2"), [1024, 2048]),
        (("-b", "10", "-e", "10"), [8]),  # whole elements
    ],
)
def test_sizes(arguments: tuple[str, ...], sizes: list[int]) -> None:
    result = bench(*arguments, "-g", "2")
    assert (result.exit_code, [int(row[0]) for row in rows(result)]) == (0, sizes)


def test_every_type_and_reduction() -> None:
    result = bench("-b", "100", "-e", "100", "-d", "all", "-o", "all", "-g", "3")
    assert result.exit_code == 0
    types = ["int8", "uint8", "int32", "int64", "half", "float", "double", "bfloat16"]
    ops = ["sum", "prod", "min", "max", "avg"]
    assert [(row[2], row[3]) for row in rows(result)] == [(kind, op) for kind in types for op in ops]
    assert all(row[8] == row[12] == "0" for row in rows(result))


def test_several_by_name() -> None:
    result = bench("-b", "64", "-e", "64", "-d", "half,int32", "-o", "max,avg", "-g", "2")
    assert [row[2:4] for row in rows(result)] == [["half", "max"], ["half", "avg"], ["int32", "max"], ["int32", "avg"]]


@pytest.mark.parametrize(("flag", "ranks"), [("-g", 1), ("--ngpus", 2), ("--ranks", 3), ("-g", 7)])
def test_world_sizes(flag: str, ranks: int) -> None:
    result = bench("-b", "1K", "-e", "1K", flag, str(ranks))
    assert result.exit_code == 0
    assert f"nGpus {ranks} " in result.stdout
    assert result.stdout.count("#  Rank") == ranks


def test_iterations_overlap_their_launches_and_warm_up_is_not_timed() -> None:
    """Enqueued together, operations hide their launches behind each other: the mean time falls."""
    once, many = (rows(bench("-b", "64", "-e", "64", "-n", n)) for n in ("1", "20"))
    assert float(many[0][5]) < float(once[0][5])
    warm = bench("-b", "64", "-e", "64", "-n", "20", "-w", "3")
    assert (warm.exit_code, rows(warm)[0][8], rows(warm)[0][12]) == (0, "0", "0")
    assert "warmup iters: 3 iters: 20" in warm.stdout


def test_without_check_there_are_no_values_and_the_same_times() -> None:
    checked, unchecked = bench(*SMALL), bench(*SMALL, "-c", "0")
    assert unchecked.exit_code == 0
    for with_values, without in zip(rows(checked), rows(unchecked), strict=True):
        assert [without[k] for k in (8, 12)] == ["N/A", "N/A"]
        assert [with_values[k] for k in (0, 9, 10, 11)] == [without[k] for k in (0, 9, 10, 11)]


def test_averages_are_ordered() -> None:
    times = [float(rows(bench("-b", "64", "-e", "64", "-a", kind))[0][5]) for kind in "0123"]
    assert times[2] <= min(times[0], times[1])
    assert max(times[0], times[1]) <= times[3]


def test_systems_nodes_and_algorithms() -> None:
    result = bench("-b", "1K", "-e", "1K", "--system", "dgx_h100", "--nodes", "2", "--algorithm", "ring_allreduce")
    assert result.exit_code == 0
    assert "system: dgx_h100, 2 nodes x 8 SIPs (switch)" in result.stdout
    assert "nGpus 16 " in result.stdout
    assert "on node 1 device  7 NVIDIA H100" in result.stdout


def test_seed_policy_and_isolation_change_no_figure() -> None:
    figures = {
        tuple(map(tuple, rows(bench(*SMALL, *options))))
        for options in [(), ("--seed", "5"), ("--policy", "random", "--seed", "7"), ("--isolation", "carrier")]
    }
    assert len(figures) == 1


@pytest.mark.parametrize("suffix", ["json", "json.gz", "svg"])
def test_the_trace_is_written(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"out.{suffix}"
    assert bench("-b", "1K", "-e", "1K", "-g", "2", "--trace", str(path)).exit_code == 0
    assert path.stat().st_size > 1000


def test_the_json_report(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    arguments = [*SMALL, "-g", "4", "-J", str(path)]
    result = bench(*arguments)
    report = json.loads(path.read_text())
    assert report["version"] == 1
    assert report["args"] == arguments
    assert report["config"]["ngpus"] == len(report["devices"]) == 4
    assert (report["config"]["minimum_bytes"], report["config"]["maximum_bytes"]) == (1024, 4096)
    assert report["out_of_bounds"] == {"count": 0, "okay": True}
    for row, entry in zip(rows(result), report["results"], strict=True):
        assert [str(entry[key]) for key in ("size", "count", "type", "redop", "root")] == row[:5]
        for place, cells in (("out_of_place", row[5:9]), ("in_place", row[9:13])):
            figures = entry[place]
            assert all(
                close(text, figures[key]) for text, key in zip(cells, ("time", "alg_bw", "bus_bw"), strict=False)
            )
            assert figures["nwrong"] == 0
            assert figures["alg_bw"] == pytest.approx(entry["size"] / figures["time"] / 1e3)
    busbw = [entry[place]["bus_bw"] for entry in report["results"] for place in ("out_of_place", "in_place")]
    assert report["average_bus_bandwidth"]["bandwidth"] == pytest.approx(sum(busbw) / len(busbw))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-b", "x"), "is not a size"),
        (("-b", "4K", "-e", "1K"), "below the smallest"),
        (("-b", "0"), "cannot start at 0"),
        (("-f", "1"), "x>=2"),
        (("-i", "0", "-e", "2K"), "never reaches"),
        (("-f", "2", "-i", "1K"), "exclude each other"),
        (("-d", "float128"), "unknown data type 'float128': expected int8"),
        (("-o", "sum,mul"), "unknown reduction 'mul': expected sum"),
        (("-n", "0"), "x>=1"),
        (("-w", "-1"), "x>=0"),
        (("-c", "2"), "0<=x<=1"),
        (("-g", "0"), "x>=1"),
        (("-g", "9"), "--nodes 2"),
        (("--nodes", "0"), "x>=1"),
        (("--system", "sip9"), "sip8"),
        (("--algorithm", "ring"), "ring_allreduce"),
        (("--algorithm", "ring_broadcast"), "implements broadcast"),
        (("--policy", "fair"), "round_robin"),
        (("--isolation", "process"), "carrier"),
        (("--trace", "out.png"), "ends in .json, .json.gz or .svg"),
        (("--trace", "no/such/folder/out.json"), "no folder"),
        (("-J", "no/such/folder/out.json"), "folder"),
        (("--sizes", "1K"), "No such option"),
        (("1K",), "unexpected extra argument"),
    ],
)
def test_bad_arguments_are_explained(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(ccl_allreduce.command, [*arguments], "bench") == 2
    out, err = capsys.readouterr()
    assert message in err
    assert "Traceback" not in err
    assert out == ""


# -- the verdict -------------------------------------------------------------------------------------------------------


def _reporting(spoil: Callable[[int, Any], None]) -> Callable[[int, int, Any], None]:
    """A worker that does the right thing, then spoils its own result before it reports."""

    def worker(rank: int, world_size: int, torch: Any) -> None:
        torch.distributed.init_process_group(rank=rank, world_size=world_size)
        bench = session_of(torch)
        for case in bench.plan.cases:
            for place in ("out_of_place", "in_place"):
                x = torch.zeros(case.count)
                bench.fill(x, case, rank)
                torch.distributed.all_reduce(x)
                spoil(rank, x)
                bench.record(case, place, rank, 1e-6, x)

    return worker


def test_a_replaced_worker_is_the_one_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ccl_allreduce, "worker", _reporting(lambda rank, x: None))
    result = bench("-b", "1K", "-e", "1K")
    assert (result.exit_code, rows(result)[0][5]) == (0, "1.00")


def test_a_wrong_value_is_counted_and_the_exit_code_is_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def spoil(rank: int, x: Any) -> None:
        if rank == 3:
            x[5] += 1e-3
            x[6] *= -1

    monkeypatch.setattr(ccl_allreduce, "worker", _reporting(spoil))
    result = bench("-b", "1K", "-e", "1K", "-J", str(tmp_path / "out.json"))
    assert result.exit_code == 1
    assert (rows(result)[0][8], rows(result)[0][12]) == ("2", "2")
    assert "# Out of bounds values : 4 FAILED" in result.stdout
    assert json.loads((tmp_path / "out.json").read_text())["out_of_bounds"] == {"count": 4, "okay": False}


def test_another_order_of_reduction_is_wrong_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result that is correct up to rounding, but not what the algorithm computes, does not pass."""

    def worker(rank: int, world_size: int, torch: Any) -> None:
        torch.distributed.init_process_group(rank=rank, world_size=world_size)
        bench = session_of(torch)
        (case,) = bench.plan.cases
        total = torch.zeros(case.count, dtype=torch.float64)
        for member in range(world_size):
            part = torch.zeros(case.count)
            bench.fill(part, case, member)
            total += part.double()
        for place in ("out_of_place", "in_place"):
            bench.record(case, place, rank, 1e-6, total.float())

    monkeypatch.setattr(ccl_allreduce, "worker", worker)
    result = bench("-b", "64K", "-e", "64K")
    assert result.exit_code == 1
    assert int(rows(result)[0][8]) > 1000


def test_a_worker_that_reports_nothing_fails_the_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ccl_allreduce, "worker", lambda rank, world_size, torch: None)
    result = bench("-b", "1K", "-e", "1K")
    assert result.exit_code == 1
    assert rows(result)[0][5:] == ["-"] * 8


def test_a_rank_that_raises_is_reported_with_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def worker(rank: int, world_size: int, torch: Any) -> None:
        torch.distributed.init_process_group(rank=rank, world_size=world_size)
        if rank == 2:
            raise ZeroDivisionError("sabotage")
        torch.distributed.barrier()

    monkeypatch.setattr(ccl_allreduce, "worker", worker)
    trace = tmp_path / "out.json"
    assert invoke(ccl_allreduce.command, ["-e", "1K", "--trace", str(trace)], "bench") == 1
    err = capsys.readouterr().err
    assert "Process 2 terminated" in err
    assert "ZeroDivisionError: sabotage" in err
    assert json.loads(trace.read_text())["otherData"]["title"] == "ccl_allreduce"


# -- run(ctx) ----------------------------------------------------------------------------------------------------------


def test_run_takes_any_context(topology: TopologyHandle, spec: Any) -> None:
    engine = GraphEngine(topology.topology_obj, enable_data=True)
    with RuntimeContext(engine=engine, target_device=DeviceSelector("all"), correlation_id="t", spec=spec) as ctx:
        results = ccl_allreduce.run(ctx)
        assert ctx._pending_worker_waits == []
    (row,) = results.rows
    assert (row.case.count, row.world_size, results.ok) == (8, spec["system"]["sips"]["count"], True)
    assert "# Out of bounds values : 0 OK" in str(results)


def test_run_reads_ccl_yaml_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ccl.yaml").write_text("defaults: {n_elem: 24}\nalgorithms: {ring_allreduce: {world_size: 5}}\n")
    monkeypatch.chdir(tmp_path)
    with kernbench.simulate() as ctx:
        (row,) = ccl_allreduce.run(ctx).rows
    assert (row.case.count, row.world_size) == (24, 5)


def test_run_calls_the_worker_of_the_moment_once_per_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int, bool]] = []
    with kernbench.simulate() as ctx:
        monkeypatch.setattr(ccl_allreduce, "worker", lambda rank, size, torch: calls.append((rank, size, torch is ctx)))
        ccl_allreduce.run(ctx)
    assert calls == [(rank, 8, True) for rank in range(8)]


def test_the_worker_runs_without_run() -> None:
    with kernbench.simulate() as ctx:
        ctx.multiprocessing.spawn(ccl_allreduce.worker, args=(4, ctx), nprocs=4)
        assert [op.name for op in ctx.engine.op_log.operations if op.kind == "collective" and op.rank == 0] == [
            "barrier", "all_reduce", "barrier", "all_reduce",
        ]  # fmt: skip


def test_two_runs_in_one_context_are_separate() -> None:
    with kernbench.simulate() as ctx:
        first, second = (ccl_allreduce.run(ctx, Plan.of([nbytes])) for nbytes in (64, 128))
    assert [row.case.nbytes for row in (*first.rows, *second.rows)] == [64, 128]
    assert first.ok
    assert second.ok


def test_ranks_option_is_the_world_size_of_the_configuration() -> None:
    with SimulationOptions(ranks=3).open("t") as ctx:
        assert ctx.distributed.get_world_size() == 3
