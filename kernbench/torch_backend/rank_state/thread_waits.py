"""Where a rank's thread waits for another one, or for the world outside: the others go on meanwhile.

``Condition.wait``, on which events, queues, futures, semaphores and barriers stand, ``Thread.join``, locks that a rank's
program makes, and the reading of a queue or pipe of :mod:`multiprocessing`; event loops are :mod:`.event_loops`' business. A
rank that has one thread waits as Python does; a limit of such a wait passes in virtual time.
"""

from __future__ import annotations

import _thread
import copyreg
import functools
import multiprocessing.connection
import multiprocessing.managers
import pkgutil
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from kernbench.scheduler.crew import (
    Crew,
    acting_crew,
    acts_for_a_rank,
    current_member,
    is_forked,
    is_in_rank,
    is_outside,
)
from kernbench.simulation.time.notices import Notice
from kernbench.simulation.time.rank_threads import RankThreads
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.rank_state.listed_threads import OURS, all_threads
from kernbench.torch_backend.rank_state.thread_looks import Looks
from kernbench.torch_backend.relies_on import Reliance

_Condition: Any = threading.Condition
_Manager: Any = multiprocessing.managers.SyncManager
_Connection: object = multiprocessing.connection.Connection
_stock_wait, _stock_lock, _stock_rlock = _Condition.wait, threading.Lock, threading.RLock
_PythonRLock: Any = threading._PyRLock  # type: ignore[attr-defined]
_PythonQueue: Any = queue._PySimpleQueue  # type: ignore[attr-defined]
_Queue: Any = queue.SimpleQueue

RELIES_ON = (
    Reliance("_thread.allocate_lock", "the interpreter's own lock, whatever `threading.Lock` is"),
    Reliance("threading.Condition", "a wait is composed of these", has=("_release_save", "_acquire_restore", "_is_owned"),
             holds=lambda condition: hasattr(condition(), "_waiters")),
    Reliance("threading._PyRLock", "a reentrant lock is one that it calls `_block`",
             holds=lambda lock: hasattr(lock(), "_block")),
    Reliance("threading._time", "limits of waits are counted by it"),
    Reliance("queue.time", "the same for queues"),
    Reliance("queue._PySimpleQueue", "a SimpleQueue of a deque and a semaphore, which is released when something is put",
             has=("get", "put"), holds=lambda queue: {"_queue", "_count"} <= vars(queue()).keys()),
    Reliance("multiprocessing.managers.SyncManager._registry", "what makes a manager's objects, by their names",
             holds=lambda registry: registry["RLock"][0] is not None),
    Reliance("multiprocessing.connection.Connection", "a queue's get, and a pipe's recv, wait there", has=(
        "_poll", "_recv_bytes",
    )),
)  # fmt: skip


def install(patches: Patches, threads: RankThreads, looks: Looks) -> None:
    """Replace where threads wait."""
    _older.clear()
    patches.set(threading, "Lock", _makes("threading:Lock", _stock_lock, Lock, threads, looks))
    patches.set(threading, "RLock", _makes("threading:RLock", _stock_rlock, ReentrantLock, threads, looks))
    registry = _Manager._registry  # it has the function, which is pickled by its name
    patches.set(_Manager, "_registry", {**registry, "RLock": (threading.RLock, *registry["RLock"][1:])})
    patches.set(queue, "SimpleQueue", _makes("queue:SimpleQueue", _Queue, SimpleQueue, threads, looks))
    patches.set(threading.Condition, "wait", _waits_for_notice(threads))
    for module, name in ((threading, "_time"), (queue, "time")):  # by which limits of waits are computed
        patches.set(module, name, _shows_time(threads, getattr(module, name)))
    for name, over in (("_poll", _at_once), ("_recv_bytes", lambda *_: False)):
        patches.set(_Connection, name, _waits_outside(threads, "a message", getattr(_Connection, name), over))


def _waits_for_notice(threads: RankThreads) -> Callable[..., bool]:
    @functools.wraps(_stock_wait)
    def wait(condition: Any, timeout: float | None = None) -> bool:
        crew, mine = _crews()
        if mine is None:
            limited = timeout is not None and timeout > 0
            return (
                _wait_alone(condition, timeout or 0.0)
                if limited and _is_alone()
                else bool(_stock_wait(condition, timeout))
            )
        if not condition._is_owned():
            raise RuntimeError("cannot wait on un-acquired lock")
        if timeout is not None and timeout <= 0:
            return False
        lock, rest = _rest(threads, crew, mine.rank, timeout)
        condition._waiters.append(lock)
        saved = condition._release_save()
        told = False
        try:
            told = rest()
            return told
        finally:
            condition._acquire_restore(saved)
            if not told and lock in condition._waiters:
                condition._waiters.remove(lock)

    return wait


