"""What a simulation does to its whole process while its ranks run, each with a switch.

None of it changes a result. It makes runs quicker, and Ctrl-C end the simulation; a program that embeds kernbench in a
process that does other things at the same time may not want it.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from functools import partial
from os import getpid
from typing import Any, TypeVar

from kernbench.errors import ConfigError, KernbenchError
from kernbench.interruption import DEFAULTS, EndingHandler, interrupt

try:
    from greenlet import _greenlet
except ImportError:  # another build of greenlet: threads end as it likes
    _greenlet = None

_affinity: Any = getattr(os, "sched_getaffinity", None)  # the system's, whatever ranks see by these names
_set_affinity: Any = getattr(os, "sched_setaffinity", None)

T = TypeVar("T")

VARIABLE = "KERNBENCH_HOST_EFFECTS"
"""``on`` (the default), ``off``, or the effects to have, with commas between them."""


@dataclass(frozen=True)
class HostEffects:
    """Which effects on the process are allowed while ranks run. All are undone when they have ended.

    Attributes:
        one_core: carriers, and the thread that runs the simulation, share the core that this thread is on (:func:`one_core`).
        batch: they are scheduled as batch work (:func:`batch_work`).
        frozen_heap: the collector of cyclic garbage looks at new objects only (:func:`settled_heap`), and greenlet does not
            search for references to the greenlets of threads that end (:func:`quick_thread_end`).
        ctrl_c: a handler of SIGINT tells Ctrl-C, which ends the simulation, from a KeyboardInterrupt that a rank raises
            itself, which ends that rank. Only where Python's own handler was set. Without it, both do the latter.
    """

    one_core: bool = True
    batch: bool = True
    frozen_heap: bool = True
    ctrl_c: bool = True

    @classmethod
    def none(cls) -> HostEffects:
        """Leave the process as it is."""
        return cls(**{each.name: False for each in fields(cls)})

    @classmethod
    def from_environment(cls) -> HostEffects:
        """What ``KERNBENCH_HOST_EFFECTS`` says. Raises :class:`~kernbench.errors.ConfigError` if that is no effect's name."""
        text = os.environ.get(VARIABLE, "").strip()
        if text in ("", "on"):
            return cls()
        names = [each.name for each in fields(cls)]
        chosen = [] if text == "off" else [name.strip() for name in text.split(",")]
        if unknown := [name for name in chosen if name not in names]:
            raise ConfigError(
                f"{VARIABLE}: no effect is called {unknown[0]!r}; expected on, off, or of {', '.join(names)}"
            )
        return cls(**{name: name in chosen for name in names})

    @contextmanager
    def in_force(self, on_interrupt: Callable[[Callable[[], None]], None], *, threads: bool) -> Iterator[None]:
        """For the length of a block, while ranks run.

        Args:
            on_interrupt: called on Ctrl-C, with what raises KeyboardInterrupt, which is to be called there or soon after.
            threads: whether ranks run on threads of their own.
        """
        with ExitStack() as stack:
            if self.ctrl_c:
                stack.enter_context(interruptible(on_interrupt))
            if self.frozen_heap:
                stack.enter_context(settled_heap())
            if self.one_core and threads:
                stack.enter_context(one_core())
            if self.batch and threads:
                stack.enter_context(batch_work())
            yield


@contextmanager
def one_core() -> Iterator[None]:
    """Keep the calling thread, and the threads that it starts, on the core that it is on.

    One carrier runs at a time, so more cores are of no use, and handing the baton to a thread on another core costs many
    times what it costs on the same one: that core has to be woken up. Without effect where the system has no such call.
    """
    if _set_affinity is None:
        yield
        return
    before = _affinity(0)
    core = ctypes.CDLL(None).sched_getcpu()
    if core in before:
        _set_affinity(0, {core})
    _cores.append(before)
    try:
        yield
    finally:
        _cores.remove(before)
        _set_affinity(0, before)


_cores: list[set[int]] = []
"""What the process has where :func:`one_core` is in force."""


def cores() -> set[int] | None:
    """The cores that the process has, if its ranks keep to one of them; None if they do not."""
    return set(_cores[0]) if _cores else None


@contextmanager
def on_all_cores(own: set[int] | None = None) -> Iterator[None]:
    """For the length of a block, processes that the calling thread starts have ``own`` cores; None: all that this one has."""
    if not _cores:
        yield
        return
    mine = _affinity(0)
    _set_affinity(0, own or _cores[0])
    try:
        yield
    finally:
        _set_affinity(0, mine)


