"""Whether processes stand still: whether at one moment no thread of theirs ran, or was about to.

Linux counts how often a thread has been put on a core (``schedstat``). A thread that sleeps at two moments and has not been put
on a core between them has slept from the first to the second. If that holds of all threads, and the first moments of all lie
before the second ones, all slept at once; and threads that all sleep stay so until a timer, or a process beside them, wakes
one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator

_ENDED = "ZX"


class Stillness:
    """Of some processes and those that they have started.

    Args:
        roots: gives these processes.
    """

    def __init__(self, roots: Callable[[], Iterable[int]]) -> None:
        self._roots = roots
        self._known: list[int] = []

    def at_work(self) -> int:
        """A process that is doing something, or is about to; 0 if there is none: they stand still."""
        first: dict[tuple[int, int], str] = {}
        for pid, thread in _threads(self._known):
            count, state = _count(pid, thread), _state(pid, thread)
            if state not in _ENDED:
                first[pid, thread] = count
                if state != "S":
                    return pid
        self._known = _with_children({*self._roots()})  # between the looks: one that is new is not in the first
        second = set()
        for pid, thread in _threads(self._known):
            state, count = _state(pid, thread), _count(pid, thread)
            if state not in _ENDED:
                second.add((pid, thread))
                if state != "S" or first.get((pid, thread)) != count:
                    return pid
        return next((pid for pid, _ in first.keys() ^ second), 0)


def _threads(pids: Iterable[int]) -> Iterator[tuple[int, int]]:
    for pid in pids:
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except OSError:
            continue
        for thread in threads:
            yield pid, int(thread)


def _read(path: str) -> str:
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return ""
    try:
        return os.read(file, 1024).decode(errors="replace")
    except OSError:  # it has ended
        return ""
    finally:
        os.close(file)


def _count(pid: int, thread: int) -> str:
    return _read(f"/proc/{pid}/task/{thread}/schedstat").rpartition(" ")[2]


def _state(pid: int, thread: int) -> str:
    return _read(f"/proc/{pid}/task/{thread}/stat").rpartition(")")[2][1:2] or "X"


def _with_children(pids: set[int]) -> list[int]:
    """Processes, and those that they have started, and so on."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = _read(f"/proc/{name}/stat").rpartition(")")[2].split()
            if len(fields) > 1:
                parents[int(name)] = int(fields[1])
    found = {pid for pid in pids if pid in parents}
    more = found
    while more:
        more = {pid for pid, parent in parents.items() if parent in more} - found
        found |= more
    return sorted(found)
