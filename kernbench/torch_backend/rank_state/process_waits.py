"""Where a rank, or main beside its ranks, waits for what processes share: the locks, semaphores, pipes and proxies of
:mod:`multiprocessing`, on which its queues, events, conditions and barriers stand. The others go on meanwhile.

What main has made it may have given to several ranks, so that one of them waits for another. What a rank has made it shares
with processes of its own, of which the simulation knows nothing: it waits for these as Python does, and no time passes. A lock
of a module that all ranks share (tqdm's, in a package that cannot be executed for each) may be with another rank all the same.

What is put into a queue is pickled at once. Python does it a little later, in a thread, which may find another rank's modules
and would have to wait for a turn to read a tensor.
"""

from __future__ import annotations

import functools
import gc
import multiprocessing
import multiprocessing.connection
import multiprocessing.managers
import multiprocessing.queues
import multiprocessing.reduction
import multiprocessing.synchronize
import multiprocessing.util
import os
import pickle
import select
import threading
from _thread import allocate_lock
from collections.abc import Callable
from time import perf_counter  # the machine's own clock
from typing import Any, Protocol

from kernbench.errors import DeadlockError, KernbenchError
from kernbench.scheduler.crew import acting_crew, current_member, is_in_rank, is_outside
from kernbench.scheduler.standstill import SILENCE, tell
from kernbench.simulation.simulation import Simulation
from kernbench.simulation.time.free_threads import LOOK, QUIET
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

_connections: Any = multiprocessing.connection
_Semaphore: Any = multiprocessing.synchronize.SemLock
_LOCKS: Any = (multiprocessing.synchronize.Lock, multiprocessing.synchronize.RLock)
_Event: Any = multiprocessing.synchronize.Event
_Connection: Any = _connections.Connection
_Queue: Any = multiprocessing.queues.Queue
_Proxy: Any = multiprocessing.managers.BaseProxy
_Pickler: Any = multiprocessing.reduction.ForkingPickler
_util: Any = multiprocessing.util
_rebuild: Any = _connections.rebuild_connection
_Selector: Any = _connections._WaitSelector
_METHODS = ("_poll", "_recv_bytes", "_recv", "_send")
_stock_poll, _stock_receive, _stock_recv, _stock_send = (getattr(_Connection, name) for name in _METHODS)

RELIES_ON = (
    Reliance("_thread.allocate_lock", "the interpreter's own lock, whatever `threading.Lock` is"),
    Reliance("multiprocessing.synchronize.SemLock", "a lock or semaphore is one, and has the methods of C as its own", has=(
        "_make_methods", "__enter__", "__exit__",
    )),
    Reliance("multiprocessing.synchronize.Event.is_set", "an event is a semaphore, `_flag`, that is never taken for long"),
    Reliance("multiprocessing.util._afterfork_registry", "all that are made by their own names are noted there"),
    Reliance("multiprocessing.connection.Connection", "pipes and queues are read and written there", has=(
        "__init__", "_poll", "_recv_bytes", "_recv", "_send",
    )),
    Reliance("multiprocessing.connection.rebuild_connection", "makes a connection of one that was sent"),
    Reliance("multiprocessing.connection._WaitSelector", "waits for any of several pipes and processes", has=("select",)),
    Reliance("multiprocessing.queues.Queue", "what is put is pickled by a thread of its own", has=(
        "put", "_on_queue_feeder_error", "_feed",
    )),
    Reliance("multiprocessing.managers.BaseProxy._callmethod", "a proxy asks its manager there"),
)  # fmt: skip

_WAITING = frozenset({
    "AsyncResult", "Barrier", "BoundedSemaphore", "Condition", "Event", "JoinableQueue", "Lock", "Pool", "Queue", "RLock",
    "Semaphore",
})  # fmt: skip
"""Types of a manager's objects whose methods wait."""

_ROOM = select.PIPE_BUF
"""Bytes that a pipe takes at once if it takes any."""

_OWNER = "kernbench_owner"
"""An attribute of what a rank has made, and not received: which spawn's."""

_HOLDER, _AWAITED = "kernbench_holder", "kernbench_awaited"
"""Attributes of a lock that a rank has made: the rank that has it, and how many others wait for that one."""


