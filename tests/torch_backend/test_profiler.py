"""``torch.profiler`` in ranks: the tables, events and traces that a GPU would give, in virtual time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import triton
import triton.language as tl
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function, schedule, supported_activities

import kernbench
from kernbench.trace.reading import read_trace


@triton.jit
def scale_kernel(x, out, factor, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + index, tl.load(x + index) * factor)


def train(steps: int = 1) -> None:
    """Steps with products, a gradient, a collective, a kernel of the program's own and a look at a number."""
    model = torch.nn.Linear(256, 512).cuda()
    x = torch.ones(128, 256, device="cuda")
    for _ in range(steps):
        with record_function("forward"):
            loss = model(x).square().mean()
        loss.backward()
        dist.all_reduce(model.weight.grad)
        out = torch.empty_like(x)
        scale_kernel[(32,)](x, out, 2.0, BLOCK=1024)
        loss.item()


def spawned(body: Callable[[], Any], world: int = 2, *, isolation: str = "carrier", **options: Any) -> tuple[Any, Any]:
    """Rank 0's results, and the simulation's operations of it."""
    found = {}

    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        torch.manual_seed(0)
        dist.init_process_group("nccl")
        found[rank] = body()

    with kernbench.simulate("dgx_h100", **options) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=world, isolation=isolation)
        return found.get(0), [op for op in ctx.engine.op_log.operations if op.rank == 0]


def test_kernels_have_the_times_of_the_simulation() -> None:
    def body() -> Any:
        train()
        torch.cuda.synchronize()
        with profile() as profiled:
            train()
        on_gpu = [event for event in profiled.events() if event.device_type == DeviceType.CUDA]
        rows = {row.key: row for row in profiled.key_averages()}
        return [(event.name, event.time_range.elapsed_us()) for event in on_gpu], rows

    (events, rows), operations = spawned(body)
    ran = operations[-len(events) :]
    by_start = sorted(ran, key=lambda op: op.enqueue)
    in_nanoseconds = pytest.approx(sorted((op.end - op.start) * 1e6 for op in by_start), abs=2e-3)
    assert sorted(us for _, us in events) == in_nanoseconds
    names = [name for name, _ in events]
    assert {"scale_kernel", "ncclDevKernel_AllReduce_Sum_f32", "Memcpy DtoH (Device -> Host)"} <= set(names)
    assert rows["aten::addmm"].count == 1
    assert rows["addmm.default"].self_device_time_total > 0
    assert rows["aten::addmm"].device_time_total == pytest.approx(rows["addmm.default"].self_device_time_total)
    assert rows["forward"].device_time_total > rows["aten::addmm"].device_time_total
    assert rows["nccl:all_reduce"].count == rows["cuLaunchKernel"].count == 1
    assert rows["cudaMemcpyAsync"].count == 3  # two parameters, and the loss
    assert rows["cudaStreamSynchronize"].cpu_time_total > 0
    assert rows["cudaLaunchKernel"].cpu_time_total == pytest.approx(rows["cudaLaunchKernel"].count * 4.0)


def test_tables_are_printed_with_columns_of_the_gpu() -> None:
    def body() -> str:
        with profile(with_flops=True) as profiled:
            train()
        return str(profiled.key_averages().table(sort_by="cuda_time_total"))

    table, _ = spawned(body)
    again, _ = spawned(body)
    assert table == again
    assert "Self CUDA time total" in table
    assert "FLOPs" in table
    assert "aten::slice" not in table  # how the host computes it


