"""Triton kernels of ranks: order, batches, waiting for another rank, errors of one rank only."""

from __future__ import annotations

import pytest

import kernbench

triton = pytest.importorskip("triton", reason="Triton exists for Linux only")
tl = pytest.importorskip("triton.language")


@triton.jit
def add_kernel(x, y, n, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n
    tl.store(y + index, tl.load(x + index, mask=mask) + tl.load(y + index, mask=mask), mask=mask)


@triton.jit
def exchange_kernel(own_flag, peer_flag, out):
    tl.atomic_xchg(peer_flag, 1, sem="release")
    while tl.atomic_add(own_flag, 0, sem="acquire") != 1:
        pass
    tl.store(out, 7.0)


@triton.jit
def wait_kernel(flag, out):
    while tl.load(flag, volatile=True) != 1:
        pass
    tl.store(out, 5.0)


@triton.jit
def stride_kernel(x, stride):
    tl.store(x + tl.program_id(0) * stride, 1.0)


ISOLATIONS = ("greenlet", "carrier")


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_launches_take_effect_in_program_order(ctx, isolation):
    def worker(rank, torch, results):
        x, y = torch.full((1000,), float(rank)), torch.ones(1000)
        handle = torch.launch(add_kernel, (4,), x, y, 1000, BLOCK=256)
        add_kernel[(4,)](x, y, 1000, BLOCK=256)
        y.mul_(2)  # an operation of torch on what the kernels wrote
        torch.launch(add_kernel, lambda meta: (triton.cdiv(1000, meta["BLOCK"]),), x, y, 1000, BLOCK=128)
        torch.wait(handle)
        results[rank] = y.tolist()

    results = {}
    ctx.multiprocessing.spawn(worker, args=(ctx, results), nprocs=4, isolation=isolation)
    assert results == {rank: [(1 + 2 * rank) * 2.0 + rank] * 1000 for rank in range(4)}


def test_the_same_kernel_of_many_ranks_runs_as_one_batch(ctx, monkeypatch):
    from kernbench.simulation.launches import triton_launch

    sizes = []

    class Recording(triton_launch.RunningBatch):
        def __init__(self, launches):
            sizes.append(len(launches))
            super().__init__(launches)

    monkeypatch.setattr(triton_launch, "RunningBatch", Recording)

    def worker(rank, torch):
        x, y = torch.full((512,), float(rank)), torch.ones(512)
        for _ in range(3):
            add_kernel[(2,)](x, y, 512, BLOCK=256)
        assert y.tolist() == [1.0 + 3 * rank] * 512

    ctx.multiprocessing.spawn(worker, args=(ctx,), nprocs=8)
    assert sizes == [8, 8, 8]


def test_what_a_launch_did_is_in_the_op_log(ctx):
    x, y = ctx.ones(1024, name="x"), ctx.ones(1024, name="y")
    ctx.launch(add_kernel, 4, x, y, 1024, name="my add", BLOCK=256)
    ctx.synchronize()
    (record,) = [record for record in ctx.engine.op_log.records() if record.kind == "kernel"]
    assert record.name == "my add"
    assert record.detail["programs"] == 4
    assert (record.detail["bytes_read"], record.detail["bytes_written"]) == (2 * 4096, 4096)
    assert record.end > record.start >= record.enqueue
    assert {operand.name for operand in record.operands} == {"x", "y"}


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_kernels_of_ranks_signal_each_other(ctx, isolation):
    flags = {}

    def worker(rank, torch, size):
        flags[rank] = torch.zeros(1, dtype="i32")
        out = torch.zeros(1)
        torch.distributed.barrier()
        exchange_kernel[(1,)](flags[rank], flags[(rank + 1) % size], out)
        assert out.item() == 7

    ctx.multiprocessing.spawn(worker, args=(ctx, 4), nprocs=4, isolation=isolation)


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_waiting_kernel_lets_its_own_rank_go_on(ctx, isolation):
    flags = {}
    order = []

    def worker(rank, torch):
        flags[rank] = torch.zeros(1, dtype="i32")
        torch.distributed.barrier()
        if rank == 0:
            out = torch.zeros(1)
            wait_kernel[(1,)](flags[0], out)
            order.append("host goes on")
            assert out.item() == 5
            order.append("kernel has ended")
        else:
            torch.sleep(1e-3)
            order.append("signal")
            flags[0].fill_(1)

    ctx.multiprocessing.spawn(worker, args=(ctx,), nprocs=2, isolation=isolation)
    assert order == ["host goes on", "signal", "kernel has ended"]


def test_a_kernel_that_waits_for_ever_is_a_deadlock(ctx):
    def worker(rank, torch):
        flag, out = torch.zeros(1, dtype="i32", name="flag"), torch.zeros(1)
        wait_kernel[(1,)](flag, out)
        out.item()

    with pytest.raises(kernbench.SpawnException) as caught:
        ctx.multiprocessing.spawn(worker, args=(ctx,), nprocs=2)
    assert sorted(caught.value.errors) == [0, 1]
    report = str(caught.value.errors[0])
    for part in ("wait_kernel", "rank 0", "rank 1", "element 0 of flag", "sees 0, wants == 1", __file__):
        assert part in report


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_an_access_out_of_bounds_fails_its_own_rank_only(ctx, isolation):
    def worker(rank, torch):
        x = torch.zeros(1000, name="x")
        stride_kernel[(20,)](x, 100 if rank == 2 else 50)
        torch.synchronize()

    with pytest.raises(kernbench.SpawnException) as caught:
        ctx.multiprocessing.spawn(worker, args=(ctx,), nprocs=4, isolation=isolation)
    (error,) = caught.value.errors.values()
    assert list(caught.value.errors) == [2]
    assert isinstance(error, kernbench.MemoryAccessError)
    for part in ("stride_kernel", "element 1000 of x", "rank 2", "program (10, 0, 0)", __file__):
        assert part in str(error)


def test_plain_tensors_are_computed_at_once(ctx):
    import torch

    def worker(rank, size):
        x, y = torch.full((256,), float(rank)), torch.ones(256)
        add_kernel[(1,)](x, y, 256, BLOCK=256)
        assert y.tolist() == [1.0 + rank] * 256

    ctx.multiprocessing.spawn(worker, args=(4,), nprocs=4)


def test_time_does_not_need_values():
    def worker(rank, torch):
        x, y = torch.ones(4096), torch.ones(4096)
        torch.launch(add_kernel, 16, x, y, 4096, BLOCK=256)
        torch.synchronize()

    with kernbench.simulate(enable_data=False) as ctx:
        ctx.multiprocessing.spawn(worker, args=(ctx,), nprocs=2)
        kernels = [record for record in ctx.engine.op_log.records() if record.kind == "kernel"]
        assert len(kernels) == 2
        assert all(record.end > record.start for record in kernels)


def test_tensors_may_be_larger_than_the_hosts_memory_without_data():
    """A cache of an engine, of which a kernel fills some rows, in a simulation that has no byte of it."""
    import torch as stock

    def worker(rank):
        cache = stock.empty(1 << 36, device="cuda")  # 256 GiB
        stride_kernel[(4,)](cache, 128)
        stock.cuda.synchronize()

    with kernbench.simulate("dgx_h100", enable_data=False, memory_limit="off") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
        (kernel,) = [record for record in ctx.engine.op_log.records() if record.kind == "kernel"]
        assert 0 < kernel.end - kernel.start < 1e-4


def test_outside_contexts_triton_is_as_it_was():
    from triton.backends import backends

    before = dict(backends)
    with kernbench.simulate() as ctx:
        ctx.launch(add_kernel, 1, ctx.ones(8), ctx.ones(8), 8, BLOCK=8)
    assert dict(backends) == before
