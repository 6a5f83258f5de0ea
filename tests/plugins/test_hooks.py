"""What plugins receive over the life of a run, and that receiving it changes nothing."""

from __future__ import annotations

import inspect
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import kernbench
from kernbench.plugins import PluginError, PluginWarning
from kernbench.runtime_api.context import RuntimeContext
from tests.plugins.recorder import Recorder

ISOLATIONS = ("carrier", "greenlet")


def double(index: int, x: torch.Tensor) -> None:
    x.mul_(2)


def program(ctx: RuntimeContext) -> Callable[[int], None]:
    def worker(rank: int) -> None:
        x = ctx.full((256,), float(rank))
        y = x @ x
        ctx.launch(double, 1, x, name="double")
        ctx.distributed.all_reduce(x)
        if rank == 0:
            ctx.distributed.send(x, 1)
        elif rank == 1:
            ctx.distributed.recv(x, 0)
        assert float(y) == 256.0 * rank**2

    return worker


def run(recorder: Any, isolation: str = "greenlet", ranks: int = 4, **options: Any) -> RuntimeContext:
    with kernbench.simulate(plugins=[recorder] if recorder is not None else (), **options) as ctx:
        ctx.multiprocessing.spawn(program(ctx), nprocs=ranks, isolation=isolation)
    return ctx


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_run_is_told_from_its_beginning_to_its_end(isolation: str) -> None:
    recorder = Recorder()
    ctx = run(recorder, isolation, correlation_id="mine", seed=3)
    assert recorder.names[0] == "context_opened"
    assert recorder.names[-2:] == ["timeline_finished", "context_closed"]
    opened, closed = recorder.of("context_opened")[0], recorder.of("context_closed")[0]
    assert (opened.system, opened.sips, opened.seed, opened.correlation_id, opened.time) == ("sip8", 8, 3, "mine", 0.0)
    assert closed.time == recorder.of("timeline_finished")[0].time == ctx.engine.latest_end > 0
    assert recorder.of("timeline_finished")[0].operations == len(ctx.engine.op_log.operations)
    assert recorder.of("timeline_finished")[0].collectives == len(ctx.engine.op_log.collectives) == 2


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_ranks_start_and_end_once(isolation: str) -> None:
    recorder = Recorder()
    run(recorder, isolation)
    assert [event.rank for event in recorder.of("rank_started")] == [0, 1, 2, 3]
    assert sorted(event.rank for event in recorder.of("rank_ended")) == [0, 1, 2, 3]
    assert {(event.world_size, event.outcome) for event in recorder.of("rank_ended")} == {(4, "returned")}
    assert all(event.time > 0 for event in recorder.of("rank_ended"))
    assert not recorder.of("rank_failed")


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("enable_data", [True, False])
def test_kernels_are_told_with_the_times_of_the_log(isolation: str, enable_data: bool) -> None:
    recorder = Recorder()
    with kernbench.simulate(plugins=[recorder], enable_data=enable_data) as ctx:

        def worker(rank: int) -> None:
            x = ctx.full((256,), float(rank))
            x @ x
            ctx.launch(double, 1, x, name="double")

        ctx.multiprocessing.spawn(worker, nprocs=2, isolation=isolation)
    launched = {event.number: event for event in recorder.of("kernel_launched")}
    completed = {event.number: event for event in recorder.of("kernel_completed")}
    assert launched.keys() == completed.keys()
    assert {(event.name, event.kind) for event in launched.values()} >= {("double", "kernel"), ("dot.default", "gemm")}
    logged = sorted(
        (record.name, record.kind, record.rank, record.start, record.end, record.nbytes)
        for record in ctx.engine.op_log.records(steps=False)
        if record.stream == "compute"
    )
    told = [(e.name, e.kind, e.rank, e.start, e.end, e.nbytes) for e in completed.values()]
    assert sorted(told) == logged
    assert next(event.detail for event in completed.values() if event.name == "double") == {"grid": [1]}


def test_a_kernel_has_completed_when_its_values_are_there() -> None:
    seen: list[float] = []

    class Looks:
        def kernbench_kernel_completed(self, ctx: RuntimeContext, event: Any) -> None:
            if event.name == "double":
                seen.append(float(memory[0]))

    with kernbench.simulate(plugins=[Looks()]) as ctx:
        x = ctx.ones(4)
        memory = x.numpy()
        ctx.launch(double, 1, x, name="double")
        assert seen == []
        ctx.synchronize()
    assert seen == [2.0]


