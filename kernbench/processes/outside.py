"""What a rank waits for that the simulation does not see: events, queues and processes of :mod:`multiprocessing`.

A server's worker waits so for its next request, which another rank makes. While it does, the others have their turns: it says
that it is away before it waits, and is back when they cannot go on without it (ADR 0117). What was made in the rank itself is
between it and its own helpers, such as a ``DataLoader``'s workers: for these its turn waits, unless it has threads that could
go on meanwhile.
"""

from __future__ import annotations

import functools
import multiprocessing.connection as connections
import multiprocessing.popen_fork as forks
import multiprocessing.synchronize as synchronize
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from kernbench.scheduler.crew import acting_crew, is_outside

_OWN = "_kernbench_own"


_WAITS: tuple[tuple[object, str, str, Callable[..., bool]], ...] = (
    (synchronize.Condition, "wait", "an event or a condition", lambda _, timeout=None: timeout == 0),
    (connections.Connection, "_poll", "a message", lambda _, timeout: timeout == 0),
    (connections.Connection, "_recv_bytes", "a message", lambda *_: False),
    (forks.Popen, "wait", "the end of a process", lambda it, timeout=None: timeout == 0 or it.returncode is not None),
)  # fmt: skip
"""What waits: events, conditions and barriers; queues and pipes; ``Process.join``. What is waited for, and when it is not."""


_MADE: tuple[tuple[Any, str], ...] = (
    (synchronize.Condition, "__init__"), (connections.Connection, "__init__"), (forks.Popen, "__init__"),
)  # fmt: skip
"""What makes conditions and connections, and starts processes; a connection that was sent is rebuilt."""


class Absent(Protocol):
    """Who can be away."""

    apart: bool

    def away(self, awaits: str) -> AbstractContextManager[None]:
        """It is, for the length of a block, and waits for this."""


def watch(rank: Absent) -> None:
    """From now on, have this process's waits reported."""

    def waiting(stock: Callable[..., Any], awaits: str, over: Callable[..., bool]) -> Callable[..., Any]:
        @functools.wraps(stock)
        def method(self: Any, *args: object, **kwargs: object) -> Any:
            alone = acting_crew() is None
            elsewhere = alone and threading.current_thread() is not threading.main_thread()
            if (
                rank.apart
                or is_outside()
                or elsewhere
                or (alone and hasattr(self, _OWN))
                or over(self, *args, **kwargs)
            ):
                return stock(self, *args, **kwargs)
            with rank.away(awaits):  # also if it has come: whether it has is the machine's
                return stock(self, *args, **kwargs)

        return method

    def made(stock: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(stock)
        def method(self: Any, *args: object, **kwargs: object) -> Any:
            setattr(self, _OWN, True)
            return stock(self, *args, **kwargs)

        return method

    stock_rebuild: Any = connections.rebuild_connection  # type: ignore[attr-defined]

    @functools.wraps(stock_rebuild)
    def rebuild(*args: object, **kwargs: object) -> Any:
        came = stock_rebuild(*args, **kwargs)
        delattr(came, _OWN)
        return came

    setattr(connections, stock_rebuild.__name__, rebuild)
    for owner, name in _MADE:
        setattr(owner, name, made(getattr(owner, name)))
    for owner, name, awaits, over in _WAITS:
        setattr(owner, name, waiting(getattr(owner, name), awaits, over))
