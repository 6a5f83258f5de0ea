"""The end of a process for which a rank waits, that the rank has not started itself: the simulation does not see it.

While the rank waits, the others have their turns: it says that it is away before it waits, and is back when they cannot go on
without it (ADR 0117). For a process that it has started itself its turn waits, unless it has threads that could go on.
"""

from __future__ import annotations

import functools
import multiprocessing.popen_fork as forks
import threading
from contextlib import AbstractContextManager
from typing import Any, Protocol

from kernbench.scheduler.crew import acting_crew, is_outside

_OWN = "_kernbench_own"


class Absent(Protocol):
    """Who can be away."""

    apart: bool

    def away(self, awaits: str, *, own: bool = False) -> AbstractContextManager[None]:
        """It is, for the length of a block, and waits for this; ``own``: see :meth:`.RankThreads.outside`."""


def watch(rank: Absent) -> None:
    """From now on, have this process's waits reported."""

    stock, stock_init = forks.Popen.wait, forks.Popen.__init__

    @functools.wraps(stock)
    def wait(self: Any, timeout: float | None = None) -> int | None:
        alone = acting_crew() is None
        elsewhere = alone and threading.current_thread() is not threading.main_thread()
        at_once = timeout == 0 or self.returncode is not None
        if rank.apart or is_outside() or elsewhere or (alone and hasattr(self, _OWN)) or at_once:
            return stock(self, timeout)
        # also if it has come: whether it has is the machine's
        with rank.away("the end of a process", own=hasattr(self, _OWN)):
            return stock(self, timeout)

    @functools.wraps(stock_init)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        setattr(self, _OWN, True)
        stock_init(self, *args, **kwargs)

    forks.Popen.wait, forks.Popen.__init__ = wait, init  # type: ignore[method-assign]
