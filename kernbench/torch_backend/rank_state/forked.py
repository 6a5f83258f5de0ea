"""What a rank forks ends where the rank's program does, as a process ends that Python has forked: with its own exit code.

In the new process there is one thread, the rank's, and a copy of the simulation in which nothing else runs. It is no rank: it
may compute on the host, write, start other programs; what waits for others is refused in words.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from os import getpid
from typing import NoReturn

from kernbench.errors import KernbenchError
from kernbench.process_end import await_threads
from kernbench.scheduler import RaisedElsewhere, user_traceback
from kernbench.scheduler.carrier import current_carrier
from kernbench.torch_backend.rank_state.listed_threads import all_threads
from kernbench.torch_backend.relies_on import Reliance

RELIES_ON = (Reliance("os._exit", "a forked process ends without what its parent has registered for its end"),)


@contextmanager
def ending_forks() -> Iterator[None]:
    """The block is a rank's program. A process that it has forked and that comes to the block's end ends there."""
    process, error = getpid(), None
    try:
        yield
    except BaseException as raised:
        if getpid() == process:
            raise
        error = raised
    if getpid() != process:
        _end(error)


def _end(error: BaseException | None) -> NoReturn:
    """As Python does: say what was raised, wait for threads that are no daemons, hand on what is buffered."""
    if isinstance(error, RaisedElsewhere):
        error = error.error
    code: object = 0
    if isinstance(error, SystemExit):
        code = error.code or 0
    elif error is not None:
        code = 130 if isinstance(error, KeyboardInterrupt) else 1
        _write(user_traceback(error))
    if not isinstance(code, int):
        _write(f"{code}\n")
        code = 1
    with contextlib.suppress(BaseException):
        await_threads(all_threads)
    _flush()
    os._exit(code & 0xFF)


def _write(text: str) -> None:
    with contextlib.suppress(Exception):
        sys.stderr.write(text)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(Exception):
            if stream is not None:
                stream.flush()


def _flush_of_rank() -> None:
    """In a rank that is about to fork: what is buffered may be other ranks', and would come out twice."""
    if current_carrier() is not None:
        _flush()


def _stand_alone() -> None:
    """In the new process: there is no thread to which the rank's could give the baton."""
    carrier = current_carrier()
    if carrier is None:
        return

    def refuse() -> NoReturn:
        raise KernbenchError(
            f"a process that rank {carrier.index} has forked (os.fork) is no rank: it has no GPU, and cannot wait for others. "
            "Call torch.distributed and use the GPU in the rank"
        )

    carrier.switch_to_main = refuse  # type: ignore[method-assign]


os.register_at_fork(before=_flush_of_rank, after_in_child=_stand_alone)
