"""``ctx.multiprocessing.spawn``: PyTorch's signature and behaviours, and failures that are whole."""

from __future__ import annotations

import inspect
import signal
import sys
import threading

import pytest
import torch
from greenlet import getcurrent

import kernbench
from kernbench.runtime_api.multiprocessing import SpawnException

ISOLATIONS = ("greenlet", "carrier")
each_isolation = pytest.mark.parametrize("isolation", ISOLATIONS)


def test_the_signature_begins_with_pytorchs(ctx):
    ours = list(inspect.signature(ctx.multiprocessing.spawn).parameters.values())
    theirs = list(inspect.signature(torch.multiprocessing.spawn).parameters.values())
    assert [(p.name, p.default) for p in ours[: len(theirs)]] == [(p.name, p.default) for p in theirs]
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in ours[len(theirs) :])


@each_isolation
def test_calls_fn_once_per_rank_with_rank_and_args(ctx, isolation):
    calls = []
    result = ctx.multiprocessing.spawn(
        lambda rank, *args: calls.append((rank, args)), args=("a", 2), nprocs=4, isolation=isolation
    )
    assert result is None
    assert calls == [(rank, ("a", 2)) for rank in range(4)]


def test_nprocs_defaults_to_one_and_zero_is_nothing(ctx):
    calls = []
    ctx.multiprocessing.spawn(calls.append)
    assert ctx.multiprocessing.spawn(calls.append, nprocs=0) is None
    assert calls == [0]


@each_isolation
def test_a_rank_is_bound_while_it_lives(ctx, isolation):
    seen = []

    def worker(rank):
        for _ in range(2):
            assert ctx.distributed._rank_by_greenlet[getcurrent()] == rank
            assert ctx.distributed.get_rank() == rank
            assert ctx.distributed.get_world_size() == 3
            ctx.distributed.barrier()
        seen.append(len(ctx.distributed._rank_by_greenlet))

    ctx.multiprocessing.spawn(worker, nprocs=3, isolation=isolation)
    assert len(seen) == 3
    assert ctx.distributed._rank_by_greenlet == {}


@each_isolation
def test_carriers_are_threads_and_greenlets_are_not(ctx, isolation):
    threads = set()

    def worker(rank):
        threads.add(threading.get_ident())
        ctx.distributed.barrier()  # so that all are alive at once: identities of dead threads are used again

    ctx.multiprocessing.spawn(worker, nprocs=3, isolation=isolation)
    assert len(threads) == (3 if isolation == "carrier" else 1)


@each_isolation
@pytest.mark.parametrize(
    "stop", [lambda: sys.exit(0), lambda: sys.exit(), lambda: (_ for _ in ()).throw(KeyboardInterrupt)]
)
def test_exit_zero_and_keyboard_interrupt_are_success(ctx, isolation, stop):
    done = []

    def worker(rank):
        if rank == 0:
            stop()
        done.append(rank)

    ctx.multiprocessing.spawn(worker, nprocs=2, isolation=isolation)
    assert done == [1]


@each_isolation
@pytest.mark.parametrize("code", ["broken", 3])
def test_other_exits_are_failures(ctx, isolation, code):
    with pytest.raises(SpawnException) as caught:
        ctx.multiprocessing.spawn(lambda rank: sys.exit(code), nprocs=1, isolation=isolation)
    assert isinstance(caught.value.errors[0], SystemExit)
    assert caught.value.errors[0].code == code


@each_isolation
def test_only_root_causes_are_errors_and_siblings_are_unwound(ctx, isolation):
    unwound = []

    def worker(rank):
        try:
            if rank == 2:
                ctx.distributed.barrier(ctx.distributed.new_group([2]))
                raise ValueError("the cause")
            ctx.distributed.barrier()
        except SystemExit:
            unwound.append(rank)
            raise
        finally:
            unwound.append(-rank)

    with pytest.raises(SpawnException) as caught:
        ctx.multiprocessing.spawn(worker, nprocs=4, isolation=isolation)
    assert list(caught.value.errors) == [2]
    assert sorted(unwound) == [-3, -2, -1, 0, 0, 1, 3]
    assert ctx._pending_worker_waits == []
    assert ctx._pending_collectives == []


