"""One test on eight simulated ranks. With the gates open, ``cuda`` means the simulated GPUs."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import kernbench
from tests.torch_backend.torch_own.suite import FAILED, WORLD, Suite

PATIENCE = 200.0
"""Seconds after which a test is said to hang."""

_END_OF_A_LOG = 20_000
"""Characters of it that are shown."""


def run_apart(suite: Suite, name: str, isolation: str = "carrier") -> str:
    """Its outcome, from a process of its own: a test that hangs or crashes is distinguished from one that fails.

    ``isolation``: what ranks are, as ``spawn`` has it.
    """
    with tempfile.TemporaryDirectory() as folder:
        return _outcome_of(suite, name, isolation, Path(folder, "outcome"), Path(folder, "log"))


def _outcome_of(suite: Suite, name: str, isolation: str, said: Path, log: Path) -> str:
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            file = os.open(log, os.O_WRONLY | os.O_CREAT, 0o600)
            os.dup2(file, 1)
            os.dup2(file, 2)
            os.environ.update(suite.variables)
            faulthandler.dump_traceback_later(PATIENCE - 5)
            said.write_text(run_test(suite, name, isolation))
        os._exit(0)
    deadline = time.monotonic() + PATIENCE
    ended, status = os.waitpid(child, os.WNOHANG)
    while not ended and time.monotonic() < deadline:
        time.sleep(0.005)
        ended, status = os.waitpid(child, os.WNOHANG)
    if not ended:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return f"{FAILED}: hangs:\n{log.read_text(errors='replace')[-_END_OF_A_LOG:]}"
    return said.read_text() if said.exists() else f"{FAILED}: the process ended with status {status}"


def run_test(suite: Suite, name: str, isolation: str) -> str:
    """Its outcome."""
    _meet_in_a_store(suite)
    rendezvous = tempfile.mktemp()

    def body(rank: int) -> None:
        if not suite.opened:
            torch.cuda.is_available = lambda: False
            torch.cuda.device_count = lambda: 0  # type: ignore[assignment]
        suite.run(rank, name, rendezvous)

    available, count = torch.cuda.is_available, torch.cuda.device_count
    try:
        with kernbench.simulate() as ctx:
            ctx.multiprocessing.spawn(body, nprocs=WORLD, isolation=isolation)
        return suite.outcome(set())
    except kernbench.SpawnException as error:
        codes = {getattr(cause, "code", "raised") for cause in error.errors.values()}
        return suite.outcome(codes, str(error)[-900:].replace("\n", " ")[-900:])
    finally:
        torch.cuda.is_available, torch.cuda.device_count = available, count  # type: ignore[assignment]


def _meet_in_a_store(suite: Suite) -> None:
    """torch's processes meet by process id in a directory; ranks share one, and meet in a store."""
    local = threading.local()

    def sync(cls: Any, wait_for: int | None = None, timeout: float = 10) -> None:
        local.number = getattr(local, "number", 0) + 1
        dist.FileStore("harness", WORLD).barrier(f"barrier {local.number}", wait_for or WORLD)  # type: ignore[call-arg]

    suite.module.Barrier.sync = classmethod(sync)
