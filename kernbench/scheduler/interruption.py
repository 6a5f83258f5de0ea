"""Signals that end a run: SIGINT (Ctrl-C) and SIGTERM, so that what it has come to can still be reported."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


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


_DEFAULTS: dict[signal.Signals, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
"""The signals that end a run, where they are handled as Python does by itself."""


class EndingHandler:
    """A handler that raises :class:`Interrupted` once; from then on such a signal ends the process at once.

    A child that has been forked handles the signal as if this handler was never set: it may be a loader's worker, which is
    ended by SIGTERM.
    """

    def __init__(self) -> None:
        self._process = os.getpid()

    @property
    def is_mine(self) -> bool:
        """Whether this is the process that it was made in."""
        return os.getpid() == self._process

    def __call__(self, signum: int, frame: Any) -> None:
        """A signal has come."""
        if self.is_mine:
            for each in _DEFAULTS:
                signal.signal(each, signal.SIG_DFL)
            raise Interrupted(signum)
        default = _DEFAULTS[signal.Signals(signum)]
        signal.signal(signum, default)
        os.kill(os.getpid(), signum)


@contextmanager
def ending_signals() -> Iterator[None]:
    """For the length of a block, SIGINT and SIGTERM raise :class:`Interrupted` in it, in the main thread; the second one ends
    the process. Elsewhere, and where another handler is set, without effect."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = EndingHandler()
    before = {each: default for each, default in _DEFAULTS.items() if signal.getsignal(each) is default}
    for each in before:
        signal.signal(each, handler)
    try:
        yield
    finally:
        for each, default in before.items():
            if signal.getsignal(each) in (handler, signal.SIG_DFL):
                signal.signal(each, default)
