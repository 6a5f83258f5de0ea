"""What a scout is finding out, on stderr while it takes long: its own output is dropped, and silence looks like a hang.

As the progress of a run, a thread that looks at counters now and then: a scout is the same with it and without.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from time import monotonic

from kernbench.plurals import counted
from kernbench.scheduler.watchdog import PROGRESS_THREAD
from kernbench.simulation.ranks.folding import Folding
from kernbench.simulation.simulation import Simulation

AFTER, PERIOD = 2.0, 0.5
"""Seconds of real time until a terminal has a line, and between two changes of it."""

AFTER_IN_PIPES, PERIOD_IN_PIPES = 10.0, 30.0
"""The same where each change is a line of its own."""

_ERASE = b"\r\x1b[2K"


def text(simulation: Simulation, folding: Folding, seconds: float) -> str:
    """The line after ``seconds`` of real time."""
    log = simulation.engine.op_log
    count = log.dropped + len(log.operations)
    who = "rank 0 runs" if len(folding.live) == 1 else f"{len(folding.live)} ranks run"
    return (
        f"kernbench: finding out which of {folding.world} ranks do the same: {who} one step alone | "
        f"{counted(count, 'operation', spec=',')} | {seconds:.0f} s"
    )


@contextlib.contextmanager
def showing(simulation: Simulation, folding: Folding, descriptor: int) -> Iterator[None]:
    """For the length of a block, show on a descriptor how far a scout has got."""
    in_place, begin, stop = os.isatty(descriptor), monotonic(), threading.Event()
    after, period = (AFTER, PERIOD) if in_place else (AFTER_IN_PIPES, PERIOD_IN_PIPES)
    shown = False

    def look() -> None:
        nonlocal shown
        wait = after
        while not stop.wait(wait):
            wait = period
            line = text(simulation, folding, monotonic() - begin).encode()
            if in_place:
                line = _ERASE + line[: os.get_terminal_size(descriptor).columns - 1]
            try:
                os.write(descriptor, line if in_place else line + b"\n")
            except OSError:
                return  # stderr has been closed: that is no reason for a run to end
            shown = True

    thread = threading.Thread(target=look, name=PROGRESS_THREAD, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        if shown and in_place:
            with contextlib.suppress(OSError):
                os.write(descriptor, _ERASE)
