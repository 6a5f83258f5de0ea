"""Virtual time as a rank sees it: launches, streams, overlap, clocks; the same with and without data."""

from __future__ import annotations

import pytest

import kernbench
from kernbench.cost.work import StatedWork


def takes(nbytes):
    """A kernel that moves ``nbytes`` and computes nothing."""

    def kernel(program, *tensors):
        pass

    kernel.work = lambda grid, *tensors: StatedWork(nbytes=nbytes)
    return kernel


def test_a_launch_costs_the_host_its_overhead_and_runs_after_its_latency(ctx):
    launch = ctx.topology.device.launch
    before = ctx.now()
    handle = ctx.launch(takes(1 << 30), 1)
    assert ctx.now() - before == pytest.approx(launch.overhead)
    ctx.wait(handle)
    seconds = (1 << 30) / ctx.topology.device.hbm_copy_bandwidth
    assert handle.start == pytest.approx(before + launch.overhead + launch.latency)
    assert handle.end - handle.start == pytest.approx(seconds)
    assert ctx.now() == handle.end


def test_a_stream_runs_in_order(ctx):
    first, second = (ctx.launch(takes(1 << 34), 1) for _ in range(2))
    ctx.synchronize()
    assert second.start == first.end
    assert ctx.now() == second.end


def run_one(worker, nprocs=2, **options):
    with kernbench.simulate(**options) as ctx:
        ctx.multiprocessing.spawn(worker, args=(ctx,), nprocs=nprocs, isolation="greenlet")
        return ctx


def of_kind(ctx, kind, rank=0):
    return [record for record in ctx.engine.op_log.records(steps=False) if record.kind == kind and record.rank == rank]


def test_computation_after_a_wait_starts_after_the_collective():
    def worker(rank, ctx):
        work = ctx.distributed.all_reduce(ctx.ones(1 << 16), async_op=True)
        work.wait()
        ctx.launch(takes(1000), 1)

    ctx = run_one(worker)
    (collective,), (kernel,) = of_kind(ctx, "collective"), of_kind(ctx, "kernel")
    assert kernel.start >= collective.end


def test_an_asynchronous_collective_overlaps_computation():
    def worker(rank, ctx):
        work = ctx.distributed.all_reduce(ctx.empty(1 << 20), async_op=True)
        ctx.launch(takes(1 << 30), 1)
        work.wait()

    ctx = run_one(worker)
    (collective,), (kernel,) = of_kind(ctx, "collective"), of_kind(ctx, "kernel")
    assert kernel.start < collective.end
    assert collective.start < kernel.end
    launch = ctx.topology.device.launch
    assert kernel.start == pytest.approx(2 * launch.overhead + launch.latency)


def test_a_collective_waits_for_what_was_computed_before_it():
    def worker(rank, ctx):
        x = ctx.ones(4)
        ctx.launch(takes(1 << 34), 1)
        ctx.distributed.all_reduce(x, async_op=True)

    ctx = run_one(worker)
    (collective,), (kernel,) = of_kind(ctx, "collective"), of_kind(ctx, "kernel")
    assert collective.start == kernel.end


def test_synchronize_covers_communication():
    def worker(rank, ctx):
        work = ctx.distributed.all_reduce(ctx.ones(1 << 20), async_op=True)
        before = ctx.now()
        ctx.synchronize()
        assert ctx.now() == work.operation.end > before

    run_one(worker)


def test_nobody_leaves_a_barrier_before_the_last_has_come():
    left = []

    def worker(rank, ctx):
        ctx.sleep(rank * 1e-3)
        ctx.distributed.barrier()
        left.append(ctx.now())

    run_one(worker, nprocs=4)
    assert min(left) > 3e-3


def test_clocks_of_ranks_are_their_own():
    clocks = {}

    def worker(rank, ctx):
        ctx.sleep(rank * 1e-3)
        clocks[rank] = ctx.now()

    ctx = run_one(worker, nprocs=3)
    assert clocks == pytest.approx({0: 0.0, 1: 1e-3, 2: 2e-3})
    assert ctx.now() == pytest.approx(2e-3)


def program(rank, ctx):
    x = ctx.randn(64, 64)
    w = ctx.randn(64, 64)
    halves = ctx.distributed.new_group([rank // 2 * 2, rank // 2 * 2 + 1])
    for _ in range(3):
        y = x @ w
        work = ctx.distributed.all_reduce(y, async_op=True, group=halves)
        z = (x + 1).relu()
        work.wait()
        ctx.distributed.all_reduce(z)
        x = y + z
    ctx.synchronize()


def timeline(ctx):
    return [repr(record) for record in ctx.engine.op_log.records()]


def test_time_does_not_depend_on_data():
    with_data, without = (run_one(program, nprocs=4, enable_data=each) for each in (True, False))
    assert timeline(with_data) == timeline(without)
    assert with_data.now() == without.now() > 0


def test_values_do_not_depend_on_the_interleaving():
    results, orders = {}, set()
    for seed in range(4):
        values, order = [], []

        def worker(rank, ctx, values=values, order=order):
            order.append(rank)
            x = ctx.full((8,), 1.0 / (rank + 1))
            ctx.distributed.all_reduce(x)
            values.append((rank, x.tolist(), ctx.now()))

        run_one(worker, nprocs=4, policy="random", seed=seed)
        results[seed] = values
        orders.add(tuple(order))
    assert all(sorted(each) == sorted(results[0]) for each in results.values())
    assert len(orders) > 1


def test_each_rank_has_random_numbers_of_its_own_and_the_seed_decides():
    def draw(seed):
        drawn = {}
        run_one(lambda rank, ctx: drawn.__setitem__(rank, ctx.randn(4).tolist()), nprocs=3, seed=seed)
        return drawn

    first = draw(1)
    assert first == draw(1)
    assert first != draw(2)
    assert len({tuple(values) for values in first.values()}) == 3


def test_a_failed_world_leaves_no_time_behind(ctx):
    """What a dead world has left on streams and links does not delay the next one."""

    def fail(rank):
        ctx.distributed.all_reduce(ctx.ones(1 << 20), async_op=True)
        ctx.launch(takes(1000), 1)
        if rank == 1:
            raise ValueError
        ctx.distributed.barrier()

    def work(rank):
        begin = ctx.now()
        ctx.distributed.all_reduce(ctx.ones(1 << 10))
        spans.append(ctx.now() - begin)

    spans: list[float] = []
    ctx.multiprocessing.spawn(work, nprocs=2)
    with pytest.raises(kernbench.SpawnException):
        ctx.multiprocessing.spawn(fail, nprocs=2)
    ctx.multiprocessing.spawn(work, nprocs=2)
    assert spans[2:] == pytest.approx(spans[:2])


def test_the_op_log_names_the_memory_of_every_operand():
    ctx = run_one(program, nprocs=4)
    records = list(ctx.engine.op_log.records())
    assert {record.kind for record in records} >= {"gemm", "math", "collective", "collective_step"}
    assert all(operand.space in ("hbm", "sram", "tcm", "host") for record in records for operand in record.operands)
    steps = [record for record in records if record.kind == "collective_step"]
    assert all({operand.space for operand in record.operands} == {"hbm", "tcm"} for record in steps)
    assert all(record.start <= record.end for record in records)
