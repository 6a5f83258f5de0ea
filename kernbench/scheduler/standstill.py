"""Says so when no rank comes further, where every rank is, and ends the run then if that was asked for.

A deadlock is found by virtual time: nothing is in flight and no rank can run. A rank that *runs*, and for ever (``while True``,
an exception that is caught and caught again, a lock that its own process holds), is no deadlock, and from the outside a hang.
So the wall clock is read, by the watchdog's thread. It changes no result. It writes to ``stderr`` after :data:`SILENCE`
seconds without progress, and again whenever twice the time has passed; with ``--hang-after SECONDS`` (:data:`VARIABLE`) the
rank that runs gets :class:`~kernbench.errors.NoProgressError` after as long, at the line where it is. One that does not end by
that within :data:`GRACE` seconds is given up: the second attempt is final (ADR 0166).

Progress is any operation, message, resumption or move of a clock. A rank that computes on the host for long makes none.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from time import perf_counter  # the machine's own clock
from types import FrameType, TracebackType
from typing import Any, NamedTuple, Protocol

from kernbench.errors import ConfigError, NoProgressError
from kernbench.scheduler.tracebacks import is_programs

VARIABLE = "KERNBENCH_HANG_AFTER"
"""Seconds of wall-clock time without progress after which a run is ended; empty: none is."""

SILENCE = 30.0
"""Seconds of wall-clock time without progress before that is said for the first time."""

GRACE = 0.6
"""Seconds of wall-clock time that a rank has to end once it has been asked to, unless it is in its own ``finally``."""

BLOCKED = 10.0
"""Seconds without progress after which it is looked whether a rank that is a process waits for a lock for ever."""

LINGERING = 10.0
"""Seconds of wall-clock time for which a rank waits for a thread after its program's end, before that is said."""

SHORT = 2.0
"""Seconds without progress after which Ctrl-C shows where the ranks are: until then the run was getting on."""

MOST_RANKS = 16
"""Stacks that are shown; equal ones are shown once."""

_ATTEMPTS = 20
_DEEPEST, _OUTERMOST, _INNERMOST = 1000, 4, 8


class Outlook(NamedTuple):
    """What the simulation knows of a run's progress, from any thread.

    Attributes:
        progress: gives what is another value whenever something has happened.
        waiting: what each rank does or waits for, in words.
        outside: the ranks that wait for what the simulation does not see.
    """

    progress: Callable[[], object]
    waiting: Callable[[], Mapping[int, str]]
    outside: Callable[[], Sequence[int]]


@dataclass
class Alarm:
    """What a rank has asked to be called for if it stands still (``signal.alarm``).

    Attributes:
        seconds: of wall-clock time without progress.
        interval: after which it rings again; 0: never.
        ring: called in the watchdog's thread with where the rank is; what it raises is raised there.
        rung: how often it has.
    """

    seconds: float
    interval: float
    ring: Callable[[FrameType | None], None]
    rung: int = 0

    @property
    def due(self) -> float:
        """Seconds without progress after which it rings next."""
        return self.seconds + self.rung * self.interval


class Stoppable(Protocol):
    """The ranks of a world, from the watchdog's thread."""

    def running(self) -> list[int]:
        """Those that run: the others wait for them."""

    def stack_of(self, rank: int) -> str:
        """The program's lines that lead to where a rank is, as Python shows them; empty if not known."""

    def stop(self, error: NoProgressError, attempt: int) -> None:
        """End what runs: the first ``attempt`` (0) raises the error in it, the second one gives it up."""

    def blocked(self, seconds: float) -> None:
        """Nothing has happened for so long: end what can be seen to wait for ever."""


def hang_after() -> float | None:
    """What :data:`VARIABLE` says. Raises :class:`~kernbench.errors.ConfigError` if that is no time."""
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return None
    with suppress(ValueError):
        if 0 < (seconds := float(text)) < float("inf"):
            return seconds
    raise ConfigError(f"{VARIABLE}={text!r}: expected seconds, more than 0")


