"""Waiting is switching: who is queued, who resumes whom, in which order, and who gets an error."""

from __future__ import annotations

import gc
import threading

import pytest
from greenlet import getcurrent, greenlet

import kernbench
from kernbench.runtime_api.multiprocessing import SpawnException, _drain_pending
from kernbench.sim_engine import Operation

ISOLATIONS = ("greenlet", "carrier")


def _double(program, x):
    x.mul_(2)


def _fail(program, x):
    raise ValueError("kernel failed")


def test_a_raw_greenlet_that_waits_is_queued_and_main_goes_on(ctx):
    log = []
    handle = ctx.launch(_double, 1, ctx.ones(4))

    def body():
        log.append("waits")
        ctx.wait(handle)
        log.append("resumed")

    worker = greenlet(body)
    worker.switch()
    assert log == ["waits"]
    assert ctx._pending_worker_waits == [(handle, worker)]
    _drain_pending(ctx)
    assert log == ["waits", "resumed"]
    assert worker.dead
    assert ctx._pending_worker_waits == []


def test_a_done_handle_returns_without_a_switch(ctx):
    handle = ctx.launch(_double, 1, ctx.ones(4))
    ctx.wait(handle)
    worker = greenlet(lambda: ctx.wait(handle))
    worker.switch()
    assert worker.dead
    assert ctx._pending_worker_waits == []


def test_waiting_in_main_drives_the_engine(ctx):
    x = ctx.ones(4)
    handle = ctx.launch(_double, 1, x)
    assert not handle.done
    ctx.wait(handle)
    assert handle.done
    assert x.tolist() == [2.0] * 4


def test_draining_is_idempotent(ctx):
    resumed = []
    handle = ctx.launch(_double, 1, ctx.ones(4))
    worker = greenlet(lambda: resumed.append(ctx.wait(handle)))
    worker.switch()
    for _ in range(3):
        _drain_pending(ctx)
    assert resumed == [None]


def test_only_main_drains(ctx):
    worker = greenlet(lambda: _drain_pending(ctx))
    with pytest.raises(kernbench.KernbenchError, match="only main drains"):
        worker.switch()


def test_greenlets_resume_in_the_order_in_which_they_began_to_wait(ctx):
    order = []
    handles = [ctx.launch(_double, 1, ctx.ones(4)) for _ in range(5)]

    def body(number):
        ctx.wait(handles[number])
        order.append(number)

    for number in (3, 0, 4, 1, 2):
        greenlet(body).switch(number)
    _drain_pending(ctx)
    assert order == [3, 0, 4, 1, 2]


def test_a_wait_queued_while_draining_is_drained_too(ctx):
    log = []

    def body(name, waits):
        for _ in range(waits):
            ctx.wait(ctx.launch(_double, 1, ctx.ones(4)))
        log.append(name)

    greenlet(body).switch("three waits", 3)
    greenlet(body).switch("one wait", 1)
    _drain_pending(ctx)
    assert log == ["one wait", "three waits"]


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_drain_serves_all_ranks(ctx, isolation):
    def worker(rank):
        x = ctx.full((4,), float(rank))
        for _ in range(3):
            ctx.wait(ctx.launch(_double, 1, x))
        assert x.tolist() == [8.0 * rank] * 4

    ctx.multiprocessing.spawn(worker, nprocs=8, isolation=isolation)
    assert ctx._pending_worker_waits == []


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_the_parent_of_every_rank_is_main_and_ranks_never_nest(ctx, isolation):
    main = getcurrent()
    running = []

    def worker(rank):
        running.append(rank)
        assert len(running) == 1, "two ranks execute at once"
        assert all(target.parent is main for target in (r.greenlet for r in ctx.scheduler.ranks))
        running.remove(rank)
        ctx.wait(ctx.launch(_double, 1, ctx.ones(2)))

    ctx.multiprocessing.spawn(worker, nprocs=4, isolation=isolation)


