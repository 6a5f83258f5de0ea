"""A rank that blocks its thread is named; where nothing could ever wake it, the run ends instead of hanging."""

from __future__ import annotations

import queue
import sys
import threading
import time

import pytest

import kernbench
from kernbench.scheduler import watchdog

needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "PERIOD", 0.05)
    monkeypatch.setattr(watchdog, "PATIENCE", 4)


@needs_proc
def test_a_lock_held_across_a_collective_ends_the_run(capfd: pytest.CaptureFixture[str]) -> None:
    lock = threading.Lock()
    ended = []

    def body(rank: int, ctx: kernbench.RuntimeContext) -> None:
        ctx.distributed.init_process_group()
        try:
            with lock:
                ctx.distributed.barrier()
        finally:
            ended.append(rank)

    with kernbench.simulate() as ctx:
        with pytest.raises(
            watchdog.HiddenBlockingError, match=r"rank 1 has been blocking(.|\n)*with lock:(.|\n)*Do not hold"
        ):
            ctx.multiprocessing.spawn(body, args=(ctx,), nprocs=2)
        assert 0 in ended  # the others are unwound
        ctx.multiprocessing.spawn(lambda rank: ended.append(10 + rank), nprocs=2)
    assert {10, 11} <= set(ended)
    assert "kernbench: rank 1" in capfd.readouterr().err


@needs_proc
def test_an_empty_queue_ends_the_run() -> None:
    waiting: queue.Queue[int] = queue.Queue()
    with kernbench.simulate() as ctx, pytest.raises(watchdog.HiddenBlockingError, match=r"rank 0(.|\n)*waiting.get"):
        ctx.multiprocessing.spawn(lambda rank: waiting.get() if rank == 0 else None, nprocs=2)


@needs_proc
def test_a_slow_thread_is_only_reported(capfd: pytest.CaptureFixture[str]) -> None:
    sleep = time.sleep

    def body(rank: int) -> None:
        if rank == 1:
            thread = threading.Thread(target=sleep, args=(0.6,))
            thread.start()
            thread.join()

    with kernbench.simulate() as ctx:
        ctx.multiprocessing.spawn(body, nprocs=2)
    error = capfd.readouterr().err
    assert "kernbench: rank 1 has been blocking" in error
    assert "thread.join()" in error
    assert "Do not hold" not in error


def test_waiting_in_the_simulation_is_not_reported(capfd: pytest.CaptureFixture[str]) -> None:
    def body(rank: int, ctx: kernbench.RuntimeContext) -> None:
        ctx.distributed.init_process_group()
        if rank == 0:
            deadline = time.thread_time() + 0.4  # a rank that computes
            while time.thread_time() < deadline:
                pass
        ctx.distributed.barrier()

    with kernbench.simulate() as ctx:
        ctx.multiprocessing.spawn(body, args=(ctx,), nprocs=2)
    assert capfd.readouterr().err == ""