class Standstill:
    """Watches one world's progress; called in the watchdog's thread, now and then.

    Args:
        outlook: of the simulation.
        ranks: that it has.
        limit: seconds without progress after which what runs is ended; None: never.
        says: whether it is said before.
        besides: called at each look with the seconds without progress.
    """

    def __init__(
        self,
        outlook: Outlook,
        ranks: Stoppable,
        limit: float | None,
        *,
        says: bool = True,
        besides: Callable[[float], None] = lambda still: None,
    ) -> None:
        self._outlook = outlook
        self._besides = besides
        self._ranks = ranks
        self.limit = limit
        self._seen: object = None
        self._since = perf_counter()
        self._next = SILENCE if says else float("inf")
        self._attempts = 0
        self._looked = False
        self._error: NoProgressError | None = None

    @property
    def seconds(self) -> float:
        """Of wall-clock time without progress, as of the last check."""
        return perf_counter() - self._since if self._progress() == self._seen else 0.0

    def look(self) -> None:
        """See whether something has happened since the last time."""
        seen, now = self._progress(), perf_counter()
        self._besides(now - self._since if seen == self._seen else 0.0)
        if seen != self._seen:
            self._seen, self._since, self._attempts, self._looked = seen, now, 0, False
            self._next = min(self._next, SILENCE) if self._next != float("inf") else self._next
            return
        still = now - self._since
        if still >= BLOCKED and not self._looked:
            self._looked = True
            self._ranks.blocked(still)
        if self.limit is not None and still >= self.limit + GRACE * self._attempts:
            self._stop(still)
        elif still >= self._next:
            self._next = 2 * still
            tell(f"{self.report(still)}\n{_HINT}")

    def _stop(self, still: float) -> None:
        if self._error is None or not self._attempts:
            self._error = NoProgressError(f"{self.report(still)}\nIt was to end after {self.limit:g} s (--hang-after).")
        self._ranks.stop(self._error, self._attempts)
        self._attempts += 1

    def report(self, seconds: float) -> str:
        """Where all ranks are."""
        running = self._ranks.running()
        doing = _settled(self._outlook.waiting, {})
        away = [] if running else _settled(self._outlook.outside, [])
        if running:
            runs = f"{_ranks(running)} run{'' if len(running) > 1 else 's'}, and the others wait"
        elif away:
            wait = f"wait{'' if len(away) > 1 else 's'}"
            runs = f"{_ranks(away)} {wait} for what the simulation does not see, and the others for what it does"
        else:
            runs = "the simulation itself is at work"
        lines = [f"no rank has come further for {seconds:.3g} s of wall-clock time: {runs}."]
        shown: dict[str, int] = {}
        first_shown = [*running, *away]
        for rank in [*first_shown, *(rank for rank in doing if rank not in first_shown)][:MOST_RANKS]:
            lines.append(f"  rank {rank}: {doing.get(rank, 'runs')}")
            stack = self._ranks.stack_of(rank)
            first = shown.setdefault(stack, rank)
            if first != rank:
                lines.append(f"    at the same lines as rank {first}")
            elif stack:
                lines += [f"  {line}" for line in stack.rstrip().splitlines()]
        if len(doing) > MOST_RANKS:
            lines.append(f"  ... and {len(doing) - MOST_RANKS} more ranks")
        return "\n".join(lines)

    def _progress(self) -> object:
        return _settled(self._outlook.progress, None)


def _ranks(numbers: Sequence[int]) -> str:
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers[:8]))}"


_HINT = (
    "Ctrl-C ends the run. --hang-after SECONDS (KERNBENCH_HANG_AFTER; with pytest --kernbench-hang-after) ends one in which as "
    "long nothing happens"
)


def _settled(look: Callable[[], object], otherwise: Any) -> Any:
    """What is read must not grow while it is gone through: then look again."""
    for _ in range(_ATTEMPTS):
        with suppress(RuntimeError):  # a dictionary has changed its size
            return look()
    return otherwise


def tell(text: str) -> None:
    """Write to the process's standard error, in any thread, also in a handler of signals."""
    with suppress(Exception):  # it is closed, or being written to by what the signal has interrupted
        stream = sys.__stderr__ or sys.stderr
        stream.write(f"kernbench: {text}\n")
        stream.flush()


def lines_to(frame: FrameType | None) -> list[traceback.FrameSummary]:
    """The lines that lead to a frame, outermost first. The frame, of a thread that may run on, is not in them, and no file is
    read: what its variables hold would live as long as it is held."""
    if frame is None:
        return []
    found = islice(traceback.walk_stack(frame), _DEEPEST)  # what recurses without end has millions
    return [
        traceback.FrameSummary(each.f_code.co_filename, line, each.f_code.co_name, lookup_line=False)
        for each, line in found
    ][::-1]


def traceback_to(frame: FrameType | None) -> TracebackType | None:
    """What an exception would have that was raised in a frame. It holds the frames: for those of a thread that never ends."""
    found: TracebackType | None = None
    for each, line in islice(traceback.walk_stack(frame), _DEEPEST) if frame is not None else ():
        found = TracebackType(found, each, each.f_lasti, line)
    return found


def shown_stack(lines: Sequence[traceback.FrameSummary]) -> str:
    """The program's lines among these, as Python shows them; all if none is its."""
    own = [each for each in lines if is_programs(each.filename) and each.filename != threading.__file__]
    return shortened(traceback.StackSummary.from_list(own or lines).format())


def shortened(entries: Sequence[str]) -> str:
    """Lines of a stack, outermost first: of many, the outermost and the innermost ones."""
    left_out = len(entries) - _OUTERMOST - _INNERMOST
    if left_out <= 0:
        return "".join(entries)
    return "".join([*entries[:_OUTERMOST], f"  ... {left_out} more lines\n", *entries[-_INNERMOST:]])


def raised_in(thread: int, error: BaseException) -> None:
    """Raise an error in another thread, at the next line of Python that it runs."""
    import ctypes

    # the interpreter takes a class, and makes the exception of it in the thread where it is raised: it gets this one
    kind = type(type(error).__name__, (type(error),), {"__new__": lambda cls, *given: error})
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind))