@each_isolation
def test_spawn_exception_is_pytorchs_and_shows_the_ranks_own_traceback(ctx, isolation):
    def worker(rank):
        if rank == 1:
            raise_here_please()

    def raise_here_please():
        raise ValueError("the cause")

    with pytest.raises(torch.multiprocessing.ProcessRaisedException) as caught:
        ctx.multiprocessing.spawn(worker, nprocs=2, isolation=isolation)
    error = caught.value
    assert isinstance(error, kernbench.SpawnException)
    assert isinstance(error, kernbench.KernbenchError)
    assert error.error_index == 1
    assert error.error_pid < 0
    assert "-- Process 1 terminated with the following error:\nTraceback" in str(error)
    assert "raise_here_please" in str(error)
    assert __file__ in str(error)


@each_isolation
def test_the_context_spawns_again_after_a_failure(ctx, isolation):
    def fail(rank):
        ctx.launch(lambda program, x: x.add_(1), 1, ctx.ones(4))
        if rank == 1:
            raise ValueError
        ctx.distributed.all_reduce(ctx.ones(4))

    def work(rank):
        x = ctx.full((4,), float(rank))
        ctx.launch(lambda program, x: x.add_(1), 1, x)
        ctx.distributed.all_reduce(x)
        results.append(x.tolist())

    results: list[list[float]] = []
    for _ in range(2):
        with pytest.raises(SpawnException):
            ctx.multiprocessing.spawn(fail, nprocs=4, isolation=isolation)
        ctx.multiprocessing.spawn(work, nprocs=4, isolation=isolation)
    assert results == [[10.0] * 4] * 8


def test_two_contexts_do_not_influence_each_other():
    def run():
        with kernbench.simulate() as ctx:
            log = []

            def worker(rank):
                x = ctx.randn(8)
                ctx.distributed.all_reduce(x)
                log.append((x.tolist(), ctx.now()))

            ctx.multiprocessing.spawn(worker, nprocs=4)
            return log

    def crash():
        with kernbench.simulate() as ctx:
            ctx.multiprocessing.spawn(lambda rank: ctx.distributed.barrier() if rank else 1 / 0, nprocs=4)

    before = run()
    with pytest.raises(SpawnException):
        crash()
    assert run() == before


@each_isolation
def test_a_nested_spawn_is_a_clear_error(ctx, isolation):
    with pytest.raises(SpawnException) as caught:
        ctx.multiprocessing.spawn(lambda rank: ctx.multiprocessing.spawn(print), nprocs=1, isolation=isolation)
    assert "nested worlds are not simulated" in str(caught.value.errors[0])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"nprocs": -1}, "nprocs -1"),
        ({"isolation": "thread"}, "expected one of carrier, greenlet, process"),
        ({"isolation": "greenlet", "per_rank_modules": ("x",)}, "per_rank_modules"),
        ({"nprocs": 9}, "does not fit system sip8.*nodes=2"),
    ],
)
def test_wrong_arguments(ctx, arguments, text):
    with pytest.raises(kernbench.ConfigError, match=text):
        ctx.multiprocessing.spawn(print, **arguments)


@each_isolation
def test_join_false_tells_one_end_at_a_time(ctx, isolation):
    done = []

    def worker(rank):
        for _ in range(rank):
            ctx.sleep(1e-6)
        done.append(rank)

    processes = ctx.multiprocessing.spawn(worker, nprocs=3, join=False, isolation=isolation)
    assert processes is not None
    assert done == []
    assert len(processes.pids()) == 3
    joins = 1
    while not processes.join():
        joins += 1
    assert done == [0, 1, 2]
    assert joins == 3
    assert processes.join()