def test_a_failed_kernel_is_told_with_its_error() -> None:
    def fails(index: int, x: torch.Tensor) -> None:
        raise ValueError("in the kernel")

    recorder = Recorder()
    with pytest.raises(ValueError, match="in the kernel"), kernbench.simulate(plugins=[recorder]) as ctx:
        ctx.wait(ctx.launch(fails, 1, ctx.ones(4)))
    assert [event.error for event in recorder.of("kernel_completed") if event.kind == "kernel"] == [
        "ValueError: in the kernel"
    ]


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_collectives_are_enqueued_matched_and_completed(isolation: str) -> None:
    recorder = Recorder()
    ctx = run(recorder, isolation)
    enqueued = [event for event in recorder.of("collective_enqueued") if event.op == "all_reduce"]
    (matched,) = (event for event in recorder.of("collective_matched") if event.op == "all_reduce")
    (completed,) = (event for event in recorder.of("collective_completed") if event.op == "all_reduce")
    assert sorted(event.ranks for event in enqueued) == [(0,), (1,), (2,), (3,)]
    assert matched.ranks == completed.ranks == (0, 1, 2, 3)
    assert (matched.shape, matched.dtype, matched.reduction, matched.nbytes) == ((256,), "float32", "sum", 1024)
    assert Path(matched.location.partition(":")[0]).name == "test_hooks.py"
    trace = next(trace for trace in ctx.engine.op_log.collectives if trace.detail["op"] == "all_reduce")
    assert matched.steps == completed.steps == len(trace.run.plan)
    parts = [op for op in ctx.engine.op_log.operations if op.name == "all_reduce"]
    assert completed.start == min(op.start for op in parts if op.start is not None)
    assert completed.end == max(op.end for op in parts if op.end is not None)
    assert max(event.start for event in enqueued) == matched.start


def test_messages_are_collectives_of_two() -> None:
    recorder = Recorder()
    run(recorder)
    sides = [event for event in recorder.of("collective_enqueued") if event.op in ("send", "recv")]
    assert sorted((event.op, event.ranks, event.peer, event.sequence) for event in sides) == [
        ("recv", (1,), 0, -1), ("send", (0,), 1, -1),
    ]  # fmt: skip
    (completed,) = (event for event in recorder.of("collective_completed") if event.op == "send")
    assert completed.ranks == (0, 1)
    assert completed.sequence == -1


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_host_reads_are_told(isolation: str) -> None:
    recorder = Recorder()
    run(recorder, isolation)
    reads = recorder.of("host_read")
    assert [(event.name, event.shape, event.nbytes) for event in reads] == [("__float__", (), 4)] * 4
    assert sorted(event.rank for event in reads) == [0, 1, 2, 3]


def test_host_reads_of_torch_tensors_on_a_simulated_gpu() -> None:
    recorder = Recorder()

    def worker(rank: int) -> None:
        x = torch.ones(8, device="cuda")
        x.cpu()
        x.sum().item()

    with kernbench.simulate(plugins=[recorder]) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
    assert [(event.name, event.nbytes) for event in recorder.of("host_read")] == [
        ("cpu", 32),
        ("_local_scalar_dense", 4),
    ]


