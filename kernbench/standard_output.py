"""Standard output that takes nothing more: its reader has gone (``| head``), or its disk is full."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import sys
from typing import Any


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


_lost: list[OSError] = []


class _WatchedFile(io.FileIO):
    """A file that remembers that it could not be written: what has tried may have caught it, or be a rank."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            _lost.append(error)
            raise


def watch_output() -> None:
    """Have what is written to standard output and standard error remembered where it fails. Python's own streams become ones
    that do; names of files that are no UTF-8 can be written to them. Those that are closed (``>&-``) lead nowhere."""
    _open_closed()
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if not isinstance(stream, io.TextIOWrapper) or stream.closed:
            continue
        try:
            if stream.fileno() != number:
                continue
            stream.flush()
        except (OSError, ValueError):
            continue
        file = _WatchedFile(number, "w", closefd=False)
        watched = io.TextIOWrapper(
            io.BufferedWriter(file), encoding=stream.encoding, line_buffering=stream.line_buffering,
            errors="surrogateescape" if stream.errors == "strict" else stream.errors, write_through=stream.write_through,
        )  # fmt: skip
        watched.mode = "w"  # type: ignore[misc]
        setattr(sys, name, watched)


def _open_closed() -> None:
    """Have standard input, output and error be files: else what is opened next would be one of them, and be written to."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)  # takes the least number that is free: this one
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            stream = open(number, mode, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def require_output() -> None:
    """Hand on what is buffered. Raises :class:`LostOutput` if that, or an earlier write, has failed."""
    for stream in (sys.stdout, sys.__stdout__):
        if stream is not None and not getattr(stream, "closed", False):
            try:
                stream.flush()
            except OSError as error:
                _lost.append(error)
    if _lost:
        _drop()
        raise LostOutput(_lost[0])


def is_lost(error: BaseException) -> bool:
    """Whether an exception is that standard output cannot be written, which a command has not caught."""
    return any(each is error for each in _lost)


def forget_lost() -> None:
    """What was lost has been said; it is not raised again."""
    _lost.clear()


def _drop() -> None:
    """What is still buffered would be tried again, and fail again, when Python ends."""
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)