def _crews() -> tuple[Crew | None, Crew | None]:
    """That for which the running thread takes turns, and that to which it belongs."""
    crew, member = acting_crew(), current_member()
    return crew, crew or (None if member is None or is_forked() or is_outside() else member.crew)


def _rest(
    threads: RankThreads, crew: Crew | None, rank: int, timeout: float | None
) -> tuple[Released, Callable[[], bool]]:
    """For a rank's thread: what another one is to release, and what waits until it has, or ``timeout`` has passed."""
    if crew is None and timeout is None:
        return threads.free.rest()
    notice = threads.notice("another thread", rank)

    def rest() -> bool:
        if timeout is not None:
            acts_for_a_rank()  # limits pass in the rank's time
        return threads.wait(notice, timeout)

    return notice, rest


def _is_alone() -> bool:
    """Whether a rank asks that has one thread, and no threads but those of ranks have come since they were started: what
    was there before (a library's, a notebook's) knows nothing of what they wait for."""
    if not is_in_rank() or acting_crew() is not None:
        return False
    return all(thread.name.startswith(OURS) or thread in _older for thread in all_threads())


_older: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
"""The process's threads when ranks were started; none where a program becomes a rank itself, whose own they may be."""


def start_with_these() -> None:
    """Ranks are about to be started in threads of their own: those that are there are not of their program."""
    _older.update(all_threads())


def _wait_alone(condition: Any, seconds: float) -> bool:
    """Of a rank that is alone: another one, at most, could notify it of something that they share."""
    if not condition._is_owned():
        raise RuntimeError("cannot wait on un-acquired lock")
    waiter = _thread.allocate_lock()
    waiter.acquire()
    condition._waiters.append(waiter)
    saved = condition._release_save()
    try:
        time.sleep(seconds)
    finally:
        condition._acquire_restore(saved)
        told = waiter.acquire(False)
        if not told and waiter in condition._waiters:
            condition._waiters.remove(waiter)
    return told


def _shows_time(threads: RankThreads, stock: Callable[[], float]) -> Callable[[], float]:
    @functools.wraps(stock)
    def shown() -> float:
        return threads.time() if acting_crew() is not None or _is_alone() else stock()

    return shown


def _at_once(timeout: float | None = None) -> bool:
    return timeout is not None and timeout <= 0


def _waits_outside(
    threads: RankThreads, awaits: str, stock: Callable[..., Any], over: Callable[..., bool]
) -> Callable[..., Any]:
    """A method by which a thread waits for the rank's own pipes, unless it is ``over`` at once. Others are waited for as what
    processes share."""

    @functools.wraps(stock)
    def method(self: Any, *args: object, **kwargs: object) -> Any:
        if acting_crew() is None or over(*args, **kwargs):
            return stock(self, *args, **kwargs)
        return threads.outside(awaits, functools.partial(stock, self, *args, **kwargs), own=True)

    return method


# -- locks ---------------------------------------------------------------------------------------------------------------


class _Stock(type):
    """A class that stands for one of Python's. Pickled it is that one, as another process has it."""

    name: str  # module:name


copyreg.pickle(_Stock, lambda made: (pkgutil.resolve_name, (made.name,)))


def _makes(name: str, stock: Callable[[], Any], kind: type, *needs: object) -> type:
    """What stands for a kind of lock or queue: a rank's program gets one by which its threads can wait for each other."""

    class Made(metaclass=_Stock):
        def __new__(cls) -> Any:
            return kind(*needs) if is_in_rank() else stock()

    Made.name = name
    Made.__name__ = Made.__qualname__ = getattr(stock, "__name__", "")
    return Made