class _InQueue:
    """What was put into a queue, as bytes: to whatever pickles it, and unpickles it elsewhere, it is that."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __reduce__(self) -> tuple[Callable[[bytes], object], tuple[bytes]]:
        return pickle.loads, (self.data,)


class _SystemSemaphore(Protocol):
    """What a lock of multiprocessing's consists of."""

    acquire: Callable[..., bool]
    release: Callable[[], None]

    def _is_mine(self) -> bool: ...
    def _is_zero(self) -> bool: ...


class _SharedLock(Protocol):
    """A lock of multiprocessing's."""

    _semlock: _SystemSemaphore
    acquire: Callable[..., bool]
    release: Callable[[], None]


class ProcessWaits:
    """Of one spawn."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._threads = simulation.threads
        self._process = os.getpid()
        self._mark = object()

    def install(self, patches: Patches, *, alone: bool) -> None:
        """Replace where processes wait. ``alone``: this one is a rank's, which has got what others made before."""
        stock_methods = _Semaphore._make_methods

        def make_methods(lock: _SharedLock) -> None:
            stock_methods(lock)
            if self._is_ranks():
                lock.acquire = self._acquires(lock, self._wait_for_own)
                if isinstance(lock, _LOCKS):
                    lock.acquire = self._holds(lock, lock.acquire)
                    lock.release = self._lets_go(lock)
            else:
                lock.acquire = self._acquires(lock, self._wait_for_shared)
                lock.release = self._releases(lock)

        patches.set(_Semaphore, "_make_methods", make_methods)
        patches.set(_Semaphore, "__enter__", _enter)
        patches.set(_Semaphore, "__exit__", _exit)
        for lock in _semaphores(alone):
            patches.set(lock, "acquire", self._acquires(lock, self._wait_for_shared))
            patches.set(lock, "release", self._releases(lock))
        stock_init = _Connection.__init__

        @functools.wraps(stock_init)
        def init(connection: object, *args: object, **kwargs: object) -> None:
            stock_init(connection, *args, **kwargs)
            if self._is_ranks():
                setattr(connection, _OWNER, self._mark)

        @functools.wraps(_rebuild)
        def rebuild(*args: object, **kwargs: object) -> object:
            received = _rebuild(*args, **kwargs)
            vars(received).pop(_OWNER, None)
            return received

        patches.set(_Connection, "__init__", init)
        patches.set(_connections, "rebuild_connection", rebuild)
        for name, made in (("_poll", self._polls), ("_recv_bytes", self._receives)):  # what else replaces them stays
            patches.set(_Connection, name, made(getattr(_Connection, name)))
        patches.set(_Connection, "_recv", self._reads())
        patches.set(_Connection, "_send", self._writes())
        patches.set(_connections, "_WaitSelector", self._selecting())
        patches.set(_Proxy, "_callmethod", self._calls(_Proxy._callmethod))
        patches.set(_Queue, "put", self._puts(_Queue.put))
        patches.set(_Event, "is_set", lambda event: self._is_set(event))

    def _is_ranks(self) -> bool:
        """Whether what is made now is a rank's own."""
        return is_in_rank() or os.getpid() != self._process

    def be_alone(self) -> None:
        """This process is a rank's from here on."""
        self._process = os.getpid()

    def _waits(self) -> bool:
        """Whether others go on while the running thread waits: it is a rank's with a turn, or main beside its ranks."""
        if os.getpid() != self._process:  # one that a rank, or main, has forked
            return False
        if is_in_rank():
            return not is_outside() and (acting_crew() is not None or current_member() is None)
        return self._simulation.world.is_beside

    def _rank(self) -> int | None:
        """The rank whose thread runs and has its turn."""
        return self._simulation.hosts.current().rank if is_in_rank() and self._waits() else None

    def _meet(self, awaits: str, ready: Callable[[], bool], seconds: float | None = None) -> bool:
        """See :meth:`.RankThreads.meet`. In main, what nothing can bring any more is a deadlock."""
        came = self._threads.meet(awaits, ready, seconds)
        if came or is_in_rank() or self._simulation.scheduler.live_count:
            return came
        return _await_what_is_left(awaits, ready, seconds)

    def _acquires(self, lock: _SharedLock, wait: Callable[[_SharedLock, float | None], bool]) -> Callable[..., bool]:
        semaphore = lock._semlock

        @functools.wraps(semaphore.acquire)
        def acquire(block: bool = True, timeout: float | None = None) -> bool:
            taken = bool(semaphore.acquire(False)) or (block and wait(lock, timeout))
            if not (taken or block):
                self._saw_nothing(lock)
            return taken

        return acquire

    def _holds(self, lock: _SharedLock, acquire: Callable[..., bool]) -> Callable[..., bool]:
        """Of a rank's own lock: who has it is noted."""

        @functools.wraps(acquire)
        def hold(block: bool = True, timeout: float | None = None) -> bool:
            taken = acquire(block, timeout)
            if taken:
                setattr(lock, _HOLDER, self._rank())
            return taken

        return hold

    def _lets_go(self, lock: _SharedLock) -> Callable[[], None]:
        semaphore = lock._semlock

        def release() -> None:
            if vars(lock).get(_AWAITED):
                self._catch_up()
            semaphore.release()
            if not semaphore._is_mine():  # an RLock may be, still
                setattr(lock, _HOLDER, None)

        return release

    def _is_set(self, event: Any) -> bool:
        """Whether an event is set: without its lock, which one that sets it would want during a look."""
        found = not event._flag._semlock._is_zero()
        if not found:
            self._saw_nothing(event)
        return found

    def _saw_nothing(self, what: object) -> None:
        """A rank that does not wait has found nothing. Another process may bring it, so that it is no deadlock."""
        if is_in_rank() and self._waits():
            self._simulation.looks.saw(id(what), ready=True)

    def _wait_for_shared(self, lock: _SharedLock, timeout: float | None) -> bool:
        semaphore, threads = lock._semlock, self._threads
        if not self._waits():
            return bool(semaphore.acquire(True, timeout))
        begin, left = threads.time(), timeout
        while self._meet(_what(lock), lambda: not semaphore._is_zero(), left):
            if semaphore.acquire(False):
                return True
            left = None if timeout is None else max(timeout - (threads.time() - begin), 0.0)
        return False

    def _wait_for_own(self, lock: _SharedLock, timeout: float | None) -> bool:
        """Of a rank's own: the others wait, but for threads of the same rank, and for the rank that has it."""
        rank, holder = self._rank(), vars(lock).get(_HOLDER)
        if rank is not None and holder is not None and holder != rank:
            setattr(lock, _AWAITED, vars(lock).get(_AWAITED, 0) + 1)
            try:
                return self._wait_for_shared(lock, timeout)
            finally:
                setattr(lock, _AWAITED, vars(lock)[_AWAITED] - 1)
        acquire = functools.partial(lock._semlock.acquire, True, timeout)
        return bool(acquire() if acting_crew() is None else self._threads.outside(_what(lock), acquire, own=True))

    def _releases(self, lock: _SharedLock) -> Callable[[], None]:
        release = lock._semlock.release

        @functools.wraps(release)
        def in_time() -> None:
            self._catch_up()
            release()

        return in_time

    def _catch_up(self) -> None:
        """What others get of a rank they get no earlier than at its own time."""
        if is_in_rank() and self._waits():
            self._simulation.waits.sleep(0.0)

    def _meets(self, connection: object) -> bool:
        return (
            isinstance(connection, _Connection)
            and getattr(connection, _OWNER, None) is not self._mark
            and self._waits()
        )

    def _selecting(self) -> type:
        """What pipes and processes are waited for with."""
        waits = self

        class Selector(_Selector):
            def select(self, timeout: float | None = None) -> list[Any]:
                there: list[Any] = super().select(0)
                if there or timeout == 0 or not any(waits._meets(key.fileobj) for key in self.get_map().values()):
                    return there or super().select(timeout)
                select = super().select
                return select(0) if waits._meet("a message", lambda: bool(select(0)), timeout) else []

        return Selector

    def _polls(self, stock: Callable[..., bool]) -> Callable[..., bool]:
        @functools.wraps(stock)
        def poll(connection: object, timeout: float | None) -> bool:
            meets = self._meets(connection)
            there = bool((_stock_poll if meets else stock)(connection, timeout))
            if meets and not there and timeout == 0:
                self._saw_nothing(connection)
            return there

        return poll

    def _receives(self, stock: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(stock)
        def receive(connection: object, *args: object) -> object:
            return (_stock_receive if self._meets(connection) else stock)(connection, *args)

        return receive

    def _reads(self) -> Callable[..., Any]:
        @functools.wraps(_stock_recv)
        def recv(connection: Any, size: int, read: Callable[[int, int], bytes] = os.read) -> Any:
            def read_there(handle: int, count: int) -> bytes:
                there = _ready(connection, select.POLLIN)
                if not there():
                    self._meet("a message", there)
                return read(handle, count)

            return _stock_recv(connection, size, read_there if self._meets(connection) else read)

        return recv

    def _writes(self) -> Callable[..., None]:
        @functools.wraps(_stock_send)
        def send(connection: object, buf: Any, write: Callable[[int, Any], int] = os.write) -> None:
            def write_some(handle: int, rest: Any) -> int:
                room = _ready(connection, select.POLLOUT)
                if not room():
                    self._meet("room in a pipe", room)
                return write(handle, rest[:_ROOM])

            if not self._meets(connection):
                return _stock_send(connection, buf, write)
            self._catch_up()
            return _stock_send(connection, buf, write_some)

        return send

    def _calls(self, stock: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(stock)
        def callmethod(proxy: Any, *args: object, **kwargs: object) -> object:
            if is_in_rank() and self._waits() and proxy._token.typeid in _WAITING:
                return self._threads.outside("a manager's answer", functools.partial(stock, proxy, *args, **kwargs))
            return stock(proxy, *args, **kwargs)

        return callmethod

    def _puts(self, stock: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(stock)
        def put(queue: Any, obj: object, *args: object, **kwargs: object) -> None:
            if self._waits():
                try:
                    obj = _InQueue(bytes(_Pickler.dumps(obj)))
                except KernbenchError:  # what is not modelled
                    raise
                except Exception as error:
                    queue._on_queue_feeder_error(error, obj)  # as the thread does: nothing is put
                    return
            stock(queue, obj, *args, **kwargs)

        return put


def _enter(lock: _SharedLock) -> bool:
    return bool(lock.acquire())


def _exit(lock: _SharedLock, *_: object) -> None:
    lock.release()


def _semaphores(alone: bool) -> list[Any]:
    """Those that there are. One that was received, rather than made, is found among all objects."""
    known = [each for each in list(_util._afterfork_registry.values()) if isinstance(each, _Semaphore)]
    if alone:
        kinds = {_Semaphore, *_Semaphore.__subclasses__(), *multiprocessing.synchronize.Semaphore.__subclasses__()}
        known += [each for each in gc.get_objects() if type(each) in kinds]
    return list({id(each): each for each in known}.values())


def _await_what_is_left(awaits: str, ready: Callable[[], bool], seconds: float | None) -> bool:
    """In main, whose ranks have ended: what they have put may be on its way, and other threads and processes may bring more,
    within ``seconds`` of the machine's time."""
    pause, begin, quiet = allocate_lock(), perf_counter(), 0
    pause.acquire()
    silence = SILENCE
    while not ready():
        others: list[Any] = [*multiprocessing.active_children(), *filter(_may_bring, threading.enumerate())]
        waited = perf_counter() - begin
        quiet = 0 if others else quiet + 1
        if quiet > QUIET and seconds is None:
            raise DeadlockError(
                f"main waits for {awaits}, and all ranks have ended: nothing is left that could bring it."
            )
        if quiet > QUIET or (seconds is not None and waited > seconds):
            return False
        if waited > silence:
            silence *= 2
            names = ", ".join(sorted(other.name for other in others))
            tell(
                f"main has waited for {awaits} for {waited:.0f} s, and all ranks have ended: only {names} could bring it."
            )
        pause.acquire(timeout=LOOK)
    return True


def _may_bring(thread: threading.Thread) -> bool:
    """Whether it does something else than to write what was put into a queue."""
    return thread is not threading.main_thread() and getattr(thread, "_target", None) is not _Queue._feed


def _what(lock: _SharedLock) -> str:
    return f"a {type(lock).__name__} of multiprocessing"


def _ready(connection: Any, what: int) -> Callable[[], bool]:
    """Whether it can be read, or ``_ROOM`` bytes be written, without a wait; or is closed, and fails."""
    poll = select.poll()
    poll.register(connection, what)

    def ready() -> bool:
        try:
            return bool(poll.poll(0))
        except OSError:
            return True

    return ready
