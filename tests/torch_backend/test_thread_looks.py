"""Threads of ranks that look at each other in loops, without waiting."""

from __future__ import annotations

import multiprocessing
import queue
import re
import threading
import time
from collections.abc import Callable
from concurrent import futures
from typing import Any

import pytest
import torch
import torch.distributed as dist

import kernbench
from tests.torch_backend.conftest import Ranks

ISOLATIONS = ("carrier", "process")


def _started(body: Callable[[], Any], *, daemon: bool = False) -> threading.Thread:
    thread = threading.Thread(target=body, daemon=daemon)
    thread.start()
    return thread


def _future() -> list[float]:
    future = futures.ThreadPoolExecutor(1).submit(time.sleep, 0.5)
    while not future.done():
        pass
    return [time.perf_counter()]


def _one_of_several_futures() -> list[float]:
    pool, found = futures.ThreadPoolExecutor(3), []
    sleeps = [pool.submit(time.sleep, 0.25 * (i + 1)) for i in range(3)]
    for wanted in (1, 3):
        while len([each for each in sleeps if each.done()]) < wanted:
            pass
        found.append(time.perf_counter())
    return found


def _event_and_end() -> list[float]:
    event = threading.Event()
    thread = _started(lambda: (time.sleep(0.25), event.set(), time.sleep(0.25)))
    found = []
    while not event.is_set():
        pass
    found.append(time.perf_counter())
    while thread.is_alive():
        pass
    return [*found, time.perf_counter()]


def _queue_filled_and_emptied() -> list[float]:
    items: queue.Queue[int] = queue.Queue()
    found = []

    def work() -> None:
        time.sleep(0.25)
        items.put(1)
        time.sleep(0.25)
        items.get()

    _started(work)
    while items.empty():
        pass
    found.append(time.perf_counter())
    while not items.empty():
        pass
    found.append(time.perf_counter())
    _started(lambda: (time.sleep(0.5), items.put(2)))
    while True:
        try:
            items.get_nowait()
        except queue.Empty:
            continue
        return [*found, time.perf_counter()]


def _lock_and_semaphore() -> list[float]:
    lock, semaphore, found = threading.RLock(), threading.Semaphore(0), []

    def work() -> None:
        with lock:
            time.sleep(0.25)
        time.sleep(0.25)
        semaphore.release()

    _started(work)
    time.sleep(0.125)
    while not lock.acquire(blocking=False):
        pass
    lock.release()
    found.append(time.perf_counter())
    while not semaphore.acquire(blocking=False):
        pass
    return [*found, time.perf_counter()]


def _each_other() -> list[float]:
    first, second, third = threading.Event(), threading.Event(), threading.Event()

    def answer() -> None:
        while not first.is_set():
            pass
        second.set()
        while not third.is_set():
            pass

    thread = _started(answer)
    time.sleep(0.25)
    first.set()
    while not second.is_set():
        pass
    time.sleep(0.25)
    third.set()
    while thread.is_alive():
        pass
    return [time.perf_counter()]


def _producer_without_a_limit() -> list[float]:
    stop, items = threading.Event(), queue.Queue[int]()

    def produce() -> None:
        while not stop.is_set():
            items.put(1)

    thread = _started(produce)
    time.sleep(0.5)
    stop.set()
    thread.join()
    assert items.get() == 1
    return [time.perf_counter()]


def _variable() -> list[float]:
    found: list[int] = []
    _started(lambda: (time.sleep(0.5), found.append(1)))
    while not found:
        time.sleep(0)
    return [time.perf_counter()]


def _daemon_that_computes() -> list[float]:
    event = threading.Event()
    _started(lambda: (sum(range(300_000)), event.set()), daemon=True)
    while not event.is_set():
        pass
    return [time.perf_counter()]


def _daemon_that_looks() -> list[float]:
    event, found = threading.Event(), list[float]()

    def look() -> None:
        while not event.is_set():
            pass
        found.append(time.perf_counter())

    thread = _started(look, daemon=True)
    time.sleep(0.5)
    event.set()
    thread.join()
    return found


def _shared_value() -> list[float]:
    value, places = multiprocessing.Value("d", 0.0), multiprocessing.Array("i", 2)

    def write() -> None:
        time.sleep(0.25)
        value.value = 1.0
        time.sleep(0.25)
        places[1] = 2

    _started(write)
    found = []
    while value.value == 0.0:
        pass
    found.append(time.perf_counter())
    while places[0] + places[1] == 0:
        pass
    return [*found, time.perf_counter()]


CASES: dict[Callable[[], list[float]], list[float]] = {
    _future: [0.5],
    _one_of_several_futures: [0.25, 0.75],
    _event_and_end: [0.25, 0.5],
    _queue_filled_and_emptied: [0.25, 0.5, 1.0],
    _lock_and_semaphore: [0.25, 0.5],
    _each_other: [0.5],
    _producer_without_a_limit: [0.5],
    _variable: [0.5],
    _daemon_that_computes: [0.0],
    _daemon_that_looks: [0.5],
    _shared_value: [0.25, 0.5],
}
"""Programs, and when they see what they look for."""


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_what_a_loop_waits_for_is_seen_when_it_happens(ranks: Ranks, isolation: str) -> None:
    def body() -> None:
        for case, times in CASES.items():
            begin = time.perf_counter()
            assert [each - begin for each in case()] == pytest.approx(times, abs=1e-5), (
                case
            )  # a look at a clock takes time, too

    ranks(body, 2, isolation=isolation)


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_loop_that_works_lets_the_others_have_got_as_far(ranks: Ranks, isolation: str) -> None:
    def body() -> None:
        value = torch.zeros(1024, 1024, device="cuda")
        future = futures.ThreadPoolExecutor(1).submit(time.sleep, 1e-3)
        steps = 0
        while not future.done():
            value = value + 1
            steps += 1
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, (steps, end := time.perf_counter()))
        assert found == [(steps, end)] * 2
        assert 20 < steps < 500
        assert 1e-3 <= end < 1.2e-3

    ranks(body, 2, backend="nccl", isolation=isolation)


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_one_that_looks_in_passing_is_no_deadlock(ranks: Ranks, isolation: str) -> None:
    def body() -> None:
        event = threading.Event()
        thread = _started(event.wait)
        for _ in range(30_000):
            event.is_set()
        event.set()
        for _ in range(30_000):
            event.is_set()
        thread.join()
        assert time.perf_counter() < 1e-6

    ranks(body, 2, isolation=isolation)


def test_what_nothing_can_bring_is_a_deadlock(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernbench.simulation.time.thread_looks._HOPELESS", 5000)

    def body() -> None:
        event = threading.Event()
        _started(lambda: None).join()
        if dist.get_rank() == 0:
            while not event.is_set():
                pass
        dist.barrier()

    with pytest.raises(kernbench.SpawnException, match="rank 0: waits for another thread, at which it looks") as failed:
        ranks(body, 2)
    assert re.search(r"test_thread_looks\.py:\d+ in body", str(failed.value))
