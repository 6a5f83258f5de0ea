"""Says so when a rank blocks its thread instead of waiting in the simulation.

A rank that waits for a lock, a queue, a thread of its own or a socket holds the baton meanwhile: no other rank runs, and if
what it waits for is another rank's business, none ever will. From the outside that is a hang, so this is the one place that
looks at the wall clock. It changes no result: it reports on ``stderr``, and it stops the run only where nothing in the process
can wake the rank, which means that the run would hang for ever (ADR 0045).

A rank counts as blocked if, between two looks, its thread has used no processor time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread  # a program may replace the names
from typing import Any

from kernbench.errors import HiddenBlockingError
from kernbench.scheduler.carrier import Baton, Carrier
from kernbench.scheduler.held_locks import held_lock
from kernbench.scheduler.host_effects import start_thread
from kernbench.scheduler.standstill import Standstill, lines_to, shown_stack, tell
from kernbench.scheduler.thread_frames import frame_of_thread

PERIOD = 1.0
"""Seconds of wall-clock time between two looks."""

PATIENCE = 10
"""Looks in a row that find a rank blocked, before that is said."""

WATCHDOG_THREAD, PROGRESS_THREAD = "kernbench-watchdog", "kernbench-progress"
"""Names of threads that only look: nothing that a rank waits for comes from them."""

_FUTEX = {"x86_64": "202", "aarch64": "98"}
"""Number of the system call by which a thread waits for a lock, by machine."""


_join = threading.Thread.join
"""Of Python itself: where ranks run, others stand in for them, by which a program's threads are its ranks'."""


class Watchdog:
    """Looks at the carrier that holds the baton now and then.

    Args:
        standstill: what it looks at besides; None: nothing.
        baton: its holder runs; None: ranks have no threads of their own.
        carriers: of the same world.
        give_up: called, in the watchdog's thread, with a carrier that waits for ever and what to raise in main.
    """

    def __init__(
        self,
        standstill: Standstill | None = None,
        baton: Baton | None = None,
        carriers: Collection[Carrier] = (),
        give_up: Callable[[Carrier, BaseException], None] | None = None,
    ) -> None:
        self._standstill = standstill
        self._baton = baton
        self._carriers = carriers
        self._give_up = give_up
        self._stop = Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look for the length of a block."""
        thread = Thread(target=self._run, name=WATCHDOG_THREAD, daemon=True)
        start_thread(thread, "the look for ranks that wait for ever")
        try:
            yield
        finally:
            self._stop.set()
            _join(thread)

    def _run(self) -> None:
        seen: Any = None
        looks = 0
        period = PERIOD
        if self._standstill is not None and self._standstill.limit is not None:
            period = min(PERIOD, self._standstill.limit / 4)
        patience = round(PATIENCE * PERIOD / period)
        while not self._stop.wait(period):
            if self._standstill is not None:
                self._standstill.look()
            carrier = None if self._baton is None else self._baton.holder
            place = None if carrier is None else place_of(carrier.thread)
            looks = looks + 1 if place is not None and place == seen else 0
            seen = place
            if carrier is not None and looks == patience:
                self._report(carrier)

    def _report(self, carrier: Carrier) -> None:
        stack, which = _stack_of(carrier.thread), "its thread"
        if carrier.is_side:
            which = f"its thread {carrier.thread.name!r}"
            stack += f"The rank's own thread:\n{_stack_of(carrier.crew.carrier.thread)}"
        for_ever = self._for_ever(carrier.thread)
        report = (
            f"rank {carrier.index} has been blocking {which} for {PERIOD * PATIENCE:g} s of wall-clock time, and no other "
            "rank can run meanwhile: it waits for something outside the simulation (a lock, a queue, a thread, a process, a "
            f"socket).\n{stack.rstrip()}\n"
        )
        if for_ever:
            others = {
                each.thread.ident: each.index for each in self._carriers if each is not carrier and each.thread.ident
            }
            held = held_lock(carrier.thread.ident or 0, others) or "a rank that holds it waits in the simulation"
            report += (
                "It waits for a lock, and no other thread or process is there that could release it: "
                f"{held}\nDo not hold a lock, or wait for a queue, across a collective: ranks take turns."
            )
        tell(report)
        if for_ever and self._give_up is not None:
            self._give_up(carrier, HiddenBlockingError(report))

    def _for_ever(self, thread: threading.Thread) -> bool:
        """Whether a rank's thread waits for a lock that only another rank, none of which can run, could release."""
        carriers = {each.thread for each in self._carriers}
        own = {threading.current_thread(), threading.main_thread()}
        helpers = {each for each in threading.enumerate() if each.name in (WATCHDOG_THREAD, PROGRESS_THREAD)}
        if set(threading.enumerate()) - carriers - own - helpers:
            return False
        task = Path("/proc/self/task", str(thread.native_id))
        return waits_for_lock(task) and not has_children(Path("/proc/self"))


_PRIVATE = 128
"""In a futex's operation: only threads of the same process know it."""


def sleeps(task: Path) -> bool:
    """Whether a thread (``/proc/PID/task/TID``) waits for something; False where that is not known."""
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0] == "S"
    except (OSError, IndexError):
        return False


def waits_for_lock(task: Path, *, private: bool = True) -> bool:
    """Whether a thread (``/proc/PID/task/TID``) waits, without a limit, for a lock; ``private``: that only its own process can
    release."""
    try:
        call, *arguments = (task / "syscall").read_text().split()
    except (OSError, ValueError):
        return False
    if call != _FUTEX.get(os.uname().machine) or len(arguments) < 4:
        return False
    _, operation, _, limit = (int(each, 16) for each in arguments[:4])
    return (bool(operation & _PRIVATE) or not private) and not limit


def has_children(process: Path) -> bool:
    """Whether a process (``/proc/PID``) has children, or that is not known."""
    try:
        return bool("".join(path.read_text() for path in process.glob("task/*/children")).strip())
    except OSError:
        return True


def _stack_of(thread: threading.Thread) -> str:
    lines = lines_to(frame_of_thread(thread.ident))
    return shown_stack(lines)


def place_of(thread: threading.Thread) -> object:
    """How far a rank's thread is: the nanoseconds of a processor that it has used; one that does not sleep is always elsewhere.
    None if not known.

    Not its frame: as long as another thread holds one, what the function's variables held lives on, and torch copies a
    gradient that it would have taken. Virtual time would depend on when a look happens.
    """
    try:
        task = Path("/proc/self/task", str(thread.native_id))
        used = (task / "schedstat").read_text().split()[0]
    except OSError:
        return None
    return (thread.ident, int(used)) if sleeps(task) else object()


def is_elsewhere(before: object, now: object, slight: float = 0.0) -> bool:
    """Whether a thread has gone from one place (:func:`place_of`) to another, or may have, by more than ``slight`` seconds."""
    if not isinstance(before, tuple) or not isinstance(now, tuple):
        return before != now
    return bool(before[0] != now[0] or now[1] - before[1] > slight * 1e9)
