"""A process of a command that is no rank and lives in its virtual time: a client, an HTTP server, an engine's scheduler.

It reads the simulation's time from memory that both share, and has the simulation's :class:`.Timekeeper` tell it when a limit
of a wait has passed. What it waits for besides it waits for as ever: while a process does something time stands still.

This module imports nothing but the standard library's, and is imported by processes that know nothing of the simulation.
"""

from __future__ import annotations

import _socket
import json
import mmap
import os
import socket
import struct
import sys
import threading
import time
import traceback
from _thread import allocate_lock, get_ident, start_new_thread
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

from kernbench.defaults import EPOCH

ADDRESS = "KERNBENCH_TIME"
"""The environment variable that says where time is kept: name of a socket, key, whether values are computed, and the file
that shows the time."""

COMPUTES, HOLLOW = "data", "hollow"
"""How it says whether they are."""

CALL = struct.Struct("=cQd")
"""What a companion says: what it wants, under which number, until which time (s)."""

TIMER, CANCEL, SPIN, TURN = b"t", b"c", b"s", b"g"
"""A limit; that one is not needed any more; a look at memory that another process may write; what was waited for has come."""

REPORT = b"r"
"""Begins, in JSON, what a companion has to say of an engine."""

TOLD = struct.Struct("=Q")
"""The number of what has come, as a companion receives it."""

WHERE = 0
"""In the place of a number: it is asked where its threads are."""

SHOWN = struct.Struct("=d")
"""How the time (s) is written where it is shown."""

PATIENCE, STEP = 1000, 1e-3
"""Looks at a clock that stands still, in a row, after which a thread is taken to poll; seconds between two looks then."""

STANDS_FOR = "_kernbench_stands_for"
"""Attribute of a companion's functions of ``time``: which one each is."""

BEYOND = 1e-9
"""Seconds after which a limit is noticed: programs ask the clock whether it has passed, which at the very moment it has not."""

_stock = {name: getattr(time, name) for name in (
    "sleep", "time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns",
)}  # fmt: skip


class _Looks(threading.local):
    count = 0
    at = -1.0
    failed = 0


