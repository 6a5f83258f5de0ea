"""Threads that a rank's program starts and that use torch.distributed and simulated GPUs."""

from __future__ import annotations

import asyncio
import multiprocessing
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import kernbench
from tests.torch_backend.conftest import Ranks


def _sum(group: Any = None) -> float:
    value = torch.full((2,), dist.get_rank() + 1.0)
    dist.all_reduce(value, group=group)
    return float(value[0])


def test_a_thread_communicates_while_its_rank_waits_for_it(ranks: Ranks) -> None:
    def body() -> list[float]:
        group = dist.new_group(backend="gloo")
        found: list[float] = []
        thread = threading.Thread(target=lambda: found.append(_sum(group)))
        thread.start()
        mine = _sum()
        thread.join()
        return [mine, *found]

    assert ranks(body, 3) == [[6.0, 6.0]] * 3


def test_pools_and_nested_calls(ranks: Ranks) -> None:
    def body() -> list[float]:
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(_sum)
            found = [first.result()]
            found += [pool.submit(_sum).result() for _ in range(3)]
        return found

    assert ranks(body, 2) == [[3.0] * 4] * 2


def test_an_event_loop_waits_for_a_call_of_its_pool(ranks: Ranks) -> None:
    async def both() -> list[float]:
        return [await asyncio.to_thread(_sum), _sum()]

    assert ranks(lambda: asyncio.run(both()), 2) == [[3.0, 3.0]] * 2


def test_ranks_that_share_a_pool(ranks: Ranks) -> None:
    """A call is of the rank that made it, whichever thread carries it out."""
    with ThreadPoolExecutor(2) as pool:
        assert ranks(
            lambda: [pool.submit(dist.get_rank).result() + pool.submit(_sum).result() for _ in range(3)], 2
        ) == [
            [3.0] * 3,
            [4.0] * 3,
        ]


def test_a_call_that_fails_says_so_to_whoever_asks(ranks: Ranks) -> None:
    def body() -> str:
        with ThreadPoolExecutor(1) as pool:
            promised = pool.submit(lambda: dist.all_reduce(torch.ones(2), group=object()))
            return type(promised.exception()).__name__

    assert ranks(body, 2) != [None, None]


def test_a_prefetcher_moves_batches_to_its_ranks_gpu(ranks: Ranks) -> None:
    """A daemon that fills a queue, on a stream of its own; what it makes is on the GPU that it chooses, as is what follows of
    it: a thread begins on ``cuda:0``, as with CUDA."""

    def body() -> list[Any]:
        gpu = dist.get_rank()
        torch.cuda.set_device(gpu)
        batches: queue.Queue[torch.Tensor | None] = queue.Queue(maxsize=2)

        def produce() -> None:
            torch.cuda.set_device(gpu)
            with torch.cuda.stream(torch.cuda.Stream()):
                for number in range(5):
                    batch = torch.full((4,), float(number)).cuda() * 2
                    torch.cuda.current_stream().synchronize()
                    batches.put(batch)
                batches.put(None)

        threading.Thread(target=produce, daemon=True).start()
        found: list[Any] = []
        while (batch := batches.get()) is not None:
            assert torch.cuda.current_stream() == torch.cuda.default_stream()
            dist.all_reduce(batch)
            found.append((batch[0].item(), batch.device.index))
        return found

    for rank, found in enumerate(ranks(body, 2, backend="nccl")):
        assert found == [(4.0 * number, rank) for number in range(5)]


@pytest.mark.parametrize("polls", [False, True])
def test_a_thread_that_waits_at_a_pipe_lets_its_rank_go_on(ranks: Ranks, polls: bool) -> None:
    """As a loader does that pins what its worker processes send, while they wait for what the rank tells them."""

    def body() -> float:
        here, there = multiprocessing.Pipe(duplex=False)
        acts: queue.Queue[None] = queue.Queue()
        answers: queue.Queue[float] = queue.Queue()

        def serve() -> None:
            doubled = torch.full((2,), 2.0, device="cuda")  # from here on it takes turns
            acts.put(None)
            while polls and not here.poll(5.0):
                pass
            answers.put((doubled * here.recv()).sum().item())

        threading.Thread(target=serve, daemon=True).start()
        acts.get()
        there.send(dist.get_rank() + 1)
        return answers.get()

    assert ranks(body, 2, backend="nccl") == [4.0, 8.0]


def test_a_checkpoint_is_written_by_a_thread(ranks: Ranks, tmp_path: Path) -> None:
    def body() -> list[float]:
        weight = torch.full((4,), 7.0)
        written = dcp.async_save({"weight": weight}, checkpoint_id=tmp_path / "checkpoint", no_dist=False)
        total = _sum()  # meanwhile
        written.result()  # type: ignore[union-attr]
        found = {"weight": torch.zeros(4)}
        dcp.load(found, checkpoint_id=tmp_path / "checkpoint")
        return [total, *found["weight"].tolist()]

    assert ranks(body, 2) == [[3.0, 7.0, 7.0, 7.0, 7.0]] * 2


