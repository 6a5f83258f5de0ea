"""A carrier: the OS thread that runs one rank's body, behind a baton.

Torch keeps much of its state per OS thread (grad mode, autocast, dispatch modes, the autograd engine's ready queue)
and some of its C++ frames must leave a thread in the order in which they entered it. A rank whose body switches
greenlets inside such frames would corrupt them. So each rank's greenlet *fronts* an OS thread: the greenlet scheduler
stays the only scheduler, and the thread runs exactly while its greenlet would.

The baton is two locks. Handing it over blocks the giver until it comes back, so exactly one thread runs at a time and
the order of execution is as deterministic as with plain greenlets.
"""

from __future__ import annotations

import contextvars
import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from greenlet import getcurrent

try:
    from greenlet import _greenlet
except ImportError:  # another build of greenlet: threads end as it likes
    _greenlet = None

_local = threading.local()


def current_carrier() -> Carrier | None:
    """The carrier whose thread is running, or None on the main thread (and on a user's own threads)."""
    return getattr(_local, "carrier", None)


@contextmanager
def one_core() -> Iterator[None]:
    """Keep the calling thread, and the threads that it starts, on the core that it is on.

    One carrier runs at a time, so more cores are of no use, and handing the baton to a thread on another core costs many
    times what it costs on the same one: that core has to be woken up. Without effect where the system has no such call.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    core = ctypes.CDLL(None).sched_getcpu()
    if core in before:
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


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
    _greenlet.enable_optional_cleanup(False)
    try:
        yield
    finally:
        _greenlet.enable_optional_cleanup(True)


class Carrier:
    """Runs ``body`` on its own OS thread whenever :meth:`front`, which is a rank's greenlet body, is running.

    Args:
        body: what the thread executes; it must not raise.
        name: the thread's name, as shown by debuggers.
        to_main: switches from the fronting greenlet to main; returns when the rank is resumed, or raises what was
            thrown into it.
    """

    def __init__(self, body: Callable[[], None], name: str, to_main: Callable[[], Any]) -> None:
        self._body = body
        self._to_main = to_main
        self._to_thread = threading.Lock()
        self._to_thread.acquire()
        self._to_front = threading.Lock()
        self._to_front.acquire()
        self._finished = False
        self._parked = False
        self.stuck = False
        """Whether the thread is known to wait for ever, and cannot be unwound."""
        self._thrown: BaseException | None = None
        self.thread = threading.Thread(target=contextvars.copy_context().run, args=(self._run,), name=name, daemon=True)
        self.root: Any = None
        """The thread's own greenlet, which is what ``greenlet.getcurrent()`` returns inside the rank."""
        self.before_run: Callable[[], None] | None = None
        """Called before each time that the thread gets the baton."""
        self.on_bound: Callable[[Any], None] | None = None

    @property
    def holds_baton(self) -> bool:
        """Whether the thread is running (or blocked outside the simulation)."""
        return self.root is not None and not self._parked and not self._finished

    def front(self) -> None:
        """Body of the fronting greenlet: lend the baton to the thread until it has finished."""
        self.thread.start()
        while True:
            if self.before_run is not None:
                self.before_run()
            self._to_thread.release()
            try:
                self._to_front.acquire()
            except BaseException:  # KeyboardInterrupt while the rank runs: stop the rank, then let it propagate
                self._interrupt()
                raise
            if self._finished:
                self.thread.join()
                return
            try:
                self._to_main()
            except BaseException as thrown:
                self._thrown = thrown

    def switch_to_main(self) -> None:
        """Called on the thread: give the baton back, and return when the rank is resumed.

        Raises whatever was thrown into the fronting greenlet meanwhile.
        """
        self._parked = True
        self._to_front.release()
        self._to_thread.acquire()
        self._parked = False
        thrown, self._thrown = self._thrown, None
        if thrown is not None:
            raise thrown

    def _run(self) -> None:
        self._to_thread.acquire()
        _local.carrier = self
        self.root = getcurrent()
        if self.on_bound is not None:
            self.on_bound(self.root)
        try:
            self._body()
        finally:
            self._finished = True
            self._to_front.release()

    def _interrupt(self) -> None:
        """Unwind the thread from outside: it may be in any Python code of the user, or have just given the baton back."""
        for _ in range(1 if self.stuck else 100):
            identity = self.thread.ident
            if identity is None or not self.thread.is_alive() or self._finished:
                return
            if self._parked:
                self._to_front.acquire(blocking=False)
                self._thrown = SystemExit()
                self._to_thread.release()
            else:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(identity), ctypes.py_object(SystemExit))
            self._to_front.acquire(timeout=0.1)
