"""A program that becomes a rank where it stands."""

from __future__ import annotations

import argparse
import contextlib
import signal
import threading
import time

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader

import kernbench


def test_the_process_has_a_gpu_for_the_length_of_a_block():
    threads = torch.get_num_threads()
    with kernbench.simulated_gpu("dgx_h100") as ctx:
        assert torch.cuda.get_device_name() == "NVIDIA H100 80GB HBM3"
        assert torch.cuda.device_count() == 8
        x = torch.arange(6.0, device="cuda").view(2, 3)
        assert (x @ x.T).tolist() == [[5.0, 14.0], [14.0, 50.0]]
        assert ctx.now() > 0
        assert any("mm" in op.name for op in ctx.engine.op_log.operations)
    assert not torch.cuda.is_available()
    assert torch.get_num_threads() == threads


def test_it_is_the_same_as_a_rank_of_a_spawn():
    """Values, times and memory of a training step, by a function that is called and by a program that has begun already."""

    def step(outcome):
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 8)).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        loss = model(torch.randn(16, 32, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        outcome += [loss.item(), torch.cuda.max_memory_allocated(), time.perf_counter()]

    def operations(ctx):
        return [(op.name, op.rank, op.start, op.end) for op in ctx.engine.op_log.operations]

    called: list[float] = []
    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(lambda rank: step(called), nprocs=1)
        expected = operations(ctx)
    adopted: list[float] = []
    with kernbench.simulated_gpu("dgx_h100") as ctx:
        step(adopted)
        found = operations(ctx)
    assert adopted == called
    assert found == expected


def test_what_the_program_raises_goes_on():
    with pytest.raises(ZeroDivisionError), kernbench.simulated_gpu():
        torch.ones(3, device="cuda").sum().item() / 0
    with pytest.raises(SystemExit) as exit_, kernbench.simulated_gpu():
        raise SystemExit(3)
    assert exit_.value.code == 3
    with pytest.raises(kernbench.ConfigError, match="no shipped system"), kernbench.simulated_gpu("dgx_x"):
        pass


def test_a_wait_that_nobody_ends_is_a_deadlock():
    with kernbench.simulated_gpu() as ctx:
        work = ctx.distributed.group().recv([torch.empty(1, device="cuda")], 0, 0)
        with pytest.raises(kernbench.DeadlockError, match="rank 0"):
            work.wait()


def test_it_is_no_rank_in_a_rank():
    def worker(rank):
        with pytest.raises(kernbench.KernbenchError, match="already"), kernbench.simulated_gpu():
            pass

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)


def _sum_of_ranks(rank, count, found):
    dist.init_process_group("nccl", rank=rank, world_size=count, init_method="tcp://localhost:29511")
    x = torch.full((2,), float(rank), device=f"cuda:{rank}")
    dist.all_reduce(x)
    found.put(x.sum().item())


def test_ranks_that_it_spawns_have_the_simulation_to_themselves():
    found = mp.get_context("spawn").SimpleQueue()
    with kernbench.simulated_gpu("dgx_h100") as ctx:
        mine = torch.ones(4, device="cuda")
        mp.spawn(_sum_of_ranks, args=(3, found), nprocs=3)
        assert [found.get() for _ in range(3)] == [6.0] * 3
        ranks = mp.spawn(_sum_of_ranks, args=(2, found), nprocs=2, join=False)
        while not ranks.join():
            pass
        assert [found.get() for _ in range(2)] == [2.0] * 2
        before = ctx.now()
        assert mine.sum().item() == 4.0
        assert ctx.now() > before  # and goes on in virtual time, as the rank that it was


def _change(rank, args, model, lists, met, seen):
    args.rank += 10 * rank
    args.names.append(rank)
    lists[0].append(rank)
    model(torch.ones(2)).sum().backward()
    with torch.no_grad():
        model.weight += 1
    met.wait()
    seen.put((args.rank, args.names, lists, lists[0] is lists[1], model.weight.grad.tolist(), model.weight.tolist()))


def test_ranks_that_it_spawns_have_arguments_of_their_own():
    """As processes that are sent a copy have: an attribute that one sets is not another's. Values of tensors they share."""
    given = argparse.Namespace(rank=1, names=["a"])
    shared = [[]]
    seen, model = mp.get_context("spawn").SimpleQueue(), torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    with kernbench.simulated_gpu():
        met = threading.Barrier(1)  # is no process's, and stays what it is
        mp.spawn(_change, args=(given, model, shared * 2, met, seen), nprocs=2)
    first, second = sorted(seen.get() for _ in range(2))
    assert first[:5] == (1, ["a", 0], [[0], [0]], True, [[1.0, 1.0]])
    assert second[:5] == (11, ["a", 1], [[1], [1]], True, [[1.0, 1.0]])
    assert second[5] == model.weight.tolist() == [[2.0, 2.0]]
    assert (given.rank, given.names, shared) == (1, ["a"], [[]])
    assert model.weight.grad is None


def test_reports_are_of_the_ranks_when_the_program_itself_did_nothing():
    from kernbench.trace.rank_times import rank_times

    with kernbench.simulated_gpu("dgx_h100") as ctx:
        mp.spawn(_sum_of_ranks, args=(4, mp.get_context("spawn").SimpleQueue()), nprocs=4)
    assert [line.rank for line in rank_times(ctx.simulation)] == [0, 1, 2, 3]


def test_threads_and_workers_of_the_program():
    found = []
    with kernbench.simulated_gpu():
        thread = threading.Thread(target=lambda: found.append(torch.ones(3, device="cuda").sum().item()))
        thread.start()
        thread.join()
        loaders = [
            DataLoader(torch.arange(8.0), batch_size=4, num_workers=1, pin_memory=pins) for pins in (False, True)
        ]
        batches = [[batch.cuda().sum().item() for batch in loader] for loader in loaders]
    assert found == [3.0]
    assert batches == [[6.0, 22.0]] * 2


def test_one_rank_of_torch_distributed():
    with kernbench.simulated_gpu():
        dist.init_process_group("nccl", rank=0, world_size=1, init_method="tcp://localhost:29512")
        x = torch.ones(3, device="cuda")
        dist.all_reduce(x)
        dist.destroy_process_group()
        assert x.tolist() == [1.0] * 3
    assert not dist.is_initialized()


def test_a_handler_of_signals_may_raise_while_the_program_waits(monkeypatch):
    """What pytest-timeout's does. The program goes on when it is its turn, and the simulation with it."""

    class TimeIsUpError(BaseException):
        pass

    handled = threading.Event()

    def handler(number, frame):
        handled.set()
        raise TimeIsUpError

    def reduce(value: float) -> list[float]:
        x = torch.full((4,), value, device="cuda")
        dist.all_reduce(x)
        return x.tolist()

    with kernbench.simulated_gpu("dgx_h100") as ctx:
        once = ctx.simulation.drain.once
        dist.init_process_group("nccl", rank=0, world_size=1, store=dist.HashStore())

        def interrupted():
            if not handled.is_set():  # in the thread that drives the simulation, while the program waits
                signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
                assert handled.wait(60)
            return once()

        monkeypatch.setattr(ctx.simulation.drain, "once", interrupted)
        before = signal.signal(signal.SIGUSR1, handler)
        try:
            with pytest.raises(TimeIsUpError):
                reduce(1.0)
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert reduce(3.0) == [3.0] * 4
        assert handled.is_set()


def test_a_handler_of_signals_may_raise_while_the_program_waits_for_threads_that_go_on():
    """What pytest-timeout's does with a test whose threads never end."""

    class TimeIsUpError(BaseException):
        pass

    def handler(number, frame):
        raise TimeIsUpError

    with kernbench.simulated_gpu("dgx_h100"):
        ends = [False]
        before = signal.signal(signal.SIGUSR1, handler)

        meets = threading.Barrier(2)

        def work(sends: bool) -> None:
            x, rounds = torch.ones(4, device="cuda"), 0
            with contextlib.suppress(threading.BrokenBarrierError):
                while not ends[0]:
                    x.mul_(1.0)
                    meets.wait()
                    rounds += 1
                    if sends and rounds == 20:
                        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

        threads = [threading.Thread(target=work, args=(sends,)) for sends in (False, True)]

        def start_and_join() -> None:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        try:
            with pytest.raises(TimeIsUpError):
                start_and_join()
        finally:
            signal.signal(signal.SIGUSR1, before)
            ends[0] = True
            meets.abort()
        for thread in threads:
            thread.join()
        assert torch.ones(3, device="cuda").tolist() == [1.0] * 3
