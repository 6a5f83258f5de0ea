"""The time that a thread has had: what the machine has kept it waiting for does not count."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernbench.scheduler.thread_effort import Effort

pytestmark = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this system does not count it")


@pytest.fixture
def busy() -> Iterator[list[threading.Thread]]:
    """Three threads that share one processor and want it always: releasing the interpreter's lock, as torch does."""
    over, began = threading.Event(), threading.Barrier(4)

    def work() -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        began.wait()
        while not over.is_set():
            os.urandom(1 << 20)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    began.wait()
    yield threads
    over.set()
    for thread in threads:
        thread.join()


def test_time_without_a_processor_does_not_count(busy: list[threading.Thread]) -> None:
    efforts = [Effort(thread) for thread in busy]
    for _ in range(600):
        threading.Event().wait(0.05)
        if all(each.of(1.0) < 1.0 for each in efforts):
            return
    pytest.fail("threads that share a processor were never kept waiting")


def test_time_that_a_thread_sleeps_counts() -> None:
    over = threading.Event()
    asleep = threading.Thread(target=over.wait, daemon=True)
    asleep.start()
    effort = Effort(asleep)
    for _ in range(600):  # it has something to do until it sleeps
        threading.Event().wait(0.05)
        if effort.of(1.0) == 1.0:
            break
    else:
        pytest.fail("a thread that sleeps was kept waiting")
    over.set()
    asleep.join()