def test_the_trace_is_read_as_one_of_a_gpu(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"

    def body() -> None:
        with profile(record_shapes=True) as profiled:
            train()
        if dist.get_rank() == 0:
            profiled.export_chrome_trace(str(path))
            profiled.export_chrome_trace(str(path) + ".gz")

    spawned(body)
    document = json.loads(path.read_text())
    assert document["distributedInfo"]["world_size"] == 2
    assert document["deviceProperties"][0]["name"] == "NVIDIA H100 80GB HBM3"
    events = document["traceEvents"]
    launches = {
        e["args"]["correlation"]: e for e in events if e.get("cat") == "cuda_runtime" and "correlation" in e["args"]
    }
    kernels = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy")]
    calls = {e["args"]["External id"]: e for e in events if e.get("cat") == "cpu_op"}
    for kernel in kernels:
        launch = launches[kernel["args"]["correlation"]]
        assert launch["ts"] <= kernel["ts"]
    product = next(kernel for kernel in kernels if kernel["name"] == "addmm.default")
    caller = calls[product["args"]["External id"]]
    assert (caller["name"], caller["args"]["Input Dims"][1]) == ("aten::addmm", [128, 256])
    collective = next(kernel for kernel in kernels if "nccl" in kernel["name"])
    assert (collective["args"]["In msg nelems"], collective["args"]["Group size"]) == (256 * 512, 2)
    assert {e["id"] for e in events if e["ph"] == "s" and e["cat"] == "ac2g"} == set(launches)
    assert any(e["ph"] == "f" and e["cat"] == "fwdbwd" for e in events)

    spans = read_trace(path).spans
    assert read_trace(f"{path}.gz").spans == spans
    assert {span.kind for span in spans} == {"kernel", "dma", "collective", "launch", "wait"}
    assert {span.rank for span in spans} == {0}


@pytest.mark.parametrize("other", [{"isolation": "process"}, {"enable_data": False}], ids=["processes", "no data"])
def test_the_trace_is_the_same(other: dict[str, Any], tmp_path: Path) -> None:
    def traced(name: str, **options: Any) -> bytes:
        path = tmp_path / name

        def body() -> None:
            train()
            with profile(record_shapes=True, profile_memory=True) as profiled:
                train(2)
            if dist.get_rank() == 0:
                profiled.export_chrome_trace(str(path))

        spawned(body, **options)
        return path.read_bytes()

    assert traced("one.json") == traced("other.json", **other)


def test_steps_of_a_schedule_are_in_it() -> None:
    def body() -> Any:
        cycles: list[Any] = []
        plan = schedule(wait=1, warmup=1, active=2, repeat=2)
        with profile(schedule=plan, on_trace_ready=lambda each: cycles.append(each.key_averages())) as profiled:
            for _ in range(8):
                train()
                profiled.step()
        return [{row.key: row.count for row in rows} for rows in cycles]

    cycles, _ = spawned(body)
    assert [rows["ProfilerStep*"] for rows in cycles] == [2, 2]
    assert [rows["scale_kernel"] for rows in cycles] == [2, 2]


def test_cycles_are_kept_if_asked_for() -> None:
    def body() -> Any:
        profiled = profile(acc_events=True, schedule=schedule(wait=0, warmup=0, active=1))
        with profiled:
            for _ in range(2):
                train()
                profiled.step()
        return {row.key: row.count for row in profiled.key_averages()}

    counts, _ = spawned(body)
    assert counts["scale_kernel"] == 2


def test_memory_of_the_gpu() -> None:
    def body() -> Any:
        with profile(profile_memory=True) as profiled:
            x = torch.ones(1 << 20, device="cuda")
            y = x * 2
            del x, y
        return {row.key: row.self_device_memory_usage for row in profiled.key_averages()}

    used, _ = spawned(body)
    assert used["aten::mul"] == 4 << 20
    assert used["[memory]"] == -8 << 20


def test_a_profile_of_the_host_alone() -> None:
    def body() -> Any:
        with profile(activities=[ProfilerActivity.CPU]) as profiled:
            train()
        return profiled.events()

    events, _ = spawned(body)
    assert all(event.device_type == DeviceType.CPU for event in events)
    assert all(event.device_time_total == 0 for event in events)
    assert any(event.name == "aten::mm" for event in events)


def test_what_runs_on_the_gpu_alone() -> None:
    def body() -> Any:
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            train()
        return profiled.events()

    events, _ = spawned(body)
    assert {event.device_type for event in events if not event.is_async} == {DeviceType.CUDA}


def test_a_replayed_graph_is_one_launch() -> None:
    def body() -> Any:
        x = torch.ones(1 << 20, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = (x * 2 + 1).relu()
        with profile() as profiled:
            graph.replay()
            graph.replay()
        assert float(y[0]) == 3
        return {row.key: row.count for row in profiled.key_averages()}

    counts, _ = spawned(body)
    assert counts["cudaGraphLaunch"] == 2
    assert "cudaLaunchKernel" not in counts
    assert counts["mul.Tensor"] == counts["relu.default"] == 2


def test_profilers_are_not_nested() -> None:
    def body() -> str:
        with profile() as outer:
            with pytest.raises(RuntimeError, match="already on"), profile():
                pass
            train()
        return str(outer.key_averages().table())

    table, _ = spawned(body)
    assert "scale_kernel" in table


def test_a_profiler_knows_of_gpus_in_ranks() -> None:
    activities, _ = spawned(supported_activities)
    assert activities == {ProfilerActivity.CPU, ProfilerActivity.CUDA}


def test_switching_collection_is_refused() -> None:
    def body() -> None:
        with profile() as profiled, pytest.raises(kernbench.KernbenchError, match="schedule"):
            profiled.toggle_collection_dynamic(False, [ProfilerActivity.CUDA])

    spawned(body)


def test_ranges_for_a_profiler_of_cudas_are_accepted() -> None:
    with kernbench.simulated_gpu("dgx_h100"):
        with torch.autograd.profiler.emit_nvtx() as ranges:
            assert torch.ones(3, device="cuda").sum().item() == 3
        with pytest.raises(RuntimeError, match="not reentrant"):
            ranges.__enter__()
