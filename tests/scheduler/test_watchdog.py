"""A rank that blocks its thread is named; where nothing could ever wake it, the run ends instead of hanging."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import pytest

import kernbench
from kernbench.scheduler import watchdog

needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "PERIOD", 0.05)
    monkeypatch.setattr(watchdog, "PATIENCE", 4)


def run_alone(program: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Run ``program`` in a process of its own: other tests leave threads, which might wake a rank for all that is known."""
    script = tmp_path / "program.py"
    script.write_text(IMPATIENT + program)
    return subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=250, check=False)


IMPATIENT = """
import queue
import threading

import kernbench
from kernbench.scheduler import watchdog

watchdog.PERIOD, watchdog.PATIENCE = 0.05, 4
"""

HELD_LOCK = """
lock = threading.Lock()
ended = []

def body(rank, ctx):
    ctx.distributed.init_process_group()
    try:
        with lock:
            ctx.distributed.barrier()
    finally:
        ended.append(rank)

with kernbench.simulate() as ctx:
    try:
        ctx.multiprocessing.spawn(body, args=(ctx,), nprocs=2)
    except watchdog.HiddenBlockingError as error:
        print(error)
    assert 0 in ended, "the others are unwound"
    ctx.multiprocessing.spawn(lambda rank: ended.append(10 + rank), nprocs=2)
assert {10, 11} <= set(ended)
"""

HELD_BY_LOGGING = """
import logging

class Waits(logging.Formatter):
    def format(self, record):
        context.distributed.barrier()
        return "formatted"

handler = logging.StreamHandler()
handler.setFormatter(Waits())
logging.getLogger("waits").addHandler(handler)

def body(rank):
    context.distributed.init_process_group()
    logging.getLogger("waits").warning("hello")

with kernbench.simulate() as context:
    try:
        context.multiprocessing.spawn(body, nprocs=2)
    except watchdog.HiddenBlockingError as error:
        print(error)
"""  # at its end Python asks for the same lock

EMPTY_QUEUE = """
waiting = queue.Queue()
with kernbench.simulate() as ctx:
    try:
        ctx.multiprocessing.spawn(lambda rank: waiting.get() if rank == 0 else None, nprocs=2)
    except watchdog.HiddenBlockingError as error:
        print(error)
"""


@needs_proc
def test_a_lock_held_across_a_collective_ends_the_run(tmp_path: Path) -> None:
    result = run_alone(HELD_LOCK, tmp_path)
    assert result.returncode == 0, result.stderr
    assert re.search(r"rank 1 has been blocking(.|\n)*with lock:(.|\n)*Do not hold", result.stdout)
    assert re.search(
        r"`lock` is held by rank 0(.|\n)*program.py\", line \d+, in body\n +ctx.distributed.barrier", result.stdout
    )
    assert "kernbench: rank 1" in result.stderr


@needs_proc
def test_a_thread_that_only_looks_wakes_nobody(tmp_path: Path) -> None:
    looks = "threading.Thread(target=threading.Event().wait, name=watchdog.PROGRESS_THREAD, daemon=True).start()\n"
    result = run_alone(looks + EMPTY_QUEUE, tmp_path)
    assert result.returncode == 0, result.stderr
    assert re.search(r"rank 0(.|\n)*waiting.get", result.stdout)


@needs_proc
def test_an_empty_queue_ends_the_run(tmp_path: Path) -> None:
    result = run_alone(EMPTY_QUEUE, tmp_path)
    assert result.returncode == 0, result.stderr
    assert re.search(r"rank 0(.|\n)*waiting.get", result.stdout)


@needs_proc
def test_a_handler_that_waits_while_it_holds_its_lock_ends_the_run(tmp_path: Path) -> None:
    result = run_alone(HELD_BY_LOGGING, tmp_path)
    assert result.returncode == 0, result.stderr
    assert re.search(r"`self.lock` is held by rank 0(.|\n)*in format\n +context.distributed.barrier", result.stdout)


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


class Value:
    """What a function holds."""


@needs_proc
@pytest.mark.parametrize("opens", ["pathlib.Path.read_text", "linecache.getline"])
def test_a_look_keeps_nothing_of_a_running_thread_alive(opens: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a file is read for a look, other threads run: what one drops then is gone, so torch counts what it would alone."""
    held: list[weakref.ref[Value]] = []
    inside, leave, left, end = (threading.Event() for _ in range(4))

    def holds() -> None:
        value = Value()
        held.append(weakref.ref(value))
        inside.set()
        leave.wait()

    def run() -> None:
        holds()
        left.set()
        end.wait()

    alive = []

    def read(*_: object) -> str:
        leave.set()
        left.wait()
        alive.append(held[0]() is not None)
        return "1 2 3"

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    inside.wait()
    with monkeypatch.context() as patched:
        patched.setattr(opens, read)
        if opens.startswith("pathlib"):
            watchdog.place_of(thread)
        else:
            watchdog._stack_of(thread)
    end.set()
    assert alive
    assert not any(alive)
