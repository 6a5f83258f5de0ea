"""Where the threads of this process are, and which exceptions they handle.

Until Python 3.11.8 ``sys._current_frames`` makes its objects under the interpreter's lock over its threads. If that starts the
garbage collector, and a callback or a finalizer lets another thread run that is about to end, the two wait for each other for
ever: that one has the lock of the interpreter, and this one that of its threads (CPython's gh-106883). With thousands of ranks
that are threads it is nearly certain. So nothing is collected meanwhile.
"""

from __future__ import annotations

import gc
import os
import sys
from _thread import allocate_lock
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, TypeVar

Found = TypeVar("Found")

_lock = allocate_lock()


def _unlock() -> None:
    global _lock
    _lock = allocate_lock()  # a thread that the child has not may have had it


os.register_at_fork(after_in_child=_unlock)


def current_frames() -> Mapping[int, FrameType]:
    """The frame that each thread executes, by the identity of the thread."""
    return _uncollected(sys._current_frames)


def frame_of_thread(identity: int | None) -> FrameType | None:
    """The frame that a thread executes; None of one that has not begun, or has ended."""
    return None if identity is None else current_frames().get(identity)


def handled_by_thread(identity: int | None) -> BaseException | None:
    """The exception that a thread handles, if there is one."""
    raised: Any = _uncollected(sys._current_exceptions).get(identity or 0)
    return raised[1] if isinstance(raised, tuple) else raised  # a triple until Python 3.12


def _uncollected(read: Callable[[], Found]) -> Found:
    with _lock:
        collects = gc.isenabled()
        gc.disable()
        try:
            return read()
        finally:
            if collects:
                gc.enable()