def test_what_nobody_waits_for_is_done_at_the_end() -> None:
    found: dict[int, float] = {}

    def body() -> None:
        rank = dist.get_rank()
        threading.Thread(target=lambda: found.update({rank: _sum()})).start()
        kept.append(ThreadPoolExecutor(1))
        kept[-1].submit(lambda: found.update({rank + 10: _sum(dist.group.WORLD)}))

    kept: list[ThreadPoolExecutor] = []

    def worker(rank: int) -> None:
        dist.init_process_group("gloo")
        body()

    with kernbench.simulate() as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=2)
    for pool in kept:
        pool.shutdown()
    assert found == {0: 3.0, 1: 3.0, 10: 3.0, 11: 3.0}


def _fails(ctx: Any, worker: Callable[[int], None]) -> dict[int, BaseException]:
    with pytest.raises(kernbench.SpawnException) as caught:
        ctx.multiprocessing.spawn(worker, nprocs=2)
    return dict(caught.value.errors)


def test_a_failing_rank_ends_the_threads_of_the_others() -> None:
    """Rank 0 waits for its thread, which waits for rank 1, which fails: no rank is left behind."""
    ended: list[str] = []

    def worker(rank: int) -> None:
        dist.init_process_group("gloo")
        if rank == 1:
            dist.barrier(dist.new_group([1]))
            raise ValueError("as planned")
        thread = threading.Thread(target=_sum)
        try:
            thread.start()
            thread.join()
        finally:
            ended.append(f"joined, alive: {thread.is_alive()}")

    def waits_for_an_event(rank: int) -> None:
        dist.init_process_group("gloo")
        if rank == 1:
            raise ValueError("as planned")
        told = threading.Event()
        threading.Thread(target=lambda: (_sum(), told.set())).start()
        try:
            told.wait()
        finally:
            ended.append("told")

    with kernbench.simulate() as ctx:
        for each in (worker, waits_for_an_event):
            errors = _fails(ctx, each)
            assert set(errors) == {1}
            assert "as planned" in str(errors[1])
        totals: list[float] = []

        def again(rank: int) -> None:
            dist.init_process_group("gloo")
            totals.append(_sum())

        ctx.multiprocessing.spawn(again, nprocs=2)  # the context stays usable
    assert ended == ["joined, alive: False", "told"]
    assert totals == [3.0, 3.0]


def test_times_are_the_same_each_time() -> None:
    def run() -> list[float]:
        ends: list[float] = []

        def worker(rank: int) -> None:
            dist.init_process_group("gloo")
            group = dist.new_group(backend="gloo")
            with ThreadPoolExecutor(1) as pool:
                for _ in range(5):
                    written = pool.submit(_sum, group)
                    _sum()
                    written.result()

        with kernbench.simulate("dgx_h100") as ctx:
            ctx.multiprocessing.spawn(worker, nprocs=2)
            ends += [op.end for op in ctx.engine.op_log.operations if op.end is not None]
        return ends

    assert run() == run()


def test_a_rank_is_told_of_its_own_threads_alone(ranks: Ranks) -> None:
    """As a suite looks for those that a test has left behind."""

    def body() -> list[set[str]]:
        before = set(threading.enumerate())
        over = threading.Event()
        seen: list[set[threading.Thread]] = []

        def look() -> None:
            over.wait()
            seen.append(set(threading.enumerate()))

        thread = threading.Thread(target=look, name=f"of rank {dist.get_rank()}")
        thread.start()
        dist.barrier()  # the others have started theirs
        during, count = set(threading.enumerate()), threading.active_count()
        dist.barrier()
        over.set()
        thread.join()
        assert threading.current_thread() in before
        assert count == len(during)
        assert seen == [during]
        assert set(threading.enumerate()) == before
        return [{each.name for each in during - before}, {each.name for each in before}]

    for rank, (new, before) in enumerate(ranks(body, 3)):
        assert new == {f"of rank {rank}"}
        assert {name for name in before if name.startswith("kernbench-")} == {f"kernbench-rank-{rank}"}


def test_an_adopted_program_is_not_told_of_what_drives_it() -> None:
    over = threading.Event()

    def leaves_a_daemon(rank: int) -> None:
        threading.Thread(target=over.wait, daemon=True).start()

    with kernbench.simulate() as ctx:  # what an earlier run has left is there before
        ctx.multiprocessing.spawn(leaves_a_daemon, nprocs=2)
    before = threading.enumerate()
    with kernbench.simulated_gpu():
        assert threading.enumerate() == before
    assert threading.enumerate() == before
    over.set()
