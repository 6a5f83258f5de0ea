"""A rank's program in its own process, from the fork to the end."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import traceback
from atexit import _clear, _run_exitfuncs
from collections.abc import Callable
from multiprocessing.process import _children  # type: ignore[attr-defined]
from multiprocessing.util import _exit_function  # type: ignore[attr-defined]
from typing import Any, NoReturn, TextIO

from kernbench.errors import KernbenchError
from kernbench.processes.channel import portable
from kernbench.processes.family import Child, leave
from kernbench.processes.legacy import Legacy
from kernbench.processes.rank_side import RankSide
from kernbench.scheduler import user_traceback
from kernbench.scheduler.carrier import be_alone
from kernbench.simulation.simulation import Simulation
from kernbench.torch_backend.environment import Environment
from kernbench.torch_backend.process_groups.stores import StoreHost


class SentStream:
    """``sys.stdout`` or ``sys.stderr`` of a rank: what is written comes out where the simulation is, in the rank's turn.

    Args:
        stream: what the process has inherited; answers everything else.
    """

    def __init__(self, which: str, stream: TextIO, side: RankSide) -> None:
        self._which = which
        self._stream = stream
        self._side = side

    def write(self, text: str) -> int:
        """Send text, at once: the process may not live to end its batch."""
        if self._side.apart:
            return self._stream.write(text)
        self._side.cast("write", self._which, text)
        self._side.send()
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write one after the other."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Nothing is kept."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def run(
    child: Child, simulation: Simulation, environment: Environment, stores: StoreHost, body: Callable[[], Any]
) -> NoReturn:
    """In a new process: be the rank, run its ``body``, and end."""
    try:
        child.become()
        be_alone()
        _forget_parent()
        side = RankSide(simulation, child.rank, child.wire, child.shared)
        side.install()
        os.register_at_fork(after_in_child=side.part)
        os.register_at_fork(after_in_child=child.part)
        stores.forward = side.store
        simulation.op_costs.unmodelled.clear()
        environment.be_alone(child.rank)
        sys.stdout = SentStream("stdout", sys.stdout, side)
        sys.stderr = SentStream("stderr", sys.stderr, side)
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
        leave(70)
    error, trace = None, ""
    try:
        _program(simulation, side, body)
    except BaseException as raised:
        error, trace = portable(raised), user_traceback(raised)
    with contextlib.suppress(BaseException):
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
        _run_exitfuncs()
    side.cast("ended", error, trace, Legacy.of(simulation, side.host))
    side.send()
    leave(0)


def _forget_parent() -> None:
    """What the parent has to do at its end, and the processes that it has started, are not the rank's business."""
    _clear()
    _children.clear()
    atexit.register(_exit_function)  # of multiprocessing: the rank's own processes end with it


def _program(simulation: Simulation, side: RankSide, body: Callable[[], Any]) -> None:
    body()
    side.compute()
    for op in simulation.values.unobserved_failures(side.host):
        assert op.error is not None
        raise op.error
    if len(simulation.executor):
        raise KernbenchError(
            "a kernel waits for memory that another rank is to write. Ranks that are processes have no memory in common: run "
            "this program with isolation='carrier'"
        )
