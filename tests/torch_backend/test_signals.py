"""Handlers of signals are each rank's, whose thread is not the process's main one."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from typing import Any

import pytest
import torch.distributed as dist

import kernbench
from kernbench.torch_backend.rank_state.signals import ALARMED, HANDLED
from tests.torch_backend.conftest import Ranks


def test_a_rank_handles_signals_as_the_main_thread_of_its_program(ranks: Ranks) -> None:
    mine = signal.getsignal(signal.SIGTERM)

    def body() -> list[Any]:
        came: list[Any] = []
        rank = dist.get_rank()
        before = [
            signal.getsignal(signal.SIGTERM),
            signal.signal(signal.SIGTERM, lambda number, _: came.append((rank, number))),
        ]
        dist.barrier()
        os.kill(os.getpid(), signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        last = signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.kill(os.getpid(), signal.SIGTERM)
        return [*before, callable(last), signal.getsignal(signal.SIGTERM), came]

    for rank, found in enumerate(ranks(body, 2)):
        assert found == [signal.SIG_DFL, signal.SIG_DFL, True, signal.SIG_IGN, [(rank, 15)] * 2]
    assert signal.getsignal(signal.SIGTERM) is mine


def test_what_is_no_handler_or_cannot_be_handled_is_refused(ranks: Ranks) -> None:
    def body() -> bool:
        with pytest.raises(TypeError):
            signal.signal(signal.SIGTERM, "stop")  # type: ignore[arg-type]
        with pytest.raises(OSError, match="Invalid argument"):
            signal.signal(signal.SIGKILL, signal.SIG_IGN)
        return signal.getsignal(signal.SIGINT) is signal.default_int_handler

    assert ranks(body, 2) == [True, True]


@pytest.mark.parametrize(
    "send",
    [lambda: signal.raise_signal(signal.SIGINT), lambda: os.kill(os.getpid(), signal.SIGINT)],
    ids=["raise", "kill"],
)
def test_an_interrupt_that_a_rank_sends_itself_is_raised_there(ranks: Ranks, send: Any) -> None:
    def body() -> int:
        if dist.get_rank() == 1:
            with pytest.raises(KeyboardInterrupt):
                send()
        dist.barrier()
        return dist.get_rank()

    assert ranks(body, 2) == [0, 1]


def test_the_summary_says_what_does_not_reach_a_rank() -> None:
    def worker(rank: int) -> None:
        signal.signal(signal.SIGALRM, lambda number, frame: None)
        signal.alarm(1)
        signal.alarm(0)

    with kernbench.simulate() as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=2)
        said = [*ctx.simulation.remarks]
    assert HANDLED in said
    assert ALARMED in said


def test_the_main_thread_is_the_one_of_the_ranks_program(ranks: Ranks) -> None:
    """Programs and libraries ask before they set handlers, or make an event loop."""

    def body() -> list[bool]:
        in_thread: list[bool] = []
        own = threading.current_thread()
        thread = threading.Thread(
            target=lambda: in_thread.extend([threading.main_thread() is own, threading.current_thread() is own])
        )
        thread.start()
        thread.join()
        return [threading.main_thread() is own, *in_thread]

    assert ranks(body, 2) == [[True, True, False]] * 2
    assert threading.main_thread() is threading.current_thread()


def test_an_event_loop_handles_signals(ranks: Ranks) -> None:
    async def body() -> int:
        loop, came = asyncio.get_running_loop(), asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, came.set)
        os.kill(os.getpid(), signal.SIGTERM)
        await came.wait()
        assert loop.remove_signal_handler(signal.SIGTERM)
        return dist.get_rank()

    assert ranks(lambda: asyncio.run(body()), 2) == [0, 1]


def test_a_descriptor_that_cannot_tell_of_signals_is_refused(ranks: Ranks) -> None:
    def body() -> tuple[int, int]:
        begin, end = os.pipe()
        with pytest.raises(ValueError, match="non-blocking"):
            signal.set_wakeup_fd(end)
        os.set_blocking(end, False)
        before = signal.set_wakeup_fd(end)
        signal.signal(signal.SIGUSR1, lambda number, frame: None)
        signal.raise_signal(signal.SIGUSR1)
        assert os.read(begin, 1) == bytes([signal.SIGUSR1])
        last = signal.set_wakeup_fd(-1)
        os.close(begin)
        os.close(end)
        with pytest.raises(OSError, match="Bad file descriptor"):
            signal.set_wakeup_fd(end)
        return before, last - end

    assert ranks(body, 2) == [(-1, 0)] * 2


def test_event_loops_of_themselves_are_no_handlers_of_a_program() -> None:
    def worker(rank: int) -> None:
        asyncio.run(asyncio.sleep(1))

    with kernbench.simulate() as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=2)
        assert HANDLED not in ctx.simulation.remarks
