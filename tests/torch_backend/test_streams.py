"""Programs for GPUs: the host runs ahead of its streams, and groups communicate side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import kernbench
from kernbench.errors import DeadlockError
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.sim_engine.operation import Operation

N = 1 << 22


def run(body: Callable[[Any], None], world: int = 4, backend: str = "nccl", **options: Any) -> list[Operation]:
    """What rank 0 enqueued while it ran ``body(ctx)``."""

    def worker(rank: int, ctx: Any) -> None:
        dist.init_process_group(backend)
        body(ctx)

    with kernbench.simulate("dgx_h100", **options) as ctx:
        ctx.multiprocessing.spawn(worker, args=(ctx,), nprocs=world)
        return [op for op in ctx.engine.op_log.operations if op.rank == 0]


def named(operations: list[Operation], name: str) -> list[Operation]:
    return [op for op in operations if op.name.partition(".")[0] == name]


def test_a_collective_does_not_stop_the_host_of_a_gpu_program() -> None:
    seen = {}

    def body(ctx: Any) -> None:
        x = torch.ones(N, device="cuda")
        torch.cuda.synchronize()
        before = ctx.now()
        dist.all_reduce(x)
        y = x + 1
        seen["host"] = ctx.now() - before
        seen["value"] = y[0].item()
        seen["device"] = ctx.now() - before

    operations = run(body)
    (collective,), (add,) = named(operations, "all_reduce"), named(operations, "add")
    assert seen["host"] < 20e-6 < collective.end - collective.start
    assert add.start >= collective.end
    assert seen["value"] == 5
    assert seen["device"] >= add.end - collective.start


@pytest.mark.parametrize("asks", ["event", "stream", "both"])
def test_a_host_that_asks_until_a_copy_is_over_gets_there(asks: str) -> None:
    seen = {}

    def body(ctx: Any) -> None:
        x, host = torch.ones(N, device="cuda"), torch.empty(N).pin_memory()
        torch.cuda.synchronize()
        late, early = torch.cuda.Event(), torch.cuda.Event()
        early.record()
        host.copy_(x, non_blocking=True)
        late.record()
        stream, looks = torch.cuda.current_stream(), 0
        while not {"event": late.query, "stream": stream.query, "both": lambda: late.query() and stream.query()}[
            asks
        ]():
            assert asks != "both" or early.query()
            looks += 1
        seen["looks"], seen["now"] = looks, ctx.now()

    operations = run(body, world=1)
    end = max(op.end for op in operations)
    assert 1 <= seen["looks"] < 10
    assert end <= seen["now"] < end + 5e-6


@pytest.mark.parametrize("case", ["gloo", "blocking wait"])
def test_it_does_where_the_program_asks_for_that(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def body(ctx: Any) -> None:
        x = torch.ones(N, device="cpu" if case == "gloo" else "cuda")
        before = ctx.now()
        dist.all_reduce(x)
        assert ctx.now() - before > 50e-6

    if case == "blocking wait":
        monkeypatch.setenv("TORCH_NCCL_BLOCKING_WAIT", "1")
    run(body, backend="gloo" if case == "gloo" else "nccl")


def test_groups_communicate_at_once_and_share_the_links() -> None:
    def body(ctx: Any, groups: int) -> None:
        made = [dist.new_group() for _ in range(groups)]
        tensors = [torch.ones(N, device="cuda") for _ in made]
        torch.cuda.synchronize()
        for work in [dist.all_reduce(x, group=g, async_op=True) for x, g in zip(tensors, made, strict=True)]:
            work.wait()

    alone = named(run(lambda ctx: body(ctx, 1)), "all_reduce")
    first, second = named(run(lambda ctx: body(ctx, 2)), "all_reduce")
    assert first.stream != second.stream
    assert second.start < first.end
    took = alone[0].end - alone[0].start
    assert took < second.end - first.start < 2.2 * took


def test_streams_run_side_by_side_and_wait_for_what_they_are_told_to() -> None:
    def body(ctx: Any) -> None:
        a = torch.ones(2048, 2048, device="cuda")
        side, event = torch.cuda.Stream(), torch.cuda.Event()
        side.wait_stream(torch.cuda.current_stream())
        a @ a
        with torch.cuda.stream(side):
            assert torch.cuda.current_stream() == side
            b = a @ a
            event.record()
        assert torch.cuda.current_stream() == torch.cuda.default_stream()
        event.wait()
        b + 1

    operations = run(body, 1)
    (main, side), (add,), (made,) = named(operations, "mm"), named(operations, "add"), named(operations, "ones")
    assert main.stream != side.stream
    assert made.end <= side.start < main.end
    assert add.start >= max(side.end, main.end)


@pytest.mark.long  # seconds
def test_asynchronous_collectives_hide_behind_computation() -> None:
    def body(ctx: Any) -> None:
        x, a = torch.ones(N, device="cuda"), torch.ones(4096, 4096, device="cuda")
        work = dist.all_reduce(x, async_op=True)
        a @ a
        work.wait()
        x + 1

    operations = run(body)
    (collective,), (product,), (add,) = (named(operations, name) for name in ("all_reduce", "mm", "add"))
    assert collective.start <= product.start < collective.end < product.end
    assert add.start >= product.end


def test_a_wait_that_nobody_can_end_is_explained() -> None:
    def body(ctx: Any) -> None:
        if dist.get_rank() != 1:
            dist.all_reduce(torch.ones(4, device="cuda"))

    with pytest.raises(SpawnException) as caught:
        run(body, 2)
    error = caught.value.errors[0]
    assert isinstance(error, DeadlockError)
    assert "rank 0: waits in all_reduce #0" in str(error)
    assert "rank 1 must call all_reduce" in str(error)


def test_the_timeline_is_the_same_twice() -> None:
    def body(ctx: Any) -> None:
        x = torch.ones(N, device="cuda")
        for _ in range(3):
            dist.all_reduce(x)
            x *= 0.5

    first, second = ([(op.name, op.start, op.end) for op in run(body, 8)] for _ in range(2))
    assert first == second


def test_the_value_of_a_future_is_there_once_the_stream_waits_for_it() -> None:
    """C++ code (DDP's reducer, after an uneven join) asks for it without letting other ranks run."""
    stock_done, seen = torch._C.Future.done, {}

    def body(ctx: Any) -> None:
        early, late = (dist.all_reduce(torch.ones(N, device="cuda"), async_op=True) for _ in range(2))
        future = early.get_future()
        for work in (early, late):
            work.wait()
        seen["done"] = [stock_done(each) for each in (future, late.get_future())]
        seen["values"] = [each.value()[0][0].item() for each in (future, late.get_future())]

    run(body)
    assert seen == {"done": [True, True], "values": [4.0, 4.0]}


def test_a_stream_is_entered_by_the_name_that_a_program_has_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """As vLLM keeps the current stream."""
    seen: list[object] = []

    def worker(rank: int) -> None:
        stock = torch.cuda.set_stream

        def keep(stream: torch.cuda.Stream) -> None:
            seen.append(stream)
            stock(stream)

        monkeypatch.setattr(torch.cuda, "set_stream", keep)
        before, other = torch.cuda.current_stream(), torch.cuda.Stream()
        with torch.cuda.stream(other):
            assert torch.cuda.current_stream() == other
        assert torch.cuda.current_stream() == before
        assert seen == [other, before]
        with other:
            assert torch.cuda.current_stream() == other
        assert torch.cuda.current_stream() == before
        monkeypatch.undo()

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
    assert len(seen) == 2


@pytest.mark.parametrize("data", [True, False], ids=["data", "no-data"])
def test_events_that_have_not_happened_have_no_time_between_them(data: bool) -> None:
    with kernbench.simulated_gpu("dgx_h100", enable_data=data):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        torch.cuda._sleep(1_000_000)
        last.record()
        with pytest.raises(torch.AcceleratorError, match="CUDA error: device not ready"):
            first.elapsed_time(last)
        last.synchronize()
        assert first.elapsed_time(last) > 0.5


def test_a_stream_of_another_gpu_makes_that_the_current_one() -> None:
    with kernbench.simulated_gpu("dgx_h100"):
        other = torch.cuda.Stream(device=1)
        for chosen in (torch.cuda.stream(other), other):
            with chosen:
                assert torch.cuda.current_device() == torch.cuda.current_stream().device.index == 1
                assert torch.ones(1, device="cuda").device.index == 1
            assert torch.cuda.current_device() == torch.cuda.current_stream().device.index == 0
        torch.cuda.set_stream(other)
        assert torch.cuda.current_device() == 1
