"""Processes that a command starts end when it does, however it ends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter, sleep  # the machine's own clock

_GRACE = 3.0
"""Seconds of real time that a process has to end by itself once it is asked to."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 1, 36, 37
_libc = ctypes.CDLL(None)

_running: set[subprocess.Popen[str]] = set()
_changing = threading.Lock()
_refuses = threading.Event()


class NoMoreChildren(Exception):
    """The block is being left in which threads start some (:func:`threads_with_children`)."""


def end_with_parent(number: int = signal.SIGTERM, parent: int | None = None) -> None:
    """In a new process: the system sends it a signal when its parent (the thread that started it) has ended. A launcher handles
    SIGTERM, and ends what it has started; what would handle it and go on needs SIGKILL.

    ``parent``: the number of the parent; if that has ended by now, no signal would come, and the process ends.
    """
    if hasattr(_libc, "prctl"):
        _libc.prctl(_PR_SET_PDEATHSIG, number)
        if parent is not None and os.getppid() != parent:
            os._exit(1)


@contextmanager
def adopting() -> Iterator[None]:
    """Within the block, processes whose parents have ended become children of this one, if these were its descendants."""
    before = ctypes.c_int(0)
    if not hasattr(_libc, "prctl") or _libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before)):
        yield
        return
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, before.value)


def descendants(pid: int) -> list[int]:
    """Processes that a process has started, and those that they have."""
    with contextlib.suppress(OSError):
        found = [
            int(child) for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()
        ]
        return [*found, *(each for child in found for each in descendants(child))]
    return []


def end_descendants(which: Callable[[int], bool], seconds: float) -> None:
    """End the descendants of this process that ``which`` is true of; those that go on for ``seconds`` of wall-clock time after
    they were asked to, are killed."""
    asked: set[int] = set()
    until = perf_counter() + seconds
    while left := [pid for pid in descendants(os.getpid()) if _runs(pid) and which(pid)]:
        late = perf_counter() >= until
        for pid in left:
            if late or pid not in asked:
                asked.add(pid)
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
        if perf_counter() >= until + seconds:
            return
        sleep(_PAUSE)
        for pid in left:
            with contextlib.suppress(OSError):  # it is no child of this one
                os.waitpid(pid, os.WNOHANG)


@contextmanager
def leaving_none(seconds: float, *, unless: Callable[[], bool]) -> Iterator[None]:
    """What the block has started, and what that has, ends with it (:func:`end_descendants`), unless ``unless()`` is true and it
    raises nothing."""
    before = set(descendants(os.getpid()))
    well = False
    try:
        yield
        well = unless()
    finally:
        if not well:
            end_descendants(lambda pid: pid not in before and _TRACKER not in _read(pid, "cmdline"), seconds)


_PAUSE = 0.01

_TRACKER = b"multiprocessing.resource_tracker"
"""In the command of what removes the shared memory that processes have left: it ends after them."""


def has_variable(pid: int, name: str, value: str) -> bool:
    """Whether a process has begun with this in its environment."""
    return os.fsencode(f"\0{name}={value}\0") in b"\0" + _read(pid, "environ")


def _runs(pid: int) -> bool:
    """Whether a process has not ended: one that its parent has not waited for is still there."""
    return _read(pid, "stat").rpartition(b")")[2].split()[:1] not in ([], [b"Z"])


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def run_child(
    command: Sequence[str], *, cwd: str | Path, env: Mapping[str, str], timeout: float | None
) -> subprocess.CompletedProcess[str]:
    """Run a command, whose output is kept, in any thread; :func:`threads_with_children` has some that end it.

    Raises:
        OSError: it cannot be started.
        subprocess.TimeoutExpired: it has not ended in ``timeout`` seconds, and has been ended.
        NoMoreChildren: it was to be started when the block was left already.
    """
    with _changing:
        if _refuses.is_set():
            raise NoMoreChildren(command[0])
        child = subprocess.Popen(
            command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, errors="replace", preexec_fn=partial(end_with_parent, parent=os.getpid()),
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


@contextmanager
def threads_with_children(number: int) -> Iterator[ThreadPoolExecutor]:
    """A pool of threads that call :func:`run_child`. When the block is left, what they run ends, and no more is started, also
    by a thread that was about to."""
    try:
        with ThreadPoolExecutor(number, thread_name_prefix="kernbench-point") as pool:
            try:
                yield pool
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
                _refuses.set()
                with _changing:
                    left = list(_running)
                _end(left)
    finally:
        _refuses.clear()


def _end(children: Sequence[subprocess.Popen[str]]) -> None:
    """Those that go on are killed, with what they have started: that has their pipes."""
    for child in children:
        child.terminate()
    for child in children:
        try:
            child.wait(_GRACE)
        except subprocess.TimeoutExpired:
            started = descendants(child.pid)
            child.kill()
            for pid in started:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)


def end_with_fork_parent() -> None:
    """The same as :func:`end_with_parent`, at once, in a fork by ``multiprocessing``, whose parent may have ended by now."""
    end_with_parent(signal.SIGKILL)
    from multiprocessing import parent_process  # it is there: the process is one of its

    parent = parent_process()
    if parent is not None and os.getppid() != parent.pid:
        os._exit(1)
