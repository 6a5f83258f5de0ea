"""``torch.utils.benchmark`` in a rank: a statement runs a few times, and the time of more follows from these.

Torch's timer repeats a statement until 0.2 s have passed: thousands of times where a GPU takes microseconds. Here the host
computes values each time, for far longer than the modelled GPU would, and in virtual time one repetition takes as long as the
next. So a timer that is asked for a long row measures two short ones, once, and goes on from there in a straight line; a short
row is not measured again once the statement has run often enough. What ``timeit`` itself is given runs as often as it says:
there a statement may be the program's work.
"""

from __future__ import annotations

import functools
import sys
import timeit
import weakref
from collections.abc import Callable
from typing import Any

from kernbench.torch_backend.patches import Patches

RUNS = (2, 8)
"""Repetitions of the two rows: what happens once per row (the wait at its end) is in both."""

ENOUGH = 10
"""Repetitions of a row up to which it is run as it is asked for; and of a statement after which no such row is run twice."""

_DEFAULT = 1_000_000
"""As the documentation of ``timeit`` says."""

LOOP = 10e-9
"""Seconds that a repetition takes at least: the loop around it. ESTIMATE: ten nanoseconds or so in CPython. Python takes no
virtual time, and a statement that did nothing else would be measured for ever."""


class StatementTimes:
    """Seconds that rows of one timer's statement take.

    Args:
        run: runs the statement so often, and gives the seconds.
    """

    def __init__(self, run: Callable[[int], float]) -> None:
        self._run = run
        self._runs = 0
        self._rows: dict[int, float] = {}
        self._line: tuple[float, float] | None = None

    def of(self, number: int) -> float:
        """Seconds of a row of ``number`` repetitions."""
        if number > ENOUGH:
            once, each = self._line = self._line or self._measure()
            return once + number * each
        if number not in self._rows or self._runs < ENOUGH:
            self._rows[number] = self._run(number)
            self._runs += number
        return self._rows[number]

    def _measure(self) -> tuple[float, float]:
        """Seconds of a row besides its repetitions, and of each of these."""
        short, long = (self._run(runs) for runs in RUNS)
        each = max((long - short) / (RUNS[1] - RUNS[0]), LOOP)
        return max(long - RUNS[1] * each, 0.0), each


def install(patches: Patches, running: Callable[[], int | None], remark: Callable[[str], None]) -> None:
    """Let torch's timers run a few repetitions inside ranks.

    Args:
        patches: what is replaced.
        running: the rank that runs, None outside ranks.
        remark: says a sentence in the summary.
    """
    stock = timeit.Timer.timeit
    times: weakref.WeakKeyDictionary[timeit.Timer, StatementTimes] = weakref.WeakKeyDictionary()

    @functools.wraps(stock)
    def measure(self: Any, number: int = _DEFAULT) -> float:
        if running() is None or not _is_torchs(self):
            return stock(self, number)
        if self not in times:
            few, most = ENOUGH, ENOUGH + sum(RUNS)
            remark(f"torch.utils.benchmark ran each statement some {few} to {most} times; the time of more follows")
            kept: Any = weakref.proxy(self)
            times[self] = StatementTimes(lambda runs: stock(kept, runs))
        return times[self].of(number)

    patches.set(timeit.Timer, "timeit", measure)


def _is_torchs(timer: Any) -> bool:
    """Whether ``torch.utils.benchmark`` made it: it looks at the clock after a synchronisation."""
    benchmark = sys.modules.get("torch.utils.benchmark")
    return benchmark is not None and timer.timer is benchmark.timer