def test_triton_kernels_are_told_with_their_counts() -> None:
    triton = pytest.importorskip("triton")
    tl = triton.language

    @triton.jit
    def scale(x, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        tl.store(x + at, tl.load(x + at) * 2)

    recorder = Recorder()
    with kernbench.simulate(plugins=[recorder]) as ctx:
        scale.fn.__globals__["tl"] = tl
        ctx.launch(scale, 1, ctx.ones(16), BLOCK=16)
    (launched,) = (event for event in recorder.of("kernel_launched") if event.kind == "kernel")
    (completed,) = (event for event in recorder.of("kernel_completed") if event.kind == "kernel")
    assert launched.number == completed.number
    assert launched.end is None
    assert completed.end is not None
    assert completed.detail["bytes_read"] == 64


# -- failures ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_root_causes_are_told_and_the_others_are_unwound(isolation: str) -> None:
    recorder = Recorder()

    def worker(rank: int) -> None:
        if rank == 2:
            raise ValueError("rank two")
        ctx.distributed.barrier()

    with kernbench.simulate(plugins=[recorder]) as ctx, pytest.raises(kernbench.SpawnException):
        ctx.multiprocessing.spawn(worker, nprocs=3, isolation=isolation)
    (failed,) = recorder.of("rank_failed")
    assert (failed.rank, failed.outcome, failed.error) == (2, "raised", "ValueError: rank two")
    assert "in worker" in failed.traceback
    assert {(event.rank, event.outcome) for event in recorder.of("rank_ended")} == {(0, "unwound"), (1, "unwound")}
    assert "collective_matched" not in recorder.names
    assert recorder.names[-2:] == ["timeline_finished", "context_closed"]


def test_ranks_that_never_start_never_end() -> None:
    recorder = Recorder()

    def worker(rank: int) -> None:
        raise ValueError

    with kernbench.simulate(plugins=[recorder]) as ctx, pytest.raises(kernbench.SpawnException):
        ctx.multiprocessing.spawn(worker, nprocs=4, isolation="greenlet")
    started = {event.rank for event in recorder.of("rank_started")}
    ended = {event.rank for event in (*recorder.of("rank_ended"), *recorder.of("rank_failed"))}
    assert started == ended == {0}


def test_a_deadlock_is_told_before_the_ranks_are() -> None:
    recorder = Recorder()
    with kernbench.simulate(plugins=[recorder]) as ctx, pytest.raises(kernbench.SpawnException) as caught:
        ctx.multiprocessing.spawn(lambda rank: ctx.distributed.barrier() if rank else None, nprocs=3)
    (deadlock,) = recorder.of("deadlock_detected")
    assert deadlock.ranks == (1, 2)
    assert deadlock.report == str(caught.value.errors[1])
    assert recorder.names.index("deadlock_detected") < recorder.names.index("rank_failed")


def test_a_kernel_that_nobody_completes_is_a_deadlock_too() -> None:
    recorder = Recorder()
    with kernbench.simulate(plugins=[recorder]) as ctx, pytest.raises(kernbench.SpawnException):
        ctx.multiprocessing.spawn(
            lambda rank: ctx.distributed.all_reduce(ctx.ones(1), async_op=True) if rank else None, nprocs=2
        )
    assert len(recorder.of("deadlock_detected")) == 1
    assert [(event.rank, event.outcome) for event in recorder.of("rank_failed")] == [(1, "raised")]


# -- being told changes nothing ------------------------------------------------------------------------------------------


class Meddler:
    """Does in every hook what an observer must be able to do, and what it must not."""

    def __init__(self) -> None:
        self.looked: list[float] = []
        self.clocks: list[float] = []

    def _meddle(self, ctx: RuntimeContext) -> None:
        torch.ones(64) @ torch.ones(64)
        self.looked.append(float(torch.arange(4.0).sum()))
        self.clocks.append(time.time())
        mine = ctx.empty
        assert callable(mine)

    def kernbench_kernel_launched(self, ctx: RuntimeContext) -> None:
        self._meddle(ctx)

    def kernbench_collective_enqueued(self, ctx: RuntimeContext) -> None:
        self._meddle(ctx)

    def kernbench_collective_completed(self, ctx: RuntimeContext) -> None:
        self._meddle(ctx)

    def kernbench_host_read(self, ctx: RuntimeContext) -> None:
        self._meddle(ctx)

    def kernbench_rank_started(self, ctx: RuntimeContext) -> None:
        self._meddle(ctx)


def _timeline(ctx: RuntimeContext) -> list[Any]:
    return [
        (record.name, record.rank, record.stream, record.enqueue, record.start, record.end)
        for record in ctx.engine.op_log.records()
    ]


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_what_an_observer_computes_is_not_part_of_the_program(isolation: str) -> None:
    meddler = Meddler()
    before = time.time()
    assert _timeline(run(meddler, isolation)) == _timeline(run(None, isolation))
    assert len(meddler.looked) > 20
    assert before <= min(meddler.clocks)  # the host's clock, not the rank's
    assert max(meddler.clocks) <= time.time()


@pytest.mark.parametrize(
    ("act", "what"),
    [
        (lambda ctx: ctx.sleep(1.0), "wait"),
        (lambda ctx: ctx.launch(double, 1, ctx.ones(4)), "launch"),
        (lambda ctx: ctx.distributed.barrier(), "communicate"),
    ],
)
def test_an_observer_cannot_take_part(act: Callable[[RuntimeContext], Any], what: str) -> None:
    class TakesPart:
        def kernbench_rank_started(self, ctx: RuntimeContext) -> None:
            act(ctx)

    with pytest.warns(PluginWarning, match=f"a plugin that observes cannot {what}"):
        ctx = run(TakesPart())
    assert _timeline(ctx) == _timeline(run(None))


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_an_observer_that_always_fails_fails_no_run(isolation: str) -> None:
    class Broken(Recorder):
        pass

    for hook in [name for name, _ in inspect.getmembers(Recorder, callable) if name.startswith("kernbench_")]:
        setattr(Broken, hook, _broken(hook))
    with pytest.warns(PluginWarning) as caught:
        ctx = run(Broken(), isolation)
    assert _timeline(ctx) == _timeline(run(None, isolation))
    failed_in = [str(warning.message).split()[4].rstrip(";") for warning in caught]
    assert len(failed_in) == len(set(failed_in))
    assert set(failed_in) >= {"kernbench_context_opened", "kernbench_kernel_completed", "kernbench_context_closed"}


def _broken(hook: str) -> Any:
    def broken(self: Any) -> None:
        raise random.choice([ValueError, SystemExit])(hook)

    return broken


def test_without_a_listener_nothing_is_wired() -> None:
    class Options:
        def kernbench_systems(self) -> dict[str, str]:
            return {}

    with kernbench.simulate(plugins=[Options()]) as ctx:
        assert ctx.simulation.hooks is None
        assert ctx.scheduler.observer is None
        assert ctx.simulation.executor.on_settled is None
        assert ctx.engine.cost_model is None


# -- setup hooks in a simulation -----------------------------------------------------------------------------------------


class TenTimes:
    def seconds(self, op: Any, modelled: float) -> float:
        return 10 * modelled


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_cost_model_says_how_long_operations_take(isolation: str) -> None:
    class Slow:
        def kernbench_cost_model(self, topology: Any) -> TenTimes:
            assert topology.sip_count == 8
            return TenTimes()

    def lengths(ctx: RuntimeContext) -> list[tuple[str, int | None, float]]:
        records = ctx.engine.op_log.records(steps=False)
        # who reads first is a matter of time, so of the model: compare rank by rank
        return sorted((r.name, r.rank, r.end - r.start) for r in records if r.kind != "collective")

    slow, stock = lengths(run(Slow(), isolation)), lengths(run(None, isolation))
    assert [(name, rank) for name, rank, _ in slow] == [(name, rank) for name, rank, _ in stock]
    assert [seconds for *_, seconds in slow] == pytest.approx([10 * seconds for *_, seconds in stock], rel=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), -1.0, "soon"])
