"""The daemons among the processes that a rank starts with :mod:`multiprocessing`, a loader's workers say: they end with it.

Python ends them when the program does. A rank that is a thread ends before that; workers that were left until then would
find threads gone to which they are sending. A loader that is in use then (persistent workers, a program that fails) is shut
down while its rank has threads: later it would be in whatever order Python collects what is left of the rank.
"""

from __future__ import annotations

import functools
import weakref
from contextlib import suppress
from multiprocessing.process import BaseProcess
from typing import Any

from torch.utils.data import dataloader

from kernbench.scheduler.crew import is_forked
from kernbench.simulation.simulation import Simulation
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

RELIES_ON = (
    Reliance("multiprocessing.process.BaseProcess", "every process is one", has=("start", "terminate")),
    Reliance(
        "torch.utils.data.dataloader._MultiProcessingDataLoaderIter", "it has a loader's workers, and ends them when collected",
        has=("__init__", "_shutdown_workers"),
    ),
)  # fmt: skip

_Loader: Any = dataloader._MultiProcessingDataLoaderIter
_stock_init: Any = _Loader.__init__


class DaemonProcesses:
    """Those of the ranks of one spawn."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._of_rank: dict[int, weakref.WeakSet[BaseProcess]] = {}
        self._loaders: dict[int, weakref.WeakSet[Any]] = {}

    def install(self, patches: Patches) -> None:
        """Note the starter of a process."""
        stock = BaseProcess.start  # as it is now: others have replaced it

        @functools.wraps(stock)
        def start(process: BaseProcess) -> None:
            stock(process)
            if process.daemon and (rank := self._rank()) is not None:
                self._of_rank.setdefault(rank, weakref.WeakSet()).add(process)

        @functools.wraps(_stock_init)
        def init(loader: Any, *args: object, **kwargs: object) -> None:
            if (rank := self._rank()) is not None:
                self._loaders.setdefault(rank, weakref.WeakSet()).add(loader)
            _stock_init(loader, *args, **kwargs)

        patches.set(BaseProcess, "start", start)
        patches.set(_Loader, "__init__", init)

    def _rank(self) -> int | None:
        return None if is_forked() else self._simulation.scheduler.current_rank()

    def close(self, rank: int) -> None:
        """A rank has ended; it has its threads still."""
        host = self._simulation.hosts.of_rank[rank]
        for loader in list(self._loaders.pop(rank, ())):
            host.untimed = True
            with suppress(Exception, SystemExit):  # while ranks are being unwound, what waits is refused
                loader._shutdown_workers()
            host.untimed = False
        for process in self._of_rank.pop(rank, ()):
            with suppress(ValueError, AssertionError):  # it is closed, or another process's
                process.terminate()
