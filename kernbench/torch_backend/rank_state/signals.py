"""Handlers of signals belong to the rank that sets them: its thread is the main thread of its program, if not of the process.

Trainers handle signals to stop in good order (``signal.signal(signal.SIGTERM, ...)``), and Python lets only the main thread
do so. A rank in a thread of its own keeps its handlers here. What it raises itself reaches them; what comes from outside is
the run's. Alarms ring by the machine's clock, on which no result of a rank that gets on may depend: one rings when its rank,
while it runs, has stood still in virtual time for as long. Its handler is called beside it; what that raises is raised there.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import os
import signal
import threading
from collections.abc import Callable
from os import getpid
from types import FrameType
from typing import Any

from kernbench.scheduler.crew import current_thread_is_side
from kernbench.scheduler.standstill import Alarm
from kernbench.torch_backend.gpu.device.devices import current_rank
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.rank_state.listed_threads import process_main_thread

HANDLED = (
    "handlers of signals that ranks set: a signal from outside ends the run, and none of them is called "
    "(with --isolation process they are)"
)
"""What the summary says of a rank that handles signals itself."""

ALARMED = (
    "alarms that ranks set (signal.alarm, setitimer): they would ring by the machine's clock, and do only in a rank that has "
    "not come further for as long"
)
"""What the summary says of a rank that sets an alarm."""

_OF_TIMER: dict[int, signal.Signals] = {
    signal.ITIMER_REAL: signal.SIGALRM, signal.ITIMER_VIRTUAL: signal.SIGVTALRM, signal.ITIMER_PROF: signal.SIGPROF,
}  # fmt: skip
"""The signal that each timer sends."""

_stock_signal, _stock_getsignal, _stock_raise = signal.signal, signal.getsignal, signal.raise_signal
_stock_set_wakeup_fd, _stock_siginterrupt = signal.set_wakeup_fd, signal.siginterrupt
_stock_kill, _stock_alarm, _stock_setitimer = os.kill, signal.alarm, signal.setitimer


def _is_of_event_loops(handler: Any) -> bool:
    """Whether ``asyncio.run`` has set it, for as long as it runs."""
    return getattr(getattr(handler, "func", None), "__module__", None) == "asyncio.runners"


def install(patches: Patches, remark: Callable[[str], Any], set_alarm: Callable[[int, Alarm | None], float]) -> None:
    """Give each rank handlers of its own.

    Args:
        remark: says something in the summary.
        set_alarm: lets an alarm ring for a rank, as the scheduler does.
    """
    handlers: dict[tuple[int, int], Any] = {}
    wakeups: dict[int, int] = {}

    def whose() -> int | None:
        """The rank whose thread runs, if that is not the process's main one."""
        if threading.current_thread() is process_main_thread() or current_thread_is_side():
            return None
        return current_rank()

    @functools.wraps(_stock_signal)
    def set_handler(signalnum: int, handler: Any) -> Any:
        rank = whose()
        if rank is None:
            return _stock_signal(signalnum, handler)
        before = get_handler(signalnum)
        if signalnum in (signal.SIGKILL, signal.SIGSTOP):
            raise OSError(22, "Invalid argument")
        if not callable(handler) and handler not in (signal.SIG_IGN, signal.SIG_DFL):
            raise TypeError("signal handler must be signal.SIG_IGN, signal.SIG_DFL, or a callable object")
        handlers[rank, int(signalnum)] = handler
        if callable(handler) and handler is not signal.default_int_handler and not _is_of_event_loops(handler):
            remark(HANDLED)
        return before

    @functools.wraps(_stock_getsignal)
    def get_handler(signalnum: int) -> Any:
        rank = whose()
        if rank is None:
            return _stock_getsignal(signalnum)
        default = signal.default_int_handler if signalnum == signal.SIGINT else signal.SIG_DFL
        return handlers.get((rank, int(signalnum)), default)

    def reached(signalnum: int) -> bool:
        """Whether a signal that the running rank sends to itself was for a handler of its own."""
        rank = whose()
        if rank is None:
            return False
        handler = get_handler(signalnum)
        if handler is signal.SIG_DFL:
            return False
        if handler is not signal.SIG_IGN:
            if wakeups.get(rank, -1) >= 0:
                with contextlib.suppress(OSError):  # as Python, which warns of it
                    os.write(wakeups[rank], bytes([signalnum]))
            handler(int(signalnum), inspect.currentframe())
        return True

    @functools.wraps(_stock_set_wakeup_fd)
    def set_wakeup_fd(fd: int, /, *, warn_on_full_buffer: bool = True) -> int:
        rank = whose()
        if rank is None:
            return _stock_set_wakeup_fd(fd, warn_on_full_buffer=warn_on_full_buffer)
        if fd != -1:
            os.fstat(fd)  # OSError of one that is closed
            if os.get_blocking(fd):
                raise ValueError(f"the fd {fd} must be in non-blocking mode")
        before, wakeups[rank] = wakeups.get(rank, -1), fd
        return before

    @functools.wraps(_stock_siginterrupt)
    def siginterrupt(signalnum: int, flag: bool, /) -> None:
        if whose() is None:
            _stock_siginterrupt(signalnum, flag)

    @functools.wraps(_stock_raise)
    def raise_signal(signalnum: int) -> None:
        if not reached(signalnum):
            _stock_raise(signalnum)

    @functools.wraps(_stock_kill)
    def kill(pid: int, sig: int) -> None:
        if pid != getpid() or not reached(sig):
            _stock_kill(pid, sig)

    def arm(rank: int, seconds: float, interval: float, which: int = signal.ITIMER_REAL) -> float:
        number = _OF_TIMER[which]

        def ring(frame: FrameType | None) -> None:
            handler = handlers.get((rank, int(number)), signal.SIG_DFL)
            if handler is signal.SIG_DFL:
                raise SystemExit(128 + number)  # it would have ended its process
            if handler is not signal.SIG_IGN:
                handler(int(number), frame)

        if seconds:
            remark(ALARMED)
        return set_alarm(rank, Alarm(seconds, interval, ring) if seconds else None)

    @functools.wraps(_stock_alarm)
    def alarm(seconds: int) -> int:
        rank = whose()
        return _stock_alarm(seconds) if rank is None else math.ceil(arm(rank, seconds, 0.0))

    @functools.wraps(_stock_setitimer)
    def setitimer(which: int, seconds: float, interval: float = 0.0) -> tuple[float, float]:
        rank = whose()
        if rank is None:
            return _stock_setitimer(which, seconds, interval)
        return arm(rank, seconds, interval, which), 0.0

    for owner, value in (
        (signal, set_handler), (signal, get_handler), (signal, raise_signal), (os, kill), (signal, alarm), (signal, setitimer),
        (signal, set_wakeup_fd), (signal, siginterrupt),
    ):  # fmt: skip
        patches.set(owner, value.__name__, value)  # that of the stock one
