"""The end of a process, as Python does it before it takes its modules apart: what we end ourselves ends alike."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from threading import _threading_atexits  # type: ignore[attr-defined]


def await_threads(threads: Callable[[], Iterable[threading.Thread]] = threading.enumerate) -> None:
    """Have pools tell their idle threads to end, and wait for all threads that are no daemons.

    ``threads``: gives them.
    """
    for call in reversed(_threading_atexits):
        call()
    for thread in threads():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
