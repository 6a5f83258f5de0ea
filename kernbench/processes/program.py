"""A rank's program in its own process, from the fork, or from when it has joined, to the end."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import traceback
from atexit import _clear, _run_exitfuncs
from collections.abc import Callable, Collection
from contextlib import ExitStack
from multiprocessing.process import _children  # type: ignore[attr-defined]
from multiprocessing.util import _exit_function, _finalizer_registry, _run_after_forkers  # type: ignore[attr-defined]
from typing import Any, NoReturn, TextIO

from kernbench.errors import kind_of
from kernbench.process_end import await_threads
from kernbench.processes import outside
from kernbench.processes.channel import Portable, portable
from kernbench.processes.family import Child
from kernbench.processes.own_end import at_own_end
from kernbench.processes.process_results import Legacy
from kernbench.processes.rank_process import leave, tell_nothing, tell_where
from kernbench.processes.rank_side import RankSide
from kernbench.processes.seat import Seat
from kernbench.scheduler import RaisedElsewhere, user_traceback
from kernbench.scheduler.carrier import be_alone
from kernbench.simulation.simulation import Simulation
from kernbench.torch_backend.environment import Environment
from kernbench.torch_backend.process_groups.stores import StoreHost
from kernbench.torch_backend.rank_state.output import require_encodable


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
        require_encodable(self._stream, text)
        self._side.cast("write", self._which, text)
        self._side.send()
        return len(text)

    def reconfigure(self, **how: Any) -> None:
        """Here, for what the rank asks of it, and where the text comes out, as of ranks that share one stream."""
        self._stream.reconfigure(**how)  # type: ignore[attr-defined]
        if not self._side.apart:
            self._side.cast("reconfigure", self._which, how)

    def writelines(self, lines: Any) -> None:
        """Write one after the other."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Nothing is kept, but where the process is one that the rank has forked."""
        if self._side.apart:
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def run(
    child: Child, simulation: Simulation, environment: Environment, stores: StoreHost, body: Callable[[], object]
) -> NoReturn:
    """In a new process: be the rank, run its ``body``, and end."""
    try:
        child.become()
        _forget_parent()
        side = _be_rank(simulation, environment, stores, child)
        sys.stdout = SentStream("stdout", sys.stdout, side)
        sys.stderr = SentStream("stderr", sys.stderr, side)
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
        leave(70)
    try:
        _live(simulation, side, body)
    finally:  # whatever happens: the rest of what it is a copy of is the parent's
        leave(70)


def _live(simulation: Simulation, side: RankSide, body: Callable[[], object]) -> NoReturn:
    error, trace, failed, ends = None, "", False, True
    try:
        body()
        _finish(simulation, side)
    except RaisedElsewhere as raised:  # whatever its kind, it is a failure
        error, trace, failed = portable(raised.error), raised.traceback, True
        ends = issubclass(type(raised.error), SystemExit)
    except BaseException as raised:
        ends = issubclass(type(raised), SystemExit)  # an instance may answer for itself
        try:
            error, trace = portable(raised), user_traceback(raised)
        except BaseException as other:  # what is shown is the program's, as its exception is
            kind, why = kind_of(raised), f"to show it has raised {kind_of(other)[1]}"
            error, trace = Portable(None, kind, why), f"{kind[1]} ({why})\n"
    with contextlib.suppress(BaseException):
        if ends:  # threads of a rank that has failed may wait for it
            await_threads()
        _run_exitfuncs()
    side.cast("ended", error, trace, Legacy.of(simulation, side.host), failed)
    side.send()
    leave(0)


def join(
    seat: Seat, simulation: Simulation, environment: Environment, stores: StoreHost, keep: Collection[str]
) -> None:
    """In a process that has been started by another launcher: be the rank from here on, until the process ends.

    ``keep``: as :meth:`Environment.be_alone` has it.
    """
    tell_where(seat.stacks)
    os.register_at_fork(after_in_child=seat.leave)
    side = _be_rank(simulation, environment, stores, seat, keep)
    acting = ExitStack()
    acting.enter_context(environment.running(seat.rank))

    def end() -> None:
        if side.apart:
            return
        raised = sys.exc_info()[1] or getattr(sys, "last_value", None)
        failed = raised is not None and not isinstance(raised, SystemExit)
        unfinished = False
        try:
            if not failed:
                acting.close()
                _finish(simulation, side)
        except Exception as error:
            traceback.print_exc()
            raised, failed, unfinished = error, True, True
        told = (portable(raised), user_traceback(raised)) if failed and raised is not None else (None, "")
        side.cast("ended", *told, Legacy.of(simulation, side.host))
        side.send()
        side.part()
        tell_nothing()
        if unfinished:  # the exit code has no reader any more
            sys.stdout.flush()
            sys.stderr.flush()
            leave(1)

    at_own_end(end)


def _be_rank(
    simulation: Simulation,
    environment: Environment,
    stores: StoreHost,
    place: Child | Seat,
    keep: Collection[str] = (),
) -> RankSide:
    """From here on this process is a rank."""
    be_alone()
    side = RankSide(simulation, place.rank, place.wire, place.shared)
    side.install()
    outside.watch(side)
    os.register_at_fork(after_in_child=side.part)
    os.register_at_fork(after_in_child=tell_nothing)
    stores.forward = side.store
    simulation.op_costs.unmodelled.clear()
    environment.be_alone(place.rank, keep)
    return side


def _forget_parent() -> None:
    """What the parent has to do at its end, and the processes that it has started, are not the rank's business."""
    _clear()
    _children.clear()
    _finalizer_registry.clear()
    _run_after_forkers()  # queues begin a thread of their own here, say
    atexit.register(_exit_function)  # of multiprocessing: the rank's own processes end with it


def _finish(simulation: Simulation, side: RankSide) -> None:
    """A rank's program has ended: what it has left is done, and raised if it fails."""
    side.compute()
    for op in simulation.values.unobserved_failures(side.host):
        assert op.error is not None
        raise op.error
    if len(simulation.executor):
        raise side.deadlock()