class Lock:
    """A lock, which a thread of a rank waits for as it does for all else."""

    def __init__(self, threads: RankThreads, looks: Looks) -> None:
        self._lock = _thread.allocate_lock()
        self._threads = threads
        self._looks = looks
        self._waiting: deque[Notice] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """See :meth:`threading.Lock.acquire`."""
        if self._lock.acquire(False):
            return True
        if not blocking:
            self._looks.saw(self, ready=False)
            return False
        if timeout > 0 and _is_alone():
            time.sleep(timeout)
            return self._lock.acquire(False)
        if acting_crew() is None and not (timeout > 0 and acts_for_a_rank()):
            return self._lock.acquire(True, timeout)
        told = True
        while told:
            notice = self._threads.notice("a lock")
            self._waiting.append(notice)
            try:
                if self._lock.acquire(False):  # a thread without a turn has released it before it could see who waits
                    return True
                told = self._threads.wait(notice, None if timeout < 0 else timeout)
            finally:
                if notice in self._waiting:
                    self._waiting.remove(notice)
            if self._lock.acquire(False):
                return True
        return False

    __enter__ = acquire

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """See :meth:`threading.Lock.release`."""
        self._lock.release()
        if self._waiting:
            self._waiting.popleft().release()

    def locked(self) -> bool:
        """See :meth:`threading.Lock.locked`."""
        taken = self._lock.locked()
        self._looks.saw(self, ready=not taken)
        return taken

    def _is_owned(self) -> bool:
        """What a condition over it asks: it would try to take one that has no such method."""
        return self._lock.locked()

    def _at_fork_reinit(self) -> None:
        self._lock = _thread.allocate_lock()
        self._waiting.clear()

    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle '_thread.lock' object")

    def __repr__(self) -> str:
        return repr(self._lock)


class ReentrantLock(_PythonRLock):
    """The same for one that its owner may take again."""

    def __init__(self, threads: RankThreads, looks: Looks) -> None:
        super().__init__()
        self._block = Lock(threads, looks)

    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle '_thread.RLock' object")


class Released(Protocol):
    """What another thread releases, in whatever thread that is, and without waiting."""

    def release(self) -> None:
        """Have the thread go on that waits for it."""


class _Count:
    """A semaphore whose release takes no lock: what the garbage collector calls, in the middle of anything, may release it."""

    def __init__(self, threads: RankThreads, looks: Looks) -> None:
        self._threads = threads
        self._looks = looks
        self._free: deque[None] = deque()
        self._waiting: deque[Released] = deque()

    def release(self) -> None:
        """See :meth:`threading.Semaphore.release`."""
        self._free.append(None)
        self._tell_one()

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """See :meth:`threading.Semaphore.acquire`."""
        end = None if timeout is None else time.monotonic() + timeout
        while not (taken := self._take()) and blocking and (end is None or end > time.monotonic()):
            lock, rest = self._rest(None if end is None else end - time.monotonic())
            self._waiting.append(lock)
            rested = False
            try:
                if taken := self._take():  # a thread without a turn has released it before it could see who waits
                    break
                rest()
                rested = True
            finally:
                if not self._withdraw(lock) and not rested and self._free:
                    self._tell_one()  # what this one was resumed for is left to another
        if taken:
            self._looks.did()
        elif not blocking:
            self._looks.saw(self, ready=False)
        return taken

    def _take(self) -> bool:
        try:
            self._free.pop()
        except IndexError:
            return False
        return True

    def _withdraw(self, lock: Released) -> bool:
        """``lock`` is not to be released any more; False: it has been, perhaps this very moment."""
        try:
            self._waiting.remove(lock)
        except ValueError:
            return False
        return True

    def _tell_one(self) -> None:
        try:
            waiting = self._waiting.popleft()
        except IndexError:
            return
        waiting.release()

    def _rest(self, timeout: float | None) -> tuple[Released, Callable[[], bool]]:
        crew, mine = _crews()
        if mine is not None:
            return _rest(self._threads, crew, mine.rank, timeout)
        lock = _thread.allocate_lock()
        lock.acquire()
        if timeout is None or not _is_alone():
            return lock, functools.partial(lock.acquire, True, -1 if timeout is None else timeout)

        def rest() -> bool:
            time.sleep(timeout)
            return lock.acquire(False)

        return lock, rest


class SimpleQueue(_PythonQueue):
    """A queue whose ``put`` waits for nothing, as that of Python's own: weak references' callbacks call it."""

    def __init__(self, threads: RankThreads, looks: Looks) -> None:
        super().__init__()
        self._count = _Count(threads, looks)
