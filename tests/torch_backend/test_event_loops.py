"""Event loops, and waits with a limit, of ranks: what passes is virtual time, and whatever a loop waits for wakes it up."""

from __future__ import annotations

import asyncio
import queue
import select
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.torch_backend.conftest import Ranks

HOURS = 36_000.0  # no machine waits for that


def _took(wait: Any) -> float:
    begin = time.monotonic()
    wait()
    return time.monotonic() - begin


def test_a_sleep_of_a_loop_passes_in_virtual_time(ranks: Ranks) -> None:
    async def both() -> list[float]:
        async def one(seconds: float) -> float:
            await asyncio.sleep(seconds)
            value = torch.full((2,), dist.get_rank() + 1.0)
            dist.all_reduce(value)
            return float(value[0])

        return await asyncio.gather(one(HOURS), one(HOURS / 2))

    for found, took in ranks(
        lambda: (lambda begin: (asyncio.run(both()), time.monotonic() - begin))(time.monotonic()), 2
    ):
        assert found == [3.0, 3.0]
        assert took == pytest.approx(HOURS, rel=1e-4)


def test_a_thread_wakes_a_loop_that_would_wait_for_longer(ranks: Ranks) -> None:
    async def body() -> float:
        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            time.sleep(10)
            loop.call_soon_threadsafe(woken.set)

        thread = threading.Thread(target=wake)
        thread.start()
        begin = time.monotonic()
        await asyncio.wait_for(woken.wait(), HOURS)
        took = time.monotonic() - begin
        thread.join()
        return took

    assert ranks(lambda: asyncio.run(body()), 2) == [pytest.approx(10, rel=1e-3)] * 2


def test_a_limit_runs_out_while_a_pool_is_there(ranks: Ranks) -> None:
    async def body() -> float:
        begin = time.monotonic()
        with ThreadPoolExecutor(1) as pool:
            await asyncio.get_running_loop().run_in_executor(pool, time.sleep, 5)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), HOURS)
        return time.monotonic() - begin

    assert ranks(lambda: asyncio.run(body()), 2) == [pytest.approx(HOURS + 5, rel=1e-4)] * 2


def test_a_file_that_a_loop_watches_is_read_when_there_is_something(ranks: Ranks) -> None:
    async def body() -> bytes:
        here, there = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=here)
        asyncio.get_running_loop().call_later(0.001, there.send, b"word")
        found = await asyncio.wait_for(reader.readexactly(4), 30)
        writer.close()
        there.close()
        return found

    assert ranks(lambda: asyncio.run(body()), 2) == [b"word"] * 2


def _conditions() -> None:
    with (held := threading.Condition()):
        assert not held.wait_for(lambda: False, HOURS)


def _queue() -> None:
    with pytest.raises(queue.Empty):
        queue.Queue[int]().get(timeout=HOURS)


def _lock() -> None:
    (lock := threading.Lock()).acquire()
    assert not lock.acquire(timeout=HOURS)


@pytest.mark.parametrize(
    "wait",
    [
        lambda: threading.Event().wait(HOURS), lambda: threading.Semaphore(0).acquire(timeout=HOURS), _conditions, _queue,
        _lock, lambda: select.select([], [], [], HOURS),
    ],
    ids=["event", "semaphore", "condition", "queue", "lock", "select"],
)  # fmt: skip
def test_a_limit_of_a_rank_that_has_one_thread_passes_in_virtual_time(ranks: Ranks, wait: Any) -> None:
    assert ranks(lambda: _took(wait), 2) == [pytest.approx(HOURS, rel=1e-4)] * 2


def test_threads_that_were_there_before_the_ranks_are_none_of_theirs(ranks: Ranks) -> None:
    """A library's pool, a notebook's kernel: they would otherwise make the limit the machine's time."""
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    try:
        assert ranks(lambda: threading.Event().wait(HOURS), 2) == [False, False]
    finally:
        ended.set()
        thread.join()


def test_another_rank_notifies_one_that_waits_with_a_limit(ranks: Ranks) -> None:
    """They share an event, as ranks of one process can; who waits lets the other one run."""
    event = threading.Event()

    def body() -> bool:
        if dist.get_rank() == 0:
            return event.wait(10)
        event.set()
        return True

    assert ranks(body, 2, isolation="carrier") == [True, True]
