"""Handlers of signals are each rank's, whose thread is not the process's main one."""

from __future__ import annotations

import os
import signal
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
