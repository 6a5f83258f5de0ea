"""How far a run has got, on the terminal while it lasts: a line on stderr that is gone when the run has ended.

A thread of its own reads counters now and then; it receives nothing and notifies nothing, so a run is the same with it and
without. What the program prints meanwhile erases the line first. In a pipe there is no line, unless it is asked for.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any

from rich.console import Console

from kernbench.plurals import counted
from kernbench.scheduler.watchdog import PROGRESS_THREAD
from kernbench.simulation.simulation import Simulation

AFTER = 2.0
"""Seconds of real time after which a run has a line."""

PERIOD, PERIOD_IN_PIPES = 0.25, 5.0
"""Seconds between two looks; in a pipe each look is a line."""

_WINDOW = 20  # looks that the operations per second are an average over
_ERASE = "\r\x1b[2K"


@dataclass(frozen=True)
class Reading:
    """Counters of a run at one moment.

    Attributes:
        steps: that every rank has made.
        wanted: steps after which the program is stopped, None if it is not.
        alive, ranks: of the world.
        operations: that were enqueued.
    """

    steps: int
    wanted: int | None
    alive: int
    ranks: int
    operations: int

    @classmethod
    def of(cls, simulation: Simulation) -> Reading:
        """Look, from another thread than the one that runs."""
        scheduler, log = simulation.scheduler, simulation.engine.op_log
        counts = [*simulation.steps.counts]
        return cls(
            min(counts, default=0), simulation.steps.limit, scheduler.live_count, len(scheduler.ranks),
            log.dropped + len(log.operations),
        )  # fmt: skip


class ProgressLine:
    """Readings as a line of text, with rates from those before.

    Args:
        start: seconds of real time when the run began.
    """

    def __init__(self, start: float) -> None:
        self._start = start
        self._seen: deque[tuple[float, int]] = deque([(start, 0)], maxlen=_WINDOW)
        self._first_step: tuple[float, int] | None = None

    def text(self, reading: Reading, now: float, *, summing_up: bool = False) -> str:
        """The line at ``now`` s of real time."""
        if summing_up:
            return f"summing up | {counted(reading.operations, 'operation', spec=',')} | {_clock(now - self._start)}"
        then, before = self._seen[0]
        self._seen.append((now, reading.operations))
        rate = max(reading.operations - before, 0) / max(now - then, 1e-9)
        step = f"step {reading.steps + 1}" + ("" if reading.wanted is None else f" of {reading.wanted}")
        parts = [
            step if reading.alive else "ranks have ended" if reading.ranks else "looking for ranks that do the same",
            f"{reading.alive} of {counted(reading.ranks, 'rank')}",
            f"{counted(reading.operations, 'operation', spec=',')}, {rate:,.0f}/s",
            _clock(now - self._start) + self._left(reading, now),
        ]
        return " | ".join(parts)

    def _left(self, reading: Reading, now: float) -> str:
        """Steps to come take as long as those after the first did, or as the first."""
        if not reading.steps or reading.wanted is None or not reading.alive:
            return ""
        if self._first_step is None:
            self._first_step = now, reading.steps
        begin, done = self._first_step
        if reading.steps > done:
            each = (now - begin) / (reading.steps - done)
        else:
            each = (begin - self._start) / done
        return f", about {_clock(max(each * (reading.wanted - reading.steps), 0))} left"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


class RunProgress:
    """Shows how far a run has got, from :meth:`start` to :meth:`stop`.

    Args:
        simulation: of the run.
        wanted: whether to; None: if stderr is a terminal.

    Attributes:
        wanted: whether to.
    """

    def __init__(self, simulation: Simulation, wanted: bool | None = None) -> None:
        self._simulation = simulation
        self._console = Console(stderr=True, markup=False)
        self._in_place = self._console.is_terminal
        self.wanted = self._in_place if wanted is None else wanted
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._shown = False
        self._thread: threading.Thread | None = None
        self._summing_up = False
        self._streams: list[tuple[str, object]] = []

    def start(self) -> None:
        """Begin to look."""
        if not self.wanted:
            return
        self._out = sys.stderr
        if self._in_place:
            for name in ("stdout", "stderr"):
                stream = getattr(sys, name)
                if stream.isatty():
                    self._streams.append((name, stream))
                    setattr(sys, name, _Erasing(stream, self._erase, self._lock))
        self._thread = threading.Thread(target=self._look, name=PROGRESS_THREAD, daemon=True)
        self._thread.start()

    def summing_up(self) -> None:
        """The program has ended; what is left is to sum up, which takes long for many operations."""
        self._summing_up = True

    def stop(self) -> None:
        """Take the line away. Idempotent."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        with self._lock:
            self._erase()
        while self._streams:
            setattr(sys, *self._streams.pop())

    def _look(self) -> None:
        begin = monotonic()
        line = ProgressLine(begin)
        period = PERIOD if self._in_place else PERIOD_IN_PIPES
        wait = AFTER
        while not self._stop.wait(wait):
            wait = period
            text = line.text(Reading.of(self._simulation), monotonic(), summing_up=self._summing_up)
            try:
                with self._lock:
                    self._draw(text)
            except (OSError, ValueError):
                return  # stderr has no reader left, or it has been closed: that is no reason for a run to end

    def _draw(self, text: str) -> None:
        if self._in_place:
            self._out.write(f"{_ERASE}{text[: self._console.width - 1]}")
            self._shown = True
        else:
            self._out.write(f"kernbench: {text}\n")
        self._out.flush()

    def _erase(self) -> None:
        if self._shown:
            self._shown = False
            self._out.write(_ERASE)
            self._out.flush()


class _Erasing:
    """A terminal's stream that takes the line away before anything else is written."""

    def __init__(self, stream: Any, erase: Callable[[], None], lock: threading.Lock) -> None:
        self._stream = stream
        self._before = erase
        self._turn = lock

    def write(self, text: str) -> int:
        """Write ``text`` where the line was."""
        with self._turn:
            self._before()
            written: int = self._stream.write(text)
            self._stream.flush()
        return written

    def writelines(self, lines: Any) -> None:
        """Write one after the other."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
