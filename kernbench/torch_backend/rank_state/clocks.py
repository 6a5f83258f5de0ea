"""``time`` inside a rank, and its threads: its virtual clock.

``sleep`` lets the other ranks run while the rank's clock advances; ``time``, ``monotonic`` and ``perf_counter`` read that
clock, ``process_time`` and ``thread_time`` all of it but sleeps: a host that waits for a GPU spins. Python code itself takes no
virtual time, so reading a clock costs what a system call does, and a program that polls one without doing anything else lets
the others go on after a while: such a loop ends (ADR 0043).

Outside ranks the functions are as they were, also those that a program has kept.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import sys
import threading
import time
import timeit
from collections.abc import Callable
from types import CodeType
from typing import Any

from kernbench.defaults import EPOCH
from kernbench.scheduler.carrier import has_own_thread
from kernbench.scheduler.crew import (
    Member,
    acts_for_a_rank,
    current_member,
    current_thread_is_side,
    is_forked,
    is_outside,
)
from kernbench.simulation.ranks.locations import is_installed
from kernbench.simulation.simulation import Simulation
from kernbench.torch_backend.patches import Patches

from . import polled_processes

READ_COST = 50e-9
"""Seconds that one look at a clock takes."""

PATIENCE = 1000
"""Looks in a row after which a rank is taken to poll."""

POLL_STEP = 1e-3
"""Seconds that pass between two looks of a rank that polls."""

_TIMES_ITSELF = frozenset({
    "multiprocessing.connection", "multiprocessing.queues", "triton.compiler.compiler",
})  # fmt: skip
"""Modules whose looks at clocks are not the program's: to time themselves, only when a cache has not what they make; and beside
a wait, of which there is one or not by whether another process has already ended on the machine that simulates."""

_DATES = "logging"
"""The module whose looks date lines. They take no time: what torch and others that ranks share log once is logged once by all
ranks of a process, and by each rank that is one."""

_OF_THE_MACHINE = sys.stdlib_module_names | {
    "kernbench",
    "torch",
    "triton",
    "_pytest",
    "xdist",
    "execnet",
    "pytest_timeout",
}
"""Packages whose modules keep the host's clock where they took it by name: they time themselves or tests, and wait."""

_stock = {name: getattr(time, name) for name in (
    "sleep", "time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time",
    "process_time_ns", "thread_time", "thread_time_ns",
)}  # fmt: skip


_parted: list[bool] = []
"""Whether a rank has forked this process: not empty then."""

NAP = 2e-3
"""Seconds of the machine's time that a sleep takes at most in a process that a rank has forked."""


def _part() -> None:
    if has_own_thread():
        _parted.append(True)


os.register_at_fork(after_in_child=_part)


class RankClock:
    """The clock functions of the simulation that it is bound to."""

    def __init__(self) -> None:
        self._simulation: Simulation | None = None
        # of a rank, of a daemon that takes no turns, of main beside its ranks (None)
        self._looks: dict[int | Member | None, tuple[int, float]] = {}
        self._asleep: dict[int, float] = {}
        self.polled = polled_processes.PolledProcesses()

    def open(self, simulation: Simulation) -> None:
        """Show the time of ``simulation``'s ranks."""
        self._simulation = simulation
        self.polled.open(simulation)

    def close(self) -> None:
        """Show the host's time. Idempotent."""
        self._simulation = None
        self._looks.clear()
        self._asleep.clear()
        self.polled.close()

    def look(self, by_program: bool = True, cost: float = READ_COST) -> float | None:
        """Virtual seconds of the rank that asks; None outside ranks. A look that is not the program's takes no time."""
        simulation = self._simulation
        if simulation is None or simulation.hosts.observing:
            return None
        if simulation.scheduler.current_rank() is None:
            if not by_program:
                return None
            return self._look_beside(simulation) if simulation.world.is_beside else self._look_of_free(simulation)
        me = simulation.hosts.current()
        assert me.rank is not None
        if (me.unrecorded and not _parted) or me.untimed or not by_program:
            return me.clock
        looks = self._in_a_row(me.rank, me.clock)
        me.clock += cost
        me.asked += cost
        if looks > PATIENCE and _parted:
            me.clock += POLL_STEP
        elif looks > PATIENCE:
            self._pass(simulation, POLL_STEP)
        self._looks[me.rank] = (looks, me.clock)
        return me.clock

    def _in_a_row(self, who: int | Member | None, clock: float) -> int:
        """How often ``who`` has looked before while its time stood still; this look is noted."""
        looks, last = self._looks.get(who, (0, -1.0))
        looks = looks + 1 if clock == last else 0
        self._looks[who] = looks, clock
        return looks

    def _look_beside(self, simulation: Simulation) -> float:
        """The same for main beside ranks that it has not joined: how far these have got, as for its sleeps."""
        if self._in_a_row(None, simulation.engine.now) > PATIENCE:
            simulation.threads.go_on_for(POLL_STEP)
        return simulation.engine.now

    def _look_of_free(self, simulation: Simulation) -> float | None:
        """The same for a daemon that takes no turns yet; it takes some if it polls."""
        member = current_member()
        if member is None or is_outside() or is_forked():
            return None
        clock = simulation.hosts.of_rank[member.crew.rank].clock
        if self._in_a_row(member, clock) > PATIENCE and acts_for_a_rank():
            del self._looks[member]
            return self.look()
        return clock

    def asleep(self) -> float:
        """Virtual seconds for which the rank that asks has slept."""
        rank = None if self._simulation is None else self._simulation.scheduler.current_rank()
        return 0.0 if rank is None else self._asleep.get(rank, 0.0)

    def dated(self) -> None:
        """The program writes down the time of a rank as a date."""
        simulation = self._simulation
        if simulation is not None and simulation.scheduler.current_rank() is not None:
            begin = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(EPOCH))
            simulation.remarks.setdefault(f"log lines are dated by virtual time, which begins at {begin} UTC")

    def sleep(self, seconds: float) -> None:
        """``time.sleep``. While main sleeps, ranks that it has not joined go on."""
        simulation = self._simulation
        if simulation is None:
            _stock["sleep"](seconds)
        elif simulation.world.is_beside and simulation.scheduler.live_count and seconds >= 0:
            simulation.threads.go_on_for(seconds or POLL_STEP)
        elif simulation.scheduler.current_rank() is None and (_parted or not acts_for_a_rank()):
            _stock["sleep"](seconds)
        elif seconds < 0:
            raise ValueError("sleep length must be non-negative")
        else:
            if not current_thread_is_side():
                rank = simulation.hosts.current_rank()
                self._asleep[rank] = self._asleep.get(rank, 0.0) + seconds
            self._pass(simulation, seconds)
            if not seconds and not _parted:
                simulation.looks.yielded()

    def _pass(self, simulation: Simulation, seconds: float) -> None:
        host = simulation.hosts.current()
        if _parted:
            host.clock += seconds
            _stock["sleep"](min(seconds, NAP))
            return
        if host.rank is not None:
            self.polled.let_end(host.rank, host.clock, seconds)
        if seconds > 0 and threading.current_thread().daemon and current_thread_is_side():
            simulation.threads.sleep(seconds)  # for ever and ever, maybe: that hides no deadlock
        else:
            simulation.waits.sleep(seconds)


