"""The end of a process, as Python does it before it takes its modules apart: what we end ourselves ends alike."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Iterable
from multiprocessing.process import parent_process
from multiprocessing.util import Finalize
from threading import _threading_atexits  # type: ignore[attr-defined]

_LAST = -1000
"""Priority of what is done at the end of a process of multiprocessing, after all else."""


def at_process_end(end: Callable[[], None]) -> None:
    """Have ``end`` called when this process ends by itself."""
    if parent_process() is None:
        atexit.register(end)
    else:  # one of multiprocessing's, which may end without what atexit does
        Finalize(None, end, exitpriority=_LAST)


def await_threads(threads: Callable[[], Iterable[threading.Thread]] = threading.enumerate) -> None:
    """Have pools tell their idle threads to end, and wait for all threads that are no daemons.

    ``threads``: gives them.
    """
    for call in reversed(_threading_atexits):
        call()
    for thread in threads():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