def test_join_false_with_a_timeout_in_virtual_time(ctx):
    processes = ctx.multiprocessing.spawn(lambda rank: ctx.sleep(1.0), nprocs=2, join=False, isolation="greenlet")
    assert not processes.join(timeout=0.25)
    while not processes.join():
        pass
    assert ctx.now() == pytest.approx(1.0)


def test_join_false_raises_once_then_is_over(ctx):
    def worker(rank):
        if rank == 1:
            raise ValueError

    processes = ctx.multiprocessing.spawn(worker, nprocs=2, join=False)
    with pytest.raises(SpawnException):
        processes.join()
    assert processes.join()


def test_join_false_forbids_a_second_world_meanwhile(ctx):
    done = []
    first = ctx.multiprocessing.spawn(lambda rank: done.append(ctx.distributed.get_world_size()), nprocs=2, join=False)
    with pytest.raises(kernbench.KernbenchError, match="join them first"):
        ctx.multiprocessing.spawn(print, nprocs=1)
    while not first.join():
        pass
    assert done == [2, 2]


@pytest.mark.parametrize("daemon", [False, True])
def test_ranks_that_nobody_joined_are_joined_at_the_end_unless_daemon(daemon):
    log = []

    def worker(rank):
        try:
            log.append("begun")
            ctx.sleep(1e-3)
            log.append("done")
        finally:
            log.append("left")

    with kernbench.simulate() as ctx:
        processes = ctx.multiprocessing.spawn(worker, nprocs=1, join=False, daemon=daemon, isolation="carrier")
        assert not processes.join(timeout=1e-6)
    assert log == (["begun", "left"] if daemon else ["begun", "done", "left"])


def test_a_rank_that_swallows_its_unwinding_is_named_besides_the_cause(ctx, capfd):
    def worker(rank):
        if rank == 1:
            raise ValueError("the cause")
        while True:
            try:
                ctx.distributed.barrier()
            except BaseException:
                if stop:
                    raise

    stop: list[int] = []
    with pytest.raises(kernbench.SpawnException, match="the cause"):
        ctx.multiprocessing.spawn(worker, nprocs=2, isolation="greenlet")
    assert "kernbench: rank 0 caught SystemExit 100 times" in capfd.readouterr().err
    stop.append(1)
    ctx.multiprocessing.spawn(lambda rank: ctx.distributed.barrier(), nprocs=2)


@each_isolation
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_a_base_exception_in_the_scheduler_leaves_nothing_behind(ctx, monkeypatch, isolation, error):
    threads = threading.active_count()
    unwound = []

    def worker(rank):
        try:
            ctx.distributed.barrier()
            ctx.distributed.barrier()
        finally:
            unwound.append(rank)

    def broken():
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(ctx.engine, "advance", broken)
        with pytest.raises(error):
            ctx.multiprocessing.spawn(worker, nprocs=3, isolation=isolation)
    assert unwound == [0, 1, 2]
    assert threading.active_count() == threads
    assert ctx.distributed._rank_by_greenlet == {}
    ctx.multiprocessing.spawn(worker, nprocs=3, isolation=isolation)


@pytest.mark.usefixtures("ctrl_c")
@each_isolation
def test_ctrl_c_ends_the_simulation(ctx, isolation):
    main = threading.get_ident()

    def worker(rank):
        if rank == 1:
            signal.pthread_kill(main, signal.SIGINT)  # to the process, as a terminal does
            for _ in range(1000):
                ctx.distributed.get_rank()
        ctx.sleep(1.0)

    with pytest.raises(KeyboardInterrupt):
        ctx.multiprocessing.spawn(worker, nprocs=3, isolation=isolation)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert ctx.distributed._rank_by_greenlet == {}


def test_grad_mode_belongs_to_a_carrier(ctx):
    def worker(rank):
        with torch.no_grad() if rank == 0 else torch.enable_grad():
            ctx.distributed.barrier()
            assert torch.is_grad_enabled() == (rank != 0)

    ctx.multiprocessing.spawn(worker, nprocs=2, isolation="carrier")