def test_a_cost_model_that_talks_nonsense_is_named(bad: Any) -> None:
    class Nonsense:
        def kernbench_cost_model(self) -> Any:
            return self

        def seconds(self, op: Any, modelled: float) -> Any:
            return bad

    with (
        kernbench.simulate(plugins=[Nonsense()]) as ctx,
        pytest.raises(PluginError, match="cost model of plugin Nonsense"),
    ):
        ctx.ones(4).sum()


def test_systems_and_algorithms_of_a_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny.yaml").write_text(
        "system:\n  name: tiny\n  sips: {count: 2, device: sip, topology: ring_1d, link: {bandwidth: 1 GB/s, latency: 1 us}}\n"
    )
    (tmp_path / "acme_exchange.py").write_text(EXCHANGE)
    monkeypatch.syspath_prepend(tmp_path)

    class Acme:
        def kernbench_systems(self) -> dict[str, Any]:
            return {"acme_tiny": tmp_path / "tiny.yaml"}

        def kernbench_algorithms(self) -> dict[str, Any]:
            return {"acme_exchange": "acme_exchange"}

    recorder, results = Recorder(), []
    with kernbench.simulate("acme_tiny", plugins=[Acme(), recorder]) as ctx:

        def worker(rank: int) -> None:
            x = ctx.full((3,), rank + 1.0)
            ctx.distributed.all_reduce(x, algorithm="acme_exchange")
            results.append(x.tolist())

        ctx.multiprocessing.spawn(worker, nprocs=2)
    assert results == [[3.0] * 3] * 2
    (matched,) = recorder.of("collective_matched")
    assert (matched.algorithm, matched.steps) == ("acme_exchange", 2)
    with pytest.raises(kernbench.ConfigError, match="no shipped system is called 'acme_tiny'"):
        kernbench.resolve_topology("acme_tiny")


EXCHANGE = '''
import numpy as np
from kernbench.ccl.schedule import ScheduleBuilder

COLLECTIVE = "all_reduce"
TOPOLOGIES = ("all_to_all",)


def build(members):
    """Both send to each other."""
    exchange = ScheduleBuilder("exchange", members, chunks=1)
    member = np.arange(members)
    exchange.round(member, member[::-1], 0, reduce=True)
    return exchange.build()
'''


def test_options_reach_the_context() -> None:
    import click

    class Chatty:
        def kernbench_options(self) -> list[click.Option]:
            return [click.Option(["--loud/--quiet"], default=False), click.Option(["--level"], type=int, default=1)]

    with kernbench.simulate(plugins=[Chatty()], options={"level": 4}) as ctx:
        assert ctx.options == {"loud": False, "level": 4}
    with pytest.raises(PluginError, match="no plugin has an option 'levl'"):
        kernbench.simulate(plugins=[Chatty()], options={"levl": 4}).__enter__()
