"""What a process does when it ends by itself."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from multiprocessing.process import parent_process
from multiprocessing.util import Finalize

_LAST = -1000
"""Priority of what is done at the end of a process of multiprocessing, after all else."""


def at_own_end(end: Callable[[], None]) -> None:
    """Have ``end`` called when this process ends by itself."""
    if parent_process() is None:
        atexit.register(end)
    else:  # one of multiprocessing's, which may end without what atexit does
        Finalize(None, end, exitpriority=_LAST)