class Companion:
    """This process, as the simulation's time is concerned.

    Args:
        where: value of :data:`ADDRESS`.

    Attributes:
        open: whether its time is the simulation's.
        computes: whether ranks compute values.
    """

    def __init__(self, where: str) -> None:
        self._name, self._key, computes, path = where.split(" ")
        self.computes = computes == COMPUTES
        with open(path, "rb") as file:
            self._shown = mmap.mmap(file.fileno(), SHOWN.size, access=mmap.ACCESS_READ)
        self._looks = _Looks()
        self.open = True
        self._begin()

    def _begin(self) -> None:
        self._lock = allocate_lock()
        self._numbers = count(1)
        self._waiting: dict[int, Callable[[], None]] = {}
        self._listens = False
        # none of the program's, whose waits are reported
        self._end = _socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._end.connect("\0" + self._name)
            self._end.send(self._key.encode())
        except OSError:  # the simulation has ended
            self.open = False

    def fork(self) -> None:
        """In a process that this one has forked: it is a companion of its own."""
        if self.open:
            self._end.close()
            self._begin()

    def leave(self) -> None:
        """From here on it is none: it becomes a rank, or the simulation has ended. Idempotent."""
        self.open = False
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()

    # -- time --------------------------------------------------------------------------------------------------------

    def now(self) -> float:
        """Virtual time, s."""
        return float(SHOWN.unpack_from(self._shown)[0])

    def look(self) -> float:
        """The same for a program that asks: one that does nothing else lets time pass."""
        looks, now = self._looks, self.now()
        looks.count = looks.count + 1 if now == looks.at else 0
        looks.at = now
        if looks.count > PATIENCE:
            self.sleep(STEP)
            now = self.now()
        return now

    def timer(self, seconds: float, call: Callable[[], None]) -> int:
        """Have ``call()`` called, by another thread, when so much time has passed: a number by which it is cancelled."""
        return self._ask(TIMER, self.now() + seconds + BEYOND, call)

    def cancel(self, number: int) -> None:
        """It is not needed any more. Idempotent."""
        if self._waiting.pop(number, None) is not None:
            self._say(CANCEL, number, 0.0)

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self._wait(TIMER, self.now() + seconds)

    def spin(self) -> None:
        """The program looks again and again at what another process may change: return when one may have."""
        self._wait(SPIN, 0.0)

    def go_on(self) -> None:
        """What this thread has waited for has come: return when the others have done what they can at this time.

        So it finds all that they have sent by then, and of the command's threads one goes on at a time, however quick each is.
        """
        if self.open:
            threads = threading.enumerate()
            me = threading.current_thread()
            self._wait(TURN, float(threads.index(me) if me in threads else len(threads)))

    def found(self, anything: bool) -> None:
        """A look that does not wait has found something, or nothing: after a few in vain the others have their turns."""
        looks = self._looks
        looks.failed = 0 if anything else looks.failed + 1
        if looks.failed > 2:
            self.spin()

    def report(self, name: str, *args: object) -> None:
        """Tell the simulation something of an engine: ``"event"``, ``"step"`` (:mod:`.serving_requests`), or a ``"remark"``."""
        with suppress(OSError):
            self._end.send(REPORT + json.dumps([name, *args]).encode())

    def _wait(self, what: bytes, until: float) -> None:
        woken = allocate_lock()
        woken.acquire()
        number = self._ask(what, until, woken.release)
        try:
            woken.acquire()
        finally:
            self.cancel(number)

    def _ask(self, what: bytes, until: float, call: Callable[[], None]) -> int:
        with self._lock:
            number = next(self._numbers)
            if not self._listens and self.open:
                self._listens = True
                start_new_thread(self._listen, (self._end,))
            self._waiting[number] = call
        self._say(what, number, until)
        return number

    def _say(self, what: bytes, number: int, until: float) -> None:
        try:
            self._end.send(CALL.pack(what, number, until))
        except OSError:
            self._over()

    def _listen(self, end: _socket.socket) -> None:
        """A thread's body: call what was to be called."""
        while True:
            try:
                told = end.recv(TOLD.size)
            except OSError:
                told = b""
            if len(told) < TOLD.size:
                break
            number = TOLD.unpack(told)[0]
            if number == WHERE:
                _write_where()
            elif (call := self._waiting.pop(number, None)) is not None:
                call()
        if end is self._end:
            self._over()

    def _over(self) -> None:
        """Time is kept no more: it is the machine's, and limits have passed."""
        self.open = False
        while self._waiting:
            with suppress(KeyError):
                self._waiting.popitem()[1]()


def _write_where() -> None:
    """Write where the program's threads are."""
    from kernbench.scheduler.thread_frames import current_frames  # what a companion seldom needs it does not load

    lines = [f"process {os.getpid()} ({' '.join(sys.argv)[:80]}):\n"]
    me = get_ident()
    for number, frame in current_frames().items():
        if number != me:
            lines += traceback.format_stack(frame)[-4:]
    with suppress(Exception):
        sys.stderr.write("".join(lines))
        sys.stderr.flush()


def clocks(companion: Companion) -> dict[str, Callable[..., Any]]:
    """The functions of :mod:`time` that a companion has. Once it is none any more they are those that ``time`` has then."""

    def reads(name: str, offset: float, nanoseconds: bool) -> Callable[[], object]:
        def read() -> Any:
            if not companion.open:
                return _otherwise(name, read)()
            now = companion.look() + offset
            return round(now * 1e9) if nanoseconds else now

        read.__name__ = name
        return read

    def sleep(seconds: float) -> None:
        if not companion.open:
            _otherwise("sleep", sleep)(seconds)
        elif seconds < 0:
            raise ValueError("sleep length must be non-negative")
        elif seconds == 0:
            companion.spin()
        else:
            companion.sleep(seconds)

    made: dict[str, Callable[..., Any]] = {"sleep": sleep}
    for name, offset in (("time", EPOCH), ("monotonic", 0.0), ("perf_counter", 0.0)):
        made[name] = reads(name, offset, nanoseconds=False)
        made[f"{name}_ns"] = reads(f"{name}_ns", offset, nanoseconds=True)
    for name, function in made.items():
        setattr(function, STANDS_FOR, name)
    return made


def stock_clock(name: str) -> Callable[..., object]:
    """The machine's own function of :mod:`time`."""
    return _stock[name]


def _otherwise(name: str, mine: Callable[..., object]) -> Callable[..., Any]:
    present: Callable[..., Any] = getattr(time, name)
    return _stock[name] if present is mine else present
