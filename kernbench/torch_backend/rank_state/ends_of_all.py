"""What ends the whole process, called by one rank of several that share it: all of them end, so which one it was is said.

Python's own ways are replaced: ``os._exit``, ``os.abort``, ``os.kill`` and ``signal.raise_signal`` with a signal that ends the
process, ``os.exec*``. A crash in C code ends it where no Python runs; then :mod:`faulthandler` writes the stack, in which the
rank's own function bears its number (:func:`kernbench.scheduler.named_after`).
"""

from __future__ import annotations

import faulthandler
import functools
import io
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from inspect import currentframe
from typing import Any

from kernbench.simulation.ranks.locations import program_location
from kernbench.simulation.simulation import Simulation
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

RELIES_ON = (Reliance("os._exit", "programs and libraries end the process by it"),)

_HARMLESS = {signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH, signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN,
             signal.SIGTTOU}  # fmt: skip
"""Signals that end no process, by default."""


def ends_by_signal(args: Sequence[Any]) -> signal.Signals | None:
    """The signal with which ``os.kill(*args)`` or ``signal.raise_signal(*args)`` ends this process; None: it does not."""
    *whom, number = args
    if (
        whom in ([], [os.getpid()])
        and number
        and number not in _HARMLESS
        and signal.getsignal(number) is signal.SIG_DFL
    ):
        return signal.Signals(number)
    return None


def install(patches: Patches, simulation: Simulation, *, end_alone: bool = False) -> Callable[[], None]:
    """Say who ends the process; gives what is to be called when ranks run no more.

    Args:
        end_alone: a rank that does so ends, and the process goes on: it raises :class:`SystemExit` with the exit code that a
            process of its own would have had.
    """
    process, rank_of = os.getpid(), simulation.scheduler.current_rank

    def tell(how: str, code: int | None) -> None:
        rank = rank_of()
        if rank is None or os.getpid() != process:  # a process that a rank has forked ends by itself
            return
        if end_alone and code is not None:
            raise SystemExit(code)
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        print(
            f"kernbench: rank {rank} ends the process that all ranks share: {how} at {program_location(currentframe())}. With "
            "--isolation process (isolation='process') it would end alone, and the others would learn of it",
            file=sys.__stderr__, flush=True,
        )  # fmt: skip

    def telling(
        stock: Callable[..., Any], how: Callable[..., str | None], code: Callable[..., int | None]
    ) -> Callable[..., Any]:
        @functools.wraps(stock)
        def ends(*args: object, **kwargs: object) -> Any:
            if (words := how(*args, **kwargs)) is not None:
                tell(words, code(*args, **kwargs))
            return stock(*args, **kwargs)

        return ends

    def telling_of_signal(stock: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(stock)
        def ends(*args: Any) -> Any:
            if (number := ends_by_signal(args)) is not None:
                tell(f"{stock.__name__} with {number.name}", -number)
            return stock(*args)

        return ends

    patches.set(os, "_exit", telling(os._exit, lambda status: f"os._exit({status})", lambda status: status))
    patches.set(os, "abort", telling(os.abort, lambda: "os.abort()", lambda: -signal.SIGABRT))
    for name in ("execv", "execve"):  # on which the others stand
        patches.set(os, name, telling(getattr(os, name), _becomes, lambda *args, **kwargs: None))
    for owner, name in ((os, "kill"), (signal, "raise_signal")):
        patches.set(owner, name, telling_of_signal(getattr(owner, name)))
    return _tell_crashes()


def _becomes(path: Any, *_: object, **__: object) -> str | None:
    """A search of the path tries one file after the other."""
    return f"os.exec of {os.fsdecode(path)!r}" if os.access(path, os.X_OK) else None


def _tell_crashes() -> Callable[[], None]:
    if faulthandler.is_enabled():
        return lambda: None
    with suppress(AttributeError, io.UnsupportedOperation, RuntimeError, ValueError):  # no file is there
        faulthandler.enable(sys.__stderr__ or sys.stderr, all_threads=False)
        return faulthandler.disable
    return lambda: None
