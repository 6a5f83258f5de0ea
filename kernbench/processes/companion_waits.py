"""Where a :class:`.Companion` waits: limits of its waits are virtual, and loops that look at memory or sockets give way.

Clocks and sleeps; conditions, and what stands on them (events, queues, futures); selectors, and what stands on them (asyncio,
``multiprocessing``, ``subprocess``); ZeroMQ's pollers; ``sched_yield``. uvloop's loops, which wait in C, are asyncio's.
"""

from __future__ import annotations

import asyncio
import functools
import os
import queue
import select
import selectors
import socket
import subprocess
import sys
import threading
import time
from _thread import allocate_lock
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import connection
from typing import Any, TypeVar

from kernbench.processes.companion import ADDRESS, STANDS_FOR, Companion, clocks, stock_clock

Found = TypeVar("Found")

_here: list[tuple[Companion, list[tuple[Any, str, Any]]]] = []
"""This process as a companion, and what was replaced: owner, name and what was there."""

_KEPT = ((threading, "_time", "monotonic"), (queue, "time", "monotonic"), (subprocess, "_time", "monotonic"))
"""Modules of Python's that keep a function of ``time`` under another name."""

_SELECTORS: tuple[Any, ...] = (selectors.EpollSelector, selectors.PollSelector)
_READING: tuple[tuple[Any, str], ...] = (
    (connection.Connection, "_recv_bytes"), (socket.socket, "accept"), (socket.socket, "recv"), (socket.socket, "recv_into"),
)  # fmt: skip
_NO_WAIT = 1
_INHERITED = object()


def begin(module: object = None) -> None:
    """The process has imported ``module``, by which it talks to others: it is a companion, unless it is a rank, or was one."""
    if not _here and os.environ.get(ADDRESS):
        companion = Companion(os.environ[ADDRESS])
        replaced: list[tuple[Any, str, Any]] = []
        _here.append((companion, replaced))
        if companion.open:
            os.register_at_fork(after_in_child=companion.fork)
            _install(companion, replaced)
    elif _here and _here[0][0].open and module is not None:
        _install_module(_here[0][0], _here[0][1], module)


def current() -> Companion | None:
    """This process as a companion; None if it is none."""
    return _here[0][0] if _here and _here[0][0].open else None


def end() -> None:
    """The process becomes a rank: it is no companion any more, and none later. Idempotent."""
    if not _here:
        _here.append((_None(), []))
    companion, replaced = _here[0]
    companion.leave()
    for module in [each for name, each in sys.modules.items() if name.partition(".")[0] == "kernbench"]:
        for name, value in [*vars(module).items()]:
            if isinstance(function_name := getattr(value, STANDS_FOR, None), str):
                setattr(module, name, stock_clock(function_name))
    while replaced:
        owner, name, stock = replaced.pop()
        if stock is _INHERITED:
            delattr(owner, name)
        else:
            setattr(owner, name, stock)


class _None(Companion):
    """In the place of a companion in a process that is none."""

    def __init__(self) -> None:
        self.open = False

    def leave(self) -> None:
        """It has not come."""


def _install(companion: Companion, replaced: list[tuple[Any, str, Any]]) -> None:
    functions = clocks(companion)
    before = {name: getattr(time, name) for name in functions}
    for name, function in functions.items():
        _replace(replaced, time, name, function)
    for owner, name, function_name in _KEPT:
        _replace(replaced, owner, name, functions[function_name])
    for module in [each for name, each in sys.modules.items() if name.partition(".")[0] not in sys.stdlib_module_names]:
        kept = [] if module is None else [*vars(module).items()]
        for name, value in kept:
            if callable(value) and (function_name := _name_of(value, before)):
                _replace(replaced, module, name, functions[function_name])
    _replace(replaced, threading.Condition, "wait", _condition_wait(companion, threading.Condition.wait))
    for selector in _SELECTORS:
        _replace(replaced, selector, "select", _select(companion, selector.select))
    for owner, name in _READING:
        _replace(replaced, owner, name, _reading(companion, getattr(owner, name)))
    _replace(replaced, os, "sched_yield", _giving_way(companion, os.sched_yield))
    for name in ("uvloop", "zmq"):
        if (found := sys.modules.get(name)) is not None:
            _install_module(companion, replaced, found)


def _name_of(value: object, before: dict[str, Any]) -> str:
    return next((name for name, stock in before.items() if value is stock), "")


def _replace(replaced: list[tuple[Any, str, Any]], owner: object, name: str, value: object) -> None:
    replaced.append((owner, name, vars(owner).get(name, _INHERITED)))
    setattr(owner, name, value)


def _install_module(companion: Companion, replaced: list[tuple[Any, str, Any]], module: Any) -> None:
    if module.__name__ == "uvloop":
        for name, value in _ASYNCIO.items():
            if hasattr(module, name):
                _replace(replaced, module, name, value)
    elif module.__name__ == "zmq":
        sugar: Any = sys.modules.get("zmq.sugar", module)
        poller, socket = sugar.poll.Poller, sugar.socket.Socket
        _replace(replaced, poller, "poll", _zmq_poll(companion, poller, poller.poll))
        _replace(replaced, socket, "recv", _zmq_recv(companion, module, socket.recv))


def _run(main: Any, *, loop_factory: object = None, debug: bool | None = None, **_: object) -> Any:
    """``uvloop.run``."""
    return asyncio.run(main, debug=debug)


_ASYNCIO: dict[str, Any] = {
    "run": _run, "install": lambda: None, "new_event_loop": asyncio.SelectorEventLoop, "Loop": asyncio.SelectorEventLoop,
    "EventLoopPolicy": asyncio.DefaultEventLoopPolicy,
}  # fmt: skip
"""What stands for names of uvloop's."""