def test_no_greenlet_is_orphaned_when_a_rank_fails(ctx):
    """A kernel's greenlet that waits while its rank fails is unwound: its ``finally`` runs, and it is not resumed."""
    log = []
    never = Operation("never", "timer", rank=None, sip=0, stream="x", enqueue=0.0)

    def kernel():
        try:
            ctx.wait(never)
        finally:
            log.append("kernel unwound")

    def worker(rank):
        raise ValueError

    processes = ctx.multiprocessing.spawn(worker, nprocs=1, join=False)
    greenlet(kernel).switch()
    with pytest.raises(SpawnException):
        processes.join()
    assert log == ["kernel unwound"]
    assert ctx._pending_worker_waits == []


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_an_error_in_drained_work_reaches_the_rank_that_waits_for_it_and_only_that_one(ctx, isolation):
    caught, finished = [], []

    def worker(rank):
        handle = ctx.launch(_fail if rank == 2 else _double, 1, ctx.ones(4))
        try:
            ctx.wait(handle)
        except ValueError as error:
            caught.append((rank, str(error)))
        finished.append(rank)

    ctx.multiprocessing.spawn(worker, nprocs=4, isolation=isolation)
    assert caught == [(2, "kernel failed")]
    assert sorted(finished) == [0, 1, 2, 3]


def test_an_error_of_a_raw_greenlet_does_not_lose_the_others(ctx):
    resumed = []

    def body(kernel):
        ctx.wait(ctx.launch(kernel, 1, ctx.ones(4)))
        resumed.append(kernel)

    for kernel in (_double, _fail, _double):
        greenlet(body).switch(kernel)
    with pytest.raises(ValueError, match="kernel failed"):
        _drain_pending(ctx)
    _drain_pending(ctx)
    assert resumed == [_double, _double]


def test_queues_are_empty_when_idle(ctx):
    def worker(rank):
        ctx.distributed.all_reduce(ctx.ones(16))
        ctx.wait(ctx.launch(_double, 1, ctx.ones(4)))

    ctx.multiprocessing.spawn(worker, nprocs=8)
    assert ctx._pending_worker_waits == []
    assert ctx._pending_collectives == []
    assert len(ctx.simulation.executor) == 0
    assert ctx.distributed._rank_by_greenlet == {}


def test_a_launch_that_nobody_waits_for_fails_its_rank_in_the_end(ctx):
    def worker(rank):
        if rank == 1:
            ctx.launch(_fail, 1, ctx.ones(4))

    with pytest.raises(SpawnException) as caught:
        ctx.multiprocessing.spawn(worker, nprocs=2)
    assert set(caught.value.errors) == {1}
    assert isinstance(caught.value.errors[1], ValueError)


def test_synchronize_raises_what_nobody_has_seen(ctx):
    ctx.launch(_fail, 1, ctx.ones(4))
    ctx.launch(_double, 1, ctx.ones(4))
    with pytest.raises(ValueError, match="kernel failed"):
        ctx.synchronize()
    ctx.synchronize()


def test_a_kernel_cannot_wait(ctx):
    handle = ctx.launch(_double, 1, ctx.ones(4))
    bad = ctx.launch(lambda program, x: ctx.wait(ctx.launch(_double, 1, x)), 1, ctx.ones(4))
    with pytest.raises(kernbench.KernbenchError, match="a kernel cannot"):
        ctx.wait(bad)
    ctx.wait(handle)


@pytest.mark.long  # seconds
@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_nothing_is_left_behind(isolation):
    threads = threading.active_count()
    before = _greenlets()
    with kernbench.simulate() as ctx:
        ctx.multiprocessing.spawn(_meet, args=(ctx,), nprocs=8, isolation=isolation)
    del ctx
    assert threading.active_count() == threads
    assert _greenlets() == before


def _meet(rank, ctx):
    ctx.distributed.barrier()


def _greenlets():
    """Greenlets that are suspended, without the roots of threads, which die some time after their thread."""
    gc.collect()
    return sum(type(each) is greenlet and each.parent is not None and not each.dead for each in gc.get_objects())
