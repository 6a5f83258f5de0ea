"""A rank that asks again and again whether a process of its own still runs: real time passes between two looks.

Such a process has no virtual time, or that of another simulation; a loop that asks after it and sleeps would go round
thousands of times, and past every limit of its own, before the process has begun. So a sleep right after such a look lasts, on
the host, until the process has ended, and at most as long as it says. The rank's clock goes on by what it says in any case.

How often the rank looks, and so its clock, then depends on the host; the run's remarks say so.

A rank that waits for such a process with a limit (``subprocess.run(..., timeout=10)``) waits as Python does, by the host's
clock, and no virtual time passes, as without a limit; if the limit does, that much.
"""

from __future__ import annotations

import functools
import multiprocessing.popen_fork
import os
import select
import subprocess
import time
from collections.abc import Callable
from typing import Any

from kernbench.scheduler.crew import is_forked
from kernbench.simulation.simulation import Simulation
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

SLICE = 1.0
"""Seconds of the host's time after which a rank that waits for a process lets the other ranks go on, which it may need."""

NEAR = 1e-3
"""Virtual seconds after a look within which a sleep belongs to it: a few looks at the clock, and no work."""

RELIES_ON = (
    Reliance(
        "multiprocessing.popen_fork.Popen", "whether a process of multiprocessing runs is asked there", has=("poll",)
    ),
    Reliance("subprocess.Popen", "whether a command runs is asked there", has=("poll",)),
    Reliance("subprocess.Popen._wait", "all waits for a command are there", parameters=("self", "timeout")),
)


class PolledProcesses:
    """By rank, the processes that have been found running, and when."""

    def __init__(self) -> None:
        self._simulation: Simulation | None = None
        self._found: dict[int, tuple[float, set[int]]] = {}

    def open(self, simulation: Simulation) -> None:
        """Heed the ranks of ``simulation``."""
        self._simulation = simulation

    def close(self) -> None:
        """Heed no process. Idempotent."""
        self._simulation = None
        self._found.clear()

    def runs(self, pid: int) -> None:
        """The acting rank has found the process ``pid`` running."""
        simulation = self._simulation
        if simulation is None or (rank := simulation.scheduler.current_rank()) is None:
            return
        now = simulation.hosts.current().clock
        since, pids = self._found.get(rank, (now, set()))
        if now - since > NEAR:
            since, pids = now, set()
        pids.add(pid)
        self._found[rank] = since, pids

    def await_end(self, pid: int, seconds: float) -> bool:
        """Wait in the acting rank until a process ends, at most so long by the host's clock; false where no rank acts."""
        simulation = self._simulation
        if simulation is None or is_forked() or simulation.scheduler.current_rank() is None:
            return False
        while not _until_one_ends({pid}, min(seconds, SLICE)):
            if seconds <= SLICE:
                simulation.remarks.setdefault(
                    "a rank waited for a process of its own up to its limit, which is by this machine's clock"
                )
                break
            seconds -= SLICE
            simulation.waits.sleep(0.0)
        return True

    def let_end(self, rank: int, now: float, seconds: float) -> None:
        """``rank`` is about to sleep at virtual time ``now``: let one of what it has just found running end, in real time."""
        since, pids = self._found.pop(rank, (now, set()))
        if not pids or now - since > NEAR:
            return
        assert self._simulation is not None
        self._simulation.remarks.setdefault(
            "a rank asks again and again whether a process of its own still runs: how often, and so its clock, depends on "
            "this machine"
        )
        _until_one_ends(pids, seconds)


def _until_one_ends(pids: set[int], seconds: float) -> bool:
    """Wait at most so many real seconds; whether one has ended."""
    poll, descriptors = select.poll(), list[int]()
    try:
        for pid in sorted(pids):
            try:
                descriptors.append(os.pidfd_open(pid))
            except ProcessLookupError:
                return True
            poll.register(descriptors[-1], select.POLLIN)
        return bool(poll.poll(max(seconds, 0.0) * 1e3))
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def install(patches: Patches, polled: PolledProcesses) -> None:
    """Note what multiprocessing and subprocess find running."""

    def noting(stock: Callable[..., int | None]) -> Callable[..., int | None]:
        @functools.wraps(stock)
        def poll(self: Any, *args: object, **kwargs: object) -> int | None:
            code = stock(self, *args, **kwargs)
            if code is None:
                polled.runs(self.pid)
            return code

        return poll

    stock_wait: Any = vars(subprocess.Popen)["_wait"]

    @functools.wraps(stock_wait)
    def wait(self: Any, timeout: float | None) -> int | None:
        if timeout is None or self.returncode is not None or not polled.await_end(self.pid, timeout):
            return stock_wait(self, timeout)
        try:
            return stock_wait(self, 0)
        except subprocess.TimeoutExpired:
            time.sleep(max(timeout, 0.0))
            raise subprocess.TimeoutExpired(self.args, timeout) from None

    patches.set(subprocess.Popen, "_wait", wait)
    for kind in (multiprocessing.popen_fork.Popen, subprocess.Popen):
        patches.set(kind, "poll", noting(vars(kind)["poll"]))