def install(patches: Patches, clock: RankClock) -> None:
    """Let the functions of ``time`` show ``clock``."""

    def reads(name: str, offset: float, nanoseconds: bool, awake: bool = False) -> Callable[[], Any]:
        stock = _stock[name]

        def read() -> Any:
            frame = inspect.currentframe()
            caller = None if frame is None else frame.f_back
            asks = None if caller is None else caller.f_globals.get("__name__")
            free = asks == _DATES or (caller is not None and _is_imported(caller.f_code))
            del frame, caller  # in a circle with itself, it would keep its callers and what they have
            now = clock.look(by_program=asks not in _TIMES_ITSELF, cost=0.0 if free else READ_COST)
            if now is None:
                return stock()
            if awake:
                now -= clock.asleep()
            return round((now + offset) * 1e9) if nanoseconds else now + offset

        read.__name__ = name
        return read

    patches.set(time, "sleep", clock.sleep)
    polled_processes.install(patches, clock.polled)
    for name, offset in (("time", EPOCH), ("monotonic", 0.0), ("perf_counter", 0.0)):
        patches.set(time, name, reads(name, offset, nanoseconds=False))
        patches.set(time, f"{name}_ns", reads(f"{name}_ns", offset, nanoseconds=True))
    for name in ("process_time", "thread_time"):
        patches.set(time, name, reads(name, 0.0, nanoseconds=False, awake=True))
        patches.set(time, f"{name}_ns", reads(f"{name}_ns", 0.0, nanoseconds=True, awake=True))
    _install_timeit(patches)
    _install_dates(patches, clock)


def _is_imported(code: CodeType) -> bool:
    """Whether code is an installed module's, which is being imported: in a process once for all ranks, if they share it."""
    return code.co_name == "<module>" and is_installed(code.co_filename)


_scanned: set[str] = set()
_kept: list[tuple[Any, str]] = []
"""Modules, and names that are functions of ``time`` in them."""


def install_kept(patches: Patches) -> None:
    """Packages that took the functions by name when they were imported, as tqdm, which torch imports, does."""
    for module_name in sys.modules.keys() - _scanned:
        _scanned.add(module_name)
        if module_name.partition(".")[0] not in _OF_THE_MACHINE:
            names = getattr(sys.modules[module_name], "__dict__", {})
            _kept.extend((sys.modules[module_name], name) for name, stock in _stock.items() if names.get(name) is stock)
    for module, name in _kept:
        if vars(module).get(name) is _stock[name]:
            patches.set(module, name, getattr(time, name))


def _install_dates(patches: Patches, clock: RankClock) -> None:
    """Log lines that are dated by virtual time: the run says why."""
    stock = logging.Formatter.formatTime

    @functools.wraps(stock)
    def format_time(self: Any, record: Any, datefmt: str | None = None) -> str:
        clock.dated()
        return stock(self, record, datefmt)

    patches.set(logging.Formatter, "formatTime", format_time)


def _install_timeit(patches: Patches) -> None:
    """``timeit`` and ``torch.utils.benchmark`` keep ``perf_counter`` under a name of their own, also as a default argument."""
    virtual, stock = time.perf_counter, timeit.Timer.__init__

    @functools.wraps(stock)
    def init(self: Any, stmt: Any = "pass", setup: Any = "pass", timer: Any = virtual, globals: Any = None) -> None:
        stock(self, stmt, setup, virtual if timer is _stock["perf_counter"] else timer, globals)

    patches.set(timeit, "default_timer", virtual)
    patches.set(timeit.Timer, "__init__", init)
