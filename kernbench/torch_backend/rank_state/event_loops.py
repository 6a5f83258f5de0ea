"""Where an event loop waits: for a limit, a call of another thread, or files of the world outside.

asyncio computes how long it may wait by the clock, which is a rank's virtual one. Where nothing but another thread of the
rank could wake the loop up, that much virtual time passes, and none of the machine's. Where it watches files (sockets,
processes) they are waited for as Python does; a limit that runs out there has passed in virtual time, too.
"""

from __future__ import annotations

import asyncio.selector_events
import functools
import multiprocessing.connection
import multiprocessing.pool
import multiprocessing.process
import select
import selectors
import time
import weakref
from collections.abc import Callable
from typing import Any

from kernbench.scheduler.carrier import current_carrier
from kernbench.scheduler.crew import acting_crew, acts_for_a_rank, current_member, is_in_rank
from kernbench.simulation.time.notices import Notice
from kernbench.simulation.time.rank_threads import RankThreads
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

_connections: Any = multiprocessing.connection
_Loop: Any = asyncio.selector_events.BaseSelectorEventLoop
_SELECTORS: tuple[Any, ...] = (selectors.DefaultSelector, selectors.PollSelector)
_WOKEN = "_read_from_self"

RELIES_ON = (
    Reliance("selectors.DefaultSelector.select", "an event loop waits there"),
    Reliance("multiprocessing.connection._WaitSelector", "a queue's get with a timeout waits there",
             holds=lambda selector: selector in _SELECTORS),
    Reliance("asyncio.selector_events.BaseSelectorEventLoop", "a loop watches a pipe, by which it is woken up", has=(_WOKEN,)),
    Reliance(
        "asyncio.selector_events.BaseSelectorEventLoop._write_to_self", "other threads wake a loop up by it",
        looked_up_by=("asyncio.base_events.BaseEventLoop.call_soon_threadsafe",),
    ),
    Reliance("multiprocessing.connection.wait", "it is a select, repeated", looked_up_by=(
        "multiprocessing.connection.Connection._poll",
    )),
    Reliance("multiprocessing.pool.wait", "the same", looked_up_by=("multiprocessing.pool.Pool._wait_for_updates",)),
    Reliance("multiprocessing.process._children", "processes that this one has started, and has not seen to have ended",
             holds=lambda children: isinstance(children, set)),
    Reliance("select.select", "of no files it is a sleep"),
    Reliance("asyncio.Handle", "it knows what it calls", holds=lambda handle: "_callback" in handle.__slots__),
)  # fmt: skip


_RAN_OUT = (
    "a rank's wait for a process or a file ran out of its limit (a queue's get with a timeout, say): how often such limits run "
    "out, and so its clock, depends on this machine"
)


def install(patches: Patches, threads: RankThreads, remark: Callable[[str], object]) -> None:
    """Replace where event loops wait, and where they are woken up. ``remark`` receives what depends on the machine."""
    waiting: weakref.WeakKeyDictionary[Any, Notice] = weakref.WeakKeyDictionary()
    for selector in _SELECTORS:
        patches.set(selector, "select", _selects(threads, waiting, selector.select, remark))
    patches.set(_Loop, "_write_to_self", _wakes(waiting, _Loop._write_to_self))
    patches.set(select, "select", _sleeps(select.select))
    wait = _waits(multiprocessing.connection.wait)
    for module in (multiprocessing.connection, multiprocessing.pool):
        patches.set(module, "wait", wait)


def _sleeps(stock: Callable[..., Any]) -> Callable[..., Any]:
    """``select.select``, which of no files at all is a sleep."""

    @functools.wraps(stock)
    def select(reads: object, writes: Any, others: Any, timeout: float | None = None, /) -> Any:
        if reads or writes or others or not timeout or timeout < 0 or not is_in_rank():
            return stock(reads, writes, others, timeout)
        time.sleep(timeout)
        return [], [], []

    return select


def _waits(stock: Callable[..., Any]) -> Callable[..., Any]:
    """``multiprocessing.connection.wait``, which looks at the clock for whether its limit has passed: it has.

    A thread that takes no turns, and main, would look at virtual time, which may stand still.
    """

    @functools.wraps(stock)
    def wait(object_list: Any, timeout: float | None = None) -> Any:
        with _connections._WaitSelector() as selector:
            for each in object_list:
                selector.register(each, selectors.EVENT_READ)
            return [key.fileobj for key, _ in selector.select(None if timeout is None else max(timeout, 0.0))]

    return wait


def _selects(
    threads: RankThreads, waiting: Any, stock: Callable[..., object], remark: Callable[[str], object]
) -> Callable[..., Any]:
    @functools.wraps(stock)
    def select(self: Any, timeout: float | None = None) -> Any:
        crew = acting_crew()
        if crew is None and current_member() is not None and _watches_itself(self) and acts_for_a_rank():
            crew = acting_crew()  # a loop that a daemon runs: what it waits for is the rank's
        takes_no_turns = not is_in_rank() or (crew is None and current_member() is not None)
        if takes_no_turns or (timeout is not None and timeout <= 0):
            return stock(self, timeout)
        by_threads = timeout is not None if crew is None else not threads.free.has(crew)
        if by_threads and _watches_itself(self):
            return stock(self, 0) or _in_virtual_time(self, timeout, alone=crew is None)
        if crew is None and current_carrier() is None:
            found = stock(self, timeout)
        else:
            found = threads.outside("events", functools.partial(stock, self, timeout), own=_watches_children(self))
        if not found and timeout is not None:
            remark(_RAN_OUT)
            time.sleep(timeout)
        return found

    def _in_virtual_time(selector: Any, seconds: float | None, *, alone: bool) -> Any:
        if alone and seconds is not None:
            time.sleep(seconds)
        else:
            notice = waiting[selector] = threads.notice("events")
            try:
                threads.wait(notice, seconds)
            finally:
                del waiting[selector]
        return stock(selector, 0)

    return select


def _wakes(waiting: Any, stock: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(stock)
    def write_to_self(loop: Any) -> None:
        stock(loop)
        notice = waiting.get(loop._selector)
        if notice is not None:
            notice.release()

    return write_to_self


def _watches_itself(selector: Any) -> bool:
    """Whether it watches nothing but the pipe by which other threads wake a loop up."""
    return all(_is_woken(key.data) for key in selector.get_map().values())


def _watches_children(selector: Any) -> bool:
    """Whether it watches nothing but the ends of processes that this one has started."""
    children: set[multiprocessing.process.BaseProcess] = vars(multiprocessing.process)["_children"]
    ends = {child.sentinel for child in list(children)}
    return all(key.fileobj in ends for key in selector.get_map().values())


def _is_woken(data: Any) -> bool:
    reader = data[0] if isinstance(data, tuple) and data else None
    return getattr(getattr(reader, "_callback", None), "__name__", "") == _WOKEN
