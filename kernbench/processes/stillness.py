"""Whether processes stand still: whether at one moment no thread of theirs ran, or was about to.

Linux counts how often a thread has been put on a core (``schedstat``). A thread that sleeps at two moments and has not been put
on a core between them has slept from the first to the second. If that holds of all threads, and the first moments of all lie
before the second ones, all slept at once; and threads that all sleep stay so until a timer, or a process beside them, wakes
one.

Files of threads stay open, and processes are looked for only where one may have begun: that is what takes the time of a look.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

_ENDED = "ZX"

_NEWEST = "/proc/loadavg"
"""A file whose last field is the number of the newest process or thread."""

_NOTHING: tuple[bytes, frozenset[int]] = b"", frozenset()
"""In the place of the newest number and of the roots: they are not known."""


class _Thread:
    """A thread.

    Attributes:
        pid: of its process.
        gone: whether it has been seen to have ended.
    """

    __slots__ = ("_scheduled", "_state", "gone", "pid")

    def __init__(self, pid: int, thread: str) -> None:
        self.pid = pid
        self.gone = False
        self._state = _open(f"/proc/{pid}/task/{thread}/stat")
        self._scheduled = _open(f"/proc/{pid}/task/{thread}/schedstat")

    def count(self) -> bytes:
        """How often it has been put on a core."""
        return _again(self._scheduled).rpartition(b" ")[2]

    def state(self) -> str:
        """What it does, a letter."""
        state = _again(self._state).rpartition(b")")[2][1:2].decode() or "X"
        self.gone = state == "X"
        return state

    def close(self) -> None:
        """Look no more."""
        for file in (self._state, self._scheduled):
            if file >= 0:
                os.close(file)


class Stillness:
    """Of some processes and those that they have started.

    Args:
        roots: gives these processes.
    """

    def __init__(self, roots: Callable[[], Iterable[int]]) -> None:
        self._roots = roots
        self._found = _NOTHING
        self._processes: list[int] = []
        self._threads: dict[tuple[int, str], _Thread] = {}

    def at_work(self) -> int:
        """A process that is doing something, or is about to; 0 if there is none: they stand still."""
        first: dict[_Thread, bytes] = {}
        for thread in self._present():
            count, state = thread.count(), thread.state()
            if state not in _ENDED:
                first[thread] = count
                if state != "S":
                    return thread.pid
        self._find()  # between the looks: one that is new is not in the first
        at_work = self._second(first)
        if at_work:
            self._found = _NOTHING  # it may have been about to start one, whose number is taken before it is there
        return at_work

    def _second(self, first: dict[_Thread, bytes]) -> int:
        seen = set()
        for thread in self._present():
            state, count = thread.state(), thread.count()
            if state not in _ENDED:
                seen.add(thread)
                if state != "S" or first.get(thread) != count:
                    return thread.pid
        return next((thread.pid for thread in first.keys() ^ seen), 0)

    def close(self) -> None:
        """Look no more. Idempotent."""
        while self._threads:
            self._threads.popitem()[1].close()

    def _present(self) -> Iterable[_Thread]:
        """All threads."""
        gone = self._threads
        self._threads = {}
        for pid in self._processes:
            try:
                names = os.listdir(f"/proc/{pid}/task")
            except OSError:
                continue
            for name in names:
                known = gone.pop((pid, name), None)
                if known is not None and known.gone:  # its number may be another's by now
                    known.close()
                    known = None
                self._threads[pid, name] = known or _Thread(pid, name)
        for each in gone.values():
            each.close()
        return self._threads.values()

    def _find(self) -> None:
        """Know the processes that there are."""
        newest, roots = _read(_NEWEST).rpartition(b" ")[2], frozenset(self._roots())
        if self._found != (newest, roots):
            self._processes, self._found = _with_children(roots), (newest, roots)


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # it has ended
        return -1


def _again(file: int) -> bytes:
    try:
        return os.pread(file, 1024, 0)
    except OSError:
        return b""


def _read(path: str) -> bytes:
    file = _open(path)
    text = _again(file)
    if file >= 0:
        os.close(file)
    return text


def _with_children(pids: Iterable[int]) -> list[int]:
    """Processes, and those that they have started, and so on."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = _read(f"/proc/{name}/stat").rpartition(b")")[2].split()
            if len(fields) > 1:
                parents[int(name)] = int(fields[1])
    found = {pid for pid in pids if pid in parents}
    more = found
    while more:
        more = {pid for pid, parent in parents.items() if parent in more} - found
        found |= more
    return sorted(found)
