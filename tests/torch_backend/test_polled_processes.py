"""A rank that asks again and again whether a process of its own still runs does not overtake it."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import time

import pytest

import kernbench

QUARTER = [sys.executable, "-c", "import time; time.sleep(0.25)"]


def started(how: str):
    """A process that runs for a quarter of a second or more, and what asks whether it does."""
    if how == "subprocess":
        command = subprocess.Popen(QUARTER)
        return command, lambda: command.poll() is None
    process = multiprocessing.get_context("fork" if how == "fork" else "spawn").Process(
        target=subprocess.run, args=(QUARTER,)
    )
    process.start()
    return process, (process.is_alive if how == "fork" else lambda: process.exitcode is None)


@pytest.mark.parametrize("how", ["subprocess", "fork", "spawn"])
def test_a_loop_with_a_limit_sees_its_process_end(how):
    def worker(rank):
        process, runs = started(how)
        begin = time.time()
        while runs() and time.time() - begin < 100:
            time.sleep(0.1)
        assert not runs(), "a thousand looks were over before the process was"
        assert process.wait() == 0 if how == "subprocess" else process.exitcode == 0
        found.append(time.time() - begin)

    found: list[float] = []
    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
        assert any("asks again and again whether a process" in remark for remark in ctx.simulation.remarks)
    assert 0.1 <= found[0] < 100


def test_a_sleep_that_no_look_came_before_takes_no_time_of_the_machine():
    def worker(rank):
        command = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        try:
            assert command.poll() is None
            time.sleep(1e-3)
            time.sleep(1e6)  # eleven days, if it were the machine's
            found.append(time.time())
        finally:
            command.communicate(b"\n")

    found: list[float] = []
    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
    assert found[0] > 1_577_836_800 + 1e6


@pytest.mark.parametrize("isolation", ["carrier", "process"])
def test_a_wait_with_a_limit_takes_no_time_if_the_process_ends_and_else_the_limit(isolation):
    def worker(rank):
        begin = time.time()
        assert subprocess.run(["sleep", "0.1"], timeout=60, check=True).returncode == 0
        assert subprocess.check_output(["echo", "said"], timeout=60) == b"said\n"
        assert time.time() - begin < 1e-3
        command = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
        try:
            with pytest.raises(subprocess.TimeoutExpired, match=r"timed out after 0\.01 seconds"):
                command.wait(timeout=0.01)
            assert 0.01 <= time.time() - begin < 0.012
        finally:
            command.communicate()

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1, isolation=isolation)
        assert any("up to its limit" in remark for remark in ctx.simulation.remarks)
        assert ctx.now() < 0.012
