"""Standard output that takes nothing more: its reader has gone (``| head``), or its disk is full."""

from __future__ import annotations

import errno
import os
import signal
import sys


class LostOutput(Exception):
    """Standard output cannot be written. That is not the program's failure, whatever has come of it there.

    Attributes:
        error: what the system says.
    """

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error

    @property
    def exit_code(self) -> int:
        """As of a process that SIGPIPE has ended, where the reader has gone: nothing is to be said of that."""
        return 128 + signal.SIGPIPE if self.is_quiet else 1

    @property
    def is_quiet(self) -> bool:
        """Whether there is nothing to say: the reader wanted no more."""
        return self.error.errno == errno.EPIPE


_lost: list[LostOutput] = []


def require_output() -> None:
    """Hand on what is buffered. Raises :class:`LostOutput`; from then on what is written there is lost without a word, and each
    call raises it."""
    if _lost:
        raise _lost[0]
    for stream in (sys.stdout, sys.__stdout__):
        if stream is None or getattr(stream, "closed", False):
            continue
        try:
            stream.flush()
        except OSError as error:
            _drop()
            _lost.append(LostOutput(error))
            raise _lost[0] from None


def _drop() -> None:
    """What is still buffered would be tried again, and fail again, when Python ends."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)
    except OSError:
        return
