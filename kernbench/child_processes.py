"""Processes that a command starts end when it does, however it ends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

_GRACE = 3.0
"""Seconds of real time that a process has to end by itself once it is asked to."""

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)

_running: set[subprocess.Popen[str]] = set()
_changing = threading.Lock()


def end_with_parent(number: int = signal.SIGTERM) -> None:
    """In a new process: the system sends it a signal when its parent (the thread that started it) has ended."""
    if hasattr(_libc, "prctl"):
        _libc.prctl(_PR_SET_PDEATHSIG, number)


def run_child(
    command: Sequence[str], *, cwd: str | Path, env: Mapping[str, str], timeout: float | None
) -> subprocess.CompletedProcess[str]:
    """Run a command, whose output is kept, in any thread; :func:`end_children` ends it.

    Raises:
        OSError: it cannot be started.
        subprocess.TimeoutExpired: it has not ended in ``timeout`` seconds, and has been ended.
    """
    with _changing:
        child = subprocess.Popen(
            command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, errors="replace", preexec_fn=end_with_parent,
        )  # fmt: skip
        _running.add(child)
    with child:
        try:
            out, err = child.communicate(timeout=timeout)
        except BaseException:
            _end([child])
            raise
        finally:
            _running.discard(child)
    return subprocess.CompletedProcess(command, child.returncode, out, err)


def end_children() -> None:
    """End what :func:`run_child` runs in other threads."""
    with _changing:
        left = list(_running)
    _end(left)


def _end(children: Sequence[subprocess.Popen[str]]) -> None:
    for child in children:
        child.terminate()
    for child in children:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_GRACE)
        child.kill()


def end_with_fork_parent() -> None:
    """The same as :func:`end_with_parent`, at once, in a fork by ``multiprocessing``, whose parent may have ended by now."""
    end_with_parent(signal.SIGKILL)
    from multiprocessing import parent_process  # it is there: the process is one of its

    parent = parent_process()
    if parent is not None and os.getppid() != parent.pid:
        os._exit(1)
