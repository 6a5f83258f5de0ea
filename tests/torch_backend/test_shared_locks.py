"""A lock of :mod:`multiprocessing` that one rank has made, and others find in a module that all share, as tqdm's."""

from __future__ import annotations

import multiprocessing
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

import kernbench

KINDS = ("Lock", "RLock")


def spawned(body: Any) -> list[Any]:
    """What ``body(rank, shared)`` returns in each of two ranks."""
    shared, found = SimpleNamespace(), [None, None]

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        found[rank] = body(rank, shared)

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=2)
    return found


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_waits_for_the_one_that_has_it(kind: str) -> None:
    def body(rank: int, shared: Any) -> tuple[float, float]:
        if rank == 0:
            shared.lock = getattr(multiprocessing, kind)()
        dist.barrier()
        with shared.lock:
            begin = time.monotonic()
            if kind == "RLock":
                with shared.lock:
                    time.sleep(0.5)
            time.sleep(0.5)
            return begin, time.monotonic()

    first, second = sorted(spawned(body))
    assert first[1] <= second[0]
    assert second[0] - first[0] == pytest.approx(1.0 if kind == "RLock" else 0.5, abs=1e-3)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", KINDS)
def test_it_waits_no_longer_than_it_said(kind: str) -> None:
    def body(rank: int, shared: Any) -> Any:
        if rank == 0:
            shared.lock = getattr(multiprocessing, kind)()
            shared.lock.acquire()
            dist.barrier()
            time.sleep(5)
            shared.lock.release()
            return None
        dist.barrier()
        begin = time.monotonic()
        found = [shared.lock.acquire(False), shared.lock.acquire(timeout=1), time.monotonic() - begin]
        return [*found, shared.lock.acquire(), time.monotonic() - begin]

    assert spawned(body)[1] == [False, False, pytest.approx(1.0, abs=1e-3), True, pytest.approx(5.0, abs=1e-3)]


@pytest.mark.timeout(60)
def test_one_that_is_never_released_is_a_deadlock() -> None:
    def body(rank: int, shared: Any) -> None:
        if rank == 0:
            shared.lock = multiprocessing.Lock()
            shared.lock.acquire()
        dist.barrier()
        if rank == 0:
            dist.barrier()
        shared.lock.acquire()

    with pytest.raises(kernbench.SpawnException) as caught:
        spawned(body)
    assert any("waits for a Lock of multiprocessing" in str(error) for error in caught.value.errors.values())


@pytest.mark.timeout(60)
def test_one_that_a_process_of_its_rank_has_is_waited_for_as_python_does() -> None:
    def body(rank: int, shared: Any) -> bool:
        context = multiprocessing.get_context("fork")
        lock, taken = context.Lock(), context.Event()
        process = context.Process(target=_hold, args=(lock, taken))
        process.start()
        taken.wait()
        with lock:
            process.join()
        return process.exitcode == 0

    assert spawned(body) == [True, True]


def _hold(lock: Any, taken: Any) -> None:
    with lock:
        taken.set()
        time.sleep(0.2)