def _leave_core() -> None:
    if _cores:
        _set_affinity(0, _cores[0])
        _cores.clear()


os.register_at_fork(after_in_child=_leave_core)


@contextmanager
def batch_work() -> Iterator[None]:
    """Let the calling thread, and the threads that it starts, take turns as batch work (``SCHED_BATCH``).

    Such a thread, when woken, does not push aside the one that woke it, which is about to wait and still holds the
    interpreter's lock: that would be two changes of thread for nothing. Without effect where the system does not let us.
    """
    if not hasattr(os, "sched_setscheduler") or os.sched_getscheduler(0) != os.SCHED_OTHER:
        yield
        return
    changed = _set_policy(os.SCHED_BATCH)
    try:
        yield
    finally:
        if changed:
            _set_policy(os.SCHED_OTHER)


def _set_policy(policy: int) -> bool:
    """Set the scheduling policy of the calling thread; False if the system does not let us."""
    try:
        os.sched_setscheduler(0, policy, os.sched_param(0))
    except OSError:
        return False
    return True


@contextmanager
def quick_thread_end() -> Iterator[None]:
    """Let threads that have used greenlets end quickly.

    When such a thread ends, greenlet looks through every object of the process for references to the thread's own
    greenlet, in case one keeps it alive: ten milliseconds and more once torch is imported. A carrier's root is forgotten
    when its rank ends, so there is nothing to find.
    """
    if _greenlet is None or not hasattr(_greenlet, "enable_optional_cleanup"):
        yield
        return
    if _greenlet.get_clocks_used_doing_optional_cleanup() is None:
        yield  # another owner has turned it off, such as the simulation around this one, and will turn it on
        return
    _greenlet.enable_optional_cleanup(False)
    try:
        yield
    finally:
        _greenlet.enable_optional_cleanup(True)


@contextmanager
def settled_heap() -> Iterator[None]:
    """Let the collector of cyclic garbage look at new objects only, for the length of a block.

    Ranks make so many objects, most of them lasting (the log's), that full collections come often, and each walks through
    everything that was ever imported: a tenth of the time to start a world of a thousand ranks, and of small collectives.

    Threads end quickly meanwhile (:func:`quick_thread_end`), and they must: greenlet's search for references to a thread's own
    greenlet sees nothing of what has settled, and would take away a reference that is held there.
    """
    with quick_thread_end():
        if gc.get_freeze_count():
            yield  # another owner has done it, and will undo it
            return
        gc.freeze()
        try:
            yield
        finally:
            gc.unfreeze()


def with_room(begin: Callable[[], T]) -> T:
    """What ``begin`` gives, which forks this process.

    The system may refuse to promise the child all that is reserved here: then garbage is collected, also of
    what has settled (:func:`settled_heap`), and it is called once more.
    """
    try:
        return begin()
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        settled = gc.get_freeze_count()
        gc.unfreeze()
        gc.collect()
        if settled:
            gc.freeze()
        return begin()


_start: Callable[[threading.Thread], None] = threading.Thread.start
"""Python's own: in a simulation that a rank runs, these are ranks, and no threads of that rank's program."""


def start_thread(thread: threading.Thread, whose: str) -> None:
    """Start a thread of the simulation's own. Raises KernbenchError if the system has no more for ``whose``."""
    try:
        _start(thread)
    except RuntimeError as error:
        raise KernbenchError(
            f"no thread for {whose}: {error}. The system counts each as a process: allow more (ulimit -u)"
        ) from None


@contextmanager
def interruptible(on_interrupt: Callable[[Callable[[], None]], None]) -> Iterator[None]:
    """Call ``on_interrupt`` when a signal is to end the run, wherever the main thread is, with what raises the exception that
    ends it: Ctrl-C as Python handles it by itself, and what :func:`~kernbench.interruption.ending_signals` handles.
    """
    before: dict[int, Any] = {}
    process = getpid()

    def interrupted(signum: int, frame: Any) -> None:
        if getpid() == process:
            on_interrupt(partial(before[signum], signum, frame))
        else:
            before[signum](signum, frame)

    if threading.current_thread() is threading.main_thread():
        for each in DEFAULTS:
            handler = signal.getsignal(each)
            if handler in (signal.default_int_handler, interrupt) or isinstance(handler, EndingHandler):
                before[each] = handler
                signal.signal(each, interrupted)
    try:
        yield
    finally:
        for signum, handler in before.items():
            if signal.getsignal(signum) is interrupted:
                signal.signal(signum, handler)
