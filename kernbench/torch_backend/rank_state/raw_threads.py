"""Threads that a rank's program starts without :mod:`threading`, as some libraries do: they are its daemons.

Only what a thread object begins is given turns (:mod:`.side_threads`). One that came around it would take none: what waits for
it would seem to wait for ever.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Mapping
from typing import Any

from kernbench.scheduler.crew import is_in_rank
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

_stock: Any = _thread.start_new_thread

RELIES_ON = (
    Reliance(
        "_thread.start_new_thread", "`threading` starts its own by a name of its own",
        holds=lambda start: "_thread" not in threading.Thread.start.__code__.co_names,
    ),
)  # fmt: skip


def install(patches: Patches) -> None:
    """Replace what starts a thread that has no object."""
    for name in ("start_new_thread", "start_new"):  # the older name goes one day
        if hasattr(_thread, name):
            patches.set(_thread, name, _start)


def _start(
    function: Callable[..., object], args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None, /
) -> int | None:
    """``_thread.start_new_thread``."""
    well_formed = callable(function) and isinstance(args, tuple) and isinstance(kwargs, dict | None)
    if not is_in_rank() or not well_formed:  # the interpreter refuses what it does not take
        given = (function, args) if kwargs is None else (function, args, kwargs)
        return _stock(*given)
    thread = threading.Thread(target=function, args=args, kwargs=kwargs, daemon=True)
    thread.start()
    return thread.ident
