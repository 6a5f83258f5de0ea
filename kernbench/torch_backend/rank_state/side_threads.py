"""Threads that a rank's program starts, and calls that it gives to pools of threads: they take turns with the rank's own.

Who acts when is :mod:`kernbench.scheduler.crew`'s business. Here are the places where a thread waits for another one
(``Condition.wait``, on which events, queues, futures and semaphores stand, ``Thread.join``) or for the world outside (an event
loop's ``select``, and that of a queue or pipe of :mod:`multiprocessing`, or the reading of one), where it begins and ends, and
what it needs of torch: the rank's process groups, in Python and in C++, and a recorder. Locks are not among those places: a
thread that acts for its rank must not wait for a lock that another one holds meanwhile.

A pool may be used by several ranks: a call is the business of the rank that made it, whoever has started the thread.
"""

from __future__ import annotations

import functools
import multiprocessing.connection
import selectors
import threading
import weakref
from collections.abc import Callable
from concurrent import futures
from contextlib import AbstractContextManager
from typing import Any

import torch.distributed.distributed_c10d

from kernbench.scheduler.carrier import current_carrier
from kernbench.scheduler.crew import LOOK_AGAIN, Crew, Member, acting_crew, current_member, going_on
from kernbench.sim_engine.operation import COMPUTE_STREAM
from kernbench.simulation.simulation import Simulation
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

c10d: Any = torch.distributed.distributed_c10d
_registry: Any = torch._C._distributed_c10d
_Condition: Any = threading.Condition
_Thread: Any = threading.Thread
_stock_wait, _stock_init, _stock_start, _stock_join = _Condition.wait, _Thread.__init__, _Thread.start, _Thread.join
_Connection: Any = multiprocessing.connection.Connection
_SELECTORS: tuple[Any, ...] = (selectors.DefaultSelector, selectors.PollSelector)

RELIES_ON = (
    Reliance("threading.Condition", "a wait is composed of these", has=("_release_save", "_acquire_restore", "_is_owned"),
             holds=lambda condition: hasattr(condition(), "_waiters")),
    Reliance("threading.Thread", "its body is an attribute, `run`", has=("__init__", "start", "join", "run")),
    Reliance("concurrent.futures.thread._worker", "it is what the threads of a pool do"),
    Reliance("selectors.DefaultSelector.select", "an event loop waits there"),
    Reliance("multiprocessing.connection._WaitSelector", "a queue's get with a timeout waits there",
             holds=lambda selector: selector in _SELECTORS),
    Reliance("multiprocessing.connection.Connection", "a queue's get, and a pipe's recv, wait there", has=("_recv_bytes",)),
    Reliance("torch.distributed.distributed_c10d._world", "groups by name are noted there"),
    Reliance("torch._C._distributed_c10d", "C++ finds a group by its name, each thread its own", has=(
        "_register_process_group", "_unregister_process_group",
    )),
)  # fmt: skip


