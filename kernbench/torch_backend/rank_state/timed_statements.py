"""``torch.utils.benchmark`` in a rank: a statement runs a few times, and the time of more follows from these.

Torch's timer repeats a statement until 0.2 s have passed: thousands of times where a GPU takes microseconds. Here the host computes
values each time, for far longer than the modelled GPU would, and in virtual time one repetition takes as long as the next. So a timer
that is asked for more than a few repetitions measures two short rows of them, once, and goes on from there in a straight line. What
``timeit`` itself is told runs as often as it says: there a statement may be the program's work.
"""

from __future__ import annotations

import functools
import sys
import timeit
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from kernbench.torch_backend.patches import Patches

RUNS = (2, 8)
"""Repetitions of the two rows: the first has what happens once per row (the wait at its end), their difference the rest."""

AS_TOLD = 10
"""Repetitions up to which a row is run as it is asked for."""


def install(patches: Patches, running: Callable[[], int | None], remark: Callable[[str], None]) -> None:
    """Let torch's timers run a few repetitions inside ranks.

    Args:
        patches: what is replaced.
        running: the rank that runs, None outside ranks.
        remark: what says a sentence in the summary.
    """
    stock = timeit.Timer.timeit
    lines: WeakKeyDictionary[timeit.Timer, tuple[float, float]] = WeakKeyDictionary()

    @functools.wraps(stock)
    def measure(self: Any, number: int = timeit.default_number) -> float:
        if number <= AS_TOLD or running() is None or not _is_torchs(self):
            return stock(self, number)
        if self not in lines:
            remark(
                "torch.utils.benchmark: rows of more than "
                f"{AS_TOLD} runs of a statement are told from {RUNS[0]} and {RUNS[1]}; only these have effects"
            )
            short, long = (stock(self, runs) for runs in RUNS)
            each = max((long - short) / (RUNS[1] - RUNS[0]), 0.0)
            lines[self] = (long - RUNS[1] * each, each)
        once, each = lines[self]
        return once + number * each

    patches.set(timeit.Timer, "timeit", measure)


def _is_torchs(timer: Any) -> bool:
    """Whether ``torch.utils.benchmark`` made it: it looks at the clock after a synchronisation."""
    benchmark = sys.modules.get("torch.utils.benchmark")
    return benchmark is not None and timer.timer is benchmark.timer
