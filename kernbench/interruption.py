"""Signals that end a run: SIGINT (Ctrl-C), SIGTERM and SIGHUP, so that what it has come to can still be reported."""

from __future__ import annotations

import os
import signal
import sysconfig
import threading
from _thread import start_new_thread
from collections.abc import Iterator
from contextlib import contextmanager
from os import kill
from time import sleep
from typing import Any

from kernbench.own_files import PACKAGE


class Interrupted(KeyboardInterrupt):
    """A signal from outside has ended the run.

    Attributes:
        signum: its number.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum

    @property
    def exit_code(self) -> int:
        """What a shell takes a process to have ended with that such a signal has ended."""
        return 128 + self.signum


DEFAULTS: dict[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,  # the terminal has been closed
}
"""The signals that end a run, where they are handled as Python does by itself."""


_AGAIN = 0.01
"""Seconds of real time after which a signal comes again that has come at a bad moment."""

_IMPORTS = "<frozen importlib._bootstrap>"
_INSTALLED = ("<", PACKAGE, *(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "purelib", "platlib")))
"""How names of files begin that are no program's own."""


def _send_again(process: int, signum: int) -> None:
    """In a thread: of the machine's, at the machine's time, whatever rank is running."""
    sleep(_AGAIN)
    kill(process, signum)


def _would_drop(frame: Any) -> bool:
    """Whether what is raised in a frame may be dropped: it is called, however deeply, by ``__del__`` or by what a weak
    reference calls, or a package is being imported, which C++ may do that goes on without it (torch, without NumPy)."""
    own = False
    while frame is not None:
        name, file = frame.f_code.co_name, frame.f_code.co_filename
        if name == "__del__" or frame.f_globals.get("__name__") == "weakref" or (file == _IMPORTS and not own):
            return True
        own = own or not file.startswith(_INSTALLED)
        frame = frame.f_back
    return False


def _comes_again(signum: int, frame: object) -> bool:
    """Whether a signal has come at a moment at which what is raised may be dropped: then it comes again."""
    dropped = _would_drop(frame)
    if dropped:
        start_new_thread(_send_again, (os.getpid(), signum))
    return dropped


def interrupt(signum: int, frame: Any) -> None:
    """A handler of Ctrl-C before a command has another one: Python's, at a moment at which what is raised is not dropped."""
    if not _comes_again(signum, frame):
        signal.default_int_handler(signum, frame)


class EndingHandler:
    """A handler that raises :class:`Interrupted` once; from then on such a signal ends the process at once.

    A child that has been forked handles the signal as if this handler was never set: it may be a loader's worker, which is
    ended by SIGTERM.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        now = {each: signal.getsignal(each) for each in DEFAULTS}
        self.before = {each: found for each, found in now.items() if found is DEFAULTS[each] or found is interrupt}
        """The signals that it is to handle: those that were handled as Python does by itself, and how."""

    @property
    def is_mine(self) -> bool:
        """Whether this is the process that it was made in."""
        return os.getpid() == self._process

    def __call__(self, signum: int, frame: object) -> None:
        """A signal has come."""
        if self.is_mine:
            if _comes_again(signum, frame):
                return
            for each in self.before:
                signal.signal(each, signal.SIG_DFL)
            raise Interrupted(signum)
        signal.signal(signum, DEFAULTS[signal.Signals(signum)])
        os.kill(os.getpid(), signum)


@contextmanager
def ending_signals() -> Iterator[None]:
    """For the length of a block, these signals raise :class:`Interrupted` in it, in the main thread; the second one ends
    the process. Elsewhere, and where another handler is set, without effect."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = EndingHandler()
    for each in handler.before:
        signal.signal(each, handler)
    try:
        yield
    finally:
        for each, default in handler.before.items():
            if signal.getsignal(each) in (handler, signal.SIG_DFL):
                signal.signal(each, default)
