"""A process that uses a GPU and is no rank, from its own side: it begins a simulation at its first use of a GPU, and writes in
the end what that came to. :mod:`kernbench.runtime_api.lone_processes` has the side of what has started it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing.process import parent_process
from pathlib import Path

from kernbench.processes import companion_waits
from kernbench.processes.own_end import at_own_end
from kernbench.runtime_api.adoption import simulated_gpu
from kernbench.runtime_api.start_up import ALONE
from kernbench.topology import resolve_topology
from kernbench.trace.process_figures import ProcessFigures, written


def begin() -> None:
    """From here on, until it ends, this process has one.

    Raises what :func:`kernbench.simulated_gpu` does.
    """
    companion_waits.end()
    told = json.loads(os.environ[ALONE])
    file = _opened(told["figures"])
    me = ProcessFigures(name=_name(), pid=os.getpid())
    _write(file, me)
    system = resolve_topology(told["system"], nodes=told["options"].pop("nodes", None))
    opened = simulated_gpu(system, **told["options"])
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(opened))  # closed at the end alone: torch is the GPU's until then
    done: list[bool] = []

    def tell() -> None:
        if os.getpid() == me.pid and not done:  # a fork of it has none
            done.append(True)
            _write(file, ProcessFigures.of(ctx.simulation, me.name, me.pid))

    def end() -> None:
        if os.getpid() == me.pid:
            try:
                opened.__exit__(None, None, None)
            finally:
                tell()

    _tell_when_terminated(tell)
    ctx = opened.__enter__()
    ctx.simulation.threads.has_others = lambda: True  # whatever has started it
    at_own_end(end)


def _name() -> str:
    """This process in the summary."""
    if parent_process() is not None:
        return multiprocessing.current_process().name
    return Path(sys.argv[0]).name if sys.argv and sys.argv[0] not in ("", "-c") else "python"


def _opened(path: str) -> int | None:
    """The file of figures; None if the run has ended, or is not of this machine."""
    with contextlib.suppress(OSError):
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    return None


def _write(file: int | None, figures: ProcessFigures) -> None:
    if file is not None:
        with contextlib.suppress(OSError):
            os.write(file, written(figures))  # at once: lines of several processes stay whole


def _tell_when_terminated(tell: Callable[[], None]) -> None:
    """A pool ends its workers by SIGTERM: they tell their figures before they end by it, unless the program handles it."""
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return

    handle, kill = signal.signal, os.kill  # the process's, and not those that a rank has

    def terminated(number: int, frame: object) -> None:
        handle(number, signal.SIG_DFL)
        with contextlib.suppress(Exception):
            tell()
        kill(os.getpid(), number)

    handle(signal.SIGTERM, terminated)