class SideThreads:
    """The threads of the ranks of one spawn.

    Args:
        recorder: a block in which what the thread computes for a rank is recorded.
    """

    def __init__(self, simulation: Simulation, recorder: Callable[[int], AbstractContextManager[None]]) -> None:
        self._simulation = simulation
        self._recorder = recorder
        self._promised: dict[int, weakref.WeakSet[Any]] = {}

    def install(self, patches: Patches) -> None:
        """Replace where threads begin and wait."""
        patches.set(threading.Thread, "__init__", _init)
        patches.set(threading.Thread, "start", self._starts())
        patches.set(threading.Thread, "join", _join)
        patches.set(threading.Condition, "wait", _wait)
        patches.set(futures.ThreadPoolExecutor, "submit", self._submits(futures.ThreadPoolExecutor.submit))
        for selector in _SELECTORS:
            patches.set(selector, "select", _waits(selector.select, over=_at_once))
        patches.set(_Connection, "_recv_bytes", _waits(_Connection._recv_bytes, over=lambda *_: False))

    def finish(self, rank: int) -> None:
        """At the end of a rank's program, as Python does at its end: wait for threads that are no daemons, and for what pools
        have been asked for."""
        crew = acting_crew()
        if crew is None:
            return
        futures.wait(list(self._promised.pop(rank, ())))
        while crew.threads:
            crew.threads.pop().join()

    def close(self, rank: int) -> None:
        """A rank has ended: its threads cannot act for it any more."""
        self._promised.pop(rank, None)
        carrier = current_carrier()
        if carrier is not None and carrier.crew is not None:
            carrier.crew.closed = True

    # -- beginning ---------------------------------------------------------------------------------------------------

    def _starts(self) -> Callable[[threading.Thread], None]:
        @functools.wraps(_stock_start)
        def start(thread: threading.Thread) -> None:
            crew = self._crew()
            if crew is None or getattr(thread, "_target", None) is futures.thread._worker:  # calls say whose they are
                with going_on():
                    _stock_start(thread)
                return
            world = dict(vars(c10d._world))
            body = _in_turn(crew, thread.run, world, at_once=not thread.daemon)
            thread.run = _quietly(crew, body)  # type: ignore[method-assign]
            if not thread.daemon:
                crew.threads = [each for each in crew.threads if each.is_alive()] + [thread]
            with going_on():  # it waits for the thread to be there, and who starts one may hold a lock (pools do)
                _stock_start(thread)

        return start

    def _crew(self) -> Crew | None:
        """The crew to which a thread that is started now belongs."""
        member = current_member()
        if member is not None:
            return member.crew
        carrier = current_carrier()
        if carrier is None:
            return None
        if carrier.crew is None:
            rank = carrier.index
            host = self._simulation.hosts.of_rank[rank]

            def set_own(own: tuple[str, int] | None) -> None:
                host.stream, host.sip = own or (COMPUTE_STREAM, host.sip)

            carrier.crew = Crew(
                carrier, rank, self._simulation.scheduler.rank_by_greenlet,
                join=functools.partial(self._join_torch, rank), own=(lambda: (host.stream, host.sip), set_own),
            )  # fmt: skip
        crew: Crew = carrier.crew
        return crew

    def _join_torch(self, rank: int) -> Callable[[], None]:
        """Give the thread the rank's groups and a recorder; what takes them away again."""
        names = list(c10d._world.pg_names.items())
        for group, name in names:
            _registry._register_process_group(name, group)
        recorder = self._recorder(rank)
        recorder.__enter__()

        def leave() -> None:
            recorder.__exit__(None, None, None)
            for _, name in names:
                _registry._unregister_process_group(name)

        return leave

    def _submits(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(stock)
        def submit(pool: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
            crew = self._crew()
            if crew is None:
                return stock(pool, fn, *args, **kwargs)
            promised = stock(pool, _in_turn(crew, fn, dict(vars(c10d._world))), *args, **kwargs)
            self._promised.setdefault(crew.carrier.index, weakref.WeakSet()).add(promised)
            return promised

        return submit


@functools.wraps(_stock_init)
def _init(thread: threading.Thread, *args: Any, **kwargs: Any) -> None:
    """A thread is a daemon if the one that makes it is. A rank's own thread is none to its program, whose main thread it is."""
    _stock_init(thread, *args, **kwargs)
    if kwargs.get("daemon") is None and current_carrier() is not None and current_member() is None:
        thread.daemon = False


def _in_turn(crew: Crew, body: Callable[..., Any], world: dict[str, Any], at_once: bool = True) -> Callable[..., Any]:
    """``body`` by a side thread of a rank, which takes turns at once, or when it first asks something of the simulation."""

    @functools.wraps(body)
    def run(*args: Any, **kwargs: Any) -> Any:
        member = Member(crew)
        vars(c10d._world).update(world)  # what its rank knows of torch.distributed
        member.begin()
        try:
            if at_once:
                member.act()
            return body(*args, **kwargs)
        finally:
            member.end()

    return run


def _quietly(crew: Crew, body: Callable[[], None]) -> Callable[[], None]:
    """A thread's ``body``, that ends without a word if its rank is being unwound."""

    def run() -> None:
        try:
            body()
        except SystemExit:
            if not crew.closed:
                raise

    return run


# -- waiting -------------------------------------------------------------------------------------------------------------


@functools.wraps(_stock_wait)
def _wait(condition: Any, timeout: float | None = None) -> bool:
    crew = acting_crew()
    if crew is None:
        return bool(_stock_wait(condition, timeout))
    if not condition._is_owned():
        raise RuntimeError("cannot wait on un-acquired lock")
    waiter = threading.Lock()
    waiter.acquire()
    condition._waiters.append(waiter)
    saved = condition._release_save()
    told = False
    try:
        with crew.waiting():
            told = _acquired(crew, waiter, timeout)
        return told
    finally:
        condition._acquire_restore(saved)
        if not told and waiter in condition._waiters:
            condition._waiters.remove(waiter)


def _acquired(crew: Crew, lock: Any, timeout: float | None) -> bool:
    """Wait for a lock that another thread releases. Raises SystemExit if the rank is unwound meanwhile."""
    if timeout is not None:
        return bool(lock.acquire(timeout=max(timeout, 0)))
    while not lock.acquire(timeout=LOOK_AGAIN):
        if crew.closed:
            raise SystemExit
    return True


@functools.wraps(_stock_join)
def _join(thread: threading.Thread, timeout: float | None = None) -> None:
    crew = acting_crew()
    if crew is None or not thread.is_alive():
        _stock_join(thread, timeout)
        return
    with crew.waiting():
        _stock_join(thread, timeout)


def _at_once(timeout: float | None = None) -> bool:
    return timeout is not None and timeout <= 0


def _waits(stock: Callable[..., Any], over: Callable[..., bool]) -> Callable[..., Any]:
    """A method that waits for what is outside of the program's threads, unless it is ``over`` at once."""

    @functools.wraps(stock)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        crew = acting_crew()
        if crew is None or over(*args, **kwargs):
            return stock(self, *args, **kwargs)
        with crew.waiting():
            return stock(self, *args, **kwargs)

    return method