class _Waiter:
    """What a thread waits for in a condition: that it is notified, or the end of its patience."""

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._lock.acquire()
        self.acquire = self._lock.acquire
        self.expired = False

    def release(self) -> None:
        """Wake it up. Idempotent."""
        with suppress(RuntimeError):
            self._lock.release()

    def expire(self) -> None:
        """Its patience is at its end."""
        self.expired = True
        self.release()


def _condition_wait(companion: Companion, stock: Callable[..., bool]) -> Callable[..., bool]:
    @functools.wraps(stock)
    def wait(self: Any, timeout: float | None = None) -> bool:
        if (timeout is not None and timeout <= 0) or not companion.open:
            return stock(self, timeout)
        if not self._is_owned():
            raise RuntimeError("cannot wait on un-acquired lock")
        waiter = _Waiter()
        self._waiters.append(waiter)
        saved = self._release_save()
        number = None if timeout is None else companion.timer(timeout, waiter.expire)
        try:
            waiter.acquire()
            companion.go_on()
        finally:
            if number is not None:
                companion.cancel(number)
            self._acquire_restore(saved)
            told = waiter not in self._waiters
            if not told:
                self._waiters.remove(waiter)
        return told

    return wait


class _Alarm:
    """A file that becomes readable when time has passed.

    Attributes:
        rang: whether it has.
    """

    def __init__(self, companion: Companion, seconds: float) -> None:
        self.file = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.rang = False
        self._companion = companion
        self._lock = allocate_lock()
        self._number = companion.timer(seconds, self._ring)

    def _ring(self) -> None:
        with self._lock:
            self.rang = True
            if self.file >= 0:
                os.eventfd_write(self.file, 1)

    def close(self) -> None:
        """It is not needed any more."""
        self._companion.cancel(self._number)
        with self._lock:
            os.close(self.file)
            self.file = -1


def _found(
    companion: Companion, limit: float | None, look: Callable[[], Found], block: Callable[[_Alarm | None], object]
) -> Found:
    """What ``look()`` finds, as soon as it finds something, or when ``limit`` seconds have passed.

    ``block`` returns when it may have, or when the alarm's file is readable, if it is given one. Another thread may be quicker.
    """
    found = look()
    if found or limit == 0:
        return found
    alarm = None if limit is None else _Alarm(companion, limit)
    try:
        while not found and not (alarm is not None and alarm.rang):
            block(alarm)
            companion.go_on()
            found = look()
        return found
    finally:
        if alarm is not None:
            alarm.close()


def _select(companion: Companion, stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def select(self: Any, timeout: float | None = None) -> Any:
        if (timeout is not None and timeout <= 0) or not companion.open:
            return stock(self, timeout)

        def block(alarm: _Alarm | None) -> None:
            if alarm is None:
                stock(self, None)
                return
            waits = self._selector  # of files that were not registered with the selector itself it tells nothing
            waits.register(alarm.file, selectors.EVENT_READ)
            try:
                stock(self, None)
            finally:
                waits.unregister(alarm.file)

        return _found(companion, timeout, lambda: stock(self, 0), block)

    return select


def _reading(companion: Companion, stock: Callable[..., Any]) -> Callable[..., Any]:
    """A method that reads what another process writes, of a connection or a socket, and waits until something is there."""

    @functools.wraps(stock)
    def read(self: Any, *args: object, **kwargs: object) -> Any:
        limit = self.gettimeout() if isinstance(self, socket.socket) else None
        file = self.fileno()
        if companion.open and limit != 0 and file >= 0:  # of one that is closed, reading it says so
            waiting = select.poll()
            waiting.register(file, select.POLLIN)

            def block(alarm: _Alarm | None) -> None:
                with_it = select.poll()
                for each in (file,) if alarm is None else (file, alarm.file):
                    with_it.register(each, select.POLLIN)
                with_it.poll()

            if not _found(companion, limit, lambda: waiting.poll(0), block):
                raise TimeoutError("timed out")
        return stock(self, *args, **kwargs)

    return read


def _giving_way(companion: Companion, stock: Callable[[], None]) -> Callable[[], None]:
    @functools.wraps(stock)
    def sched_yield() -> None:
        if companion.open:
            companion.spin()
        else:
            stock()

    return sched_yield


def _zmq_poll(companion: Companion, poller: Any, stock: Callable[..., object]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def poll(self: Any, timeout: float | None = None) -> Any:
        if not companion.open:
            return stock(self, timeout)
        if timeout == 0:
            found = stock(self, 0)
            companion.found(bool(found))
            return found

        def block(alarm: _Alarm | None) -> None:
            with_it = poller()
            for each, events in self.sockets:
                with_it.register(each, events)
            if alarm is not None:
                with_it.register(alarm.file, _NO_WAIT)
            stock(with_it, None)

        limit = None if timeout is None or timeout < 0 else timeout / 1e3
        return _found(companion, limit, lambda: stock(self, 0), block)

    return poll


def _zmq_recv(companion: Companion, zmq: Any, stock: Callable[..., object]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def recv(self: Any, flags: int = 0, *args: object, **kwargs: object) -> Any:
        if not companion.open:
            return stock(self, flags, *args, **kwargs)
        only_looks = bool(flags & _NO_WAIT)
        try:
            came = stock(self, flags | _NO_WAIT, *args, **kwargs)
        except zmq.Again:
            if only_looks:
                companion.found(False)
                raise
            came = stock(self, flags, *args, **kwargs)
            companion.go_on()
        if only_looks:
            companion.found(True)
        return came

    return recv
