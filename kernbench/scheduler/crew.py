"""The threads of one rank: its own, and those that its program has started.

To the scheduler each of them is what a rank is: it runs, waits, and is resumed when what it waits for has come, be that a
collective or another thread of the program. So whichever of them can go on does, in the scheduler's order, and none of them
needs another one to wait in a certain place (ADR 0163).

A daemon serves as long as the program runs (a monitor, a logger, a server): it runs freely beside the simulation, until it asks
something of it, and takes turns from then on.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from kernbench.scheduler.carrier import current_carrier, has_own_thread


class _SideThread(threading.local):
    crew: Crew | None = None
    member: Member | None = None
    outside = False
    goes_on = False


_local = _SideThread()

_forked: list[bool] = []
"""Whether this process was forked by one that had a rank's threads, which are not here: not empty then."""


class Crew:
    """The threads of a rank.

    Args:
        rank: its number.
        read: gives what the thread that runs has set for itself (its stream, say).
        write: sets it again.
        carrier: of the rank's own thread; None if it has a process.

    Attributes:
        threads: those that its program has started and that must end before it does (no daemons).
        closed: whether the rank has ended, or is being unwound: its other threads do not wait any more, and end.
    """

    def __init__(
        self, rank: int, read: Callable[[], object], write: Callable[[Any], None], carrier: Any = None
    ) -> None:
        self.rank = rank
        self.read = read
        self.write = write
        self.carrier = carrier
        self.threads: list[threading.Thread] = []
        self.closed = False


class TakesTurns(Protocol):
    """A side thread's way into the scheduler's order."""

    def enter(self) -> None:
        """In the thread: return when it is its turn. Raises SystemExit if its rank has ended."""

    def leave(self) -> None:
        """In the thread: it takes no turns any more."""


class Member:
    """What a side thread is to the rank that it works for, from ``begin`` to ``end``, which are called in the thread.

    Args:
        turns: makes the thread's turns, once it asks for one; of one that comes by itself they are made.
        joins: called in its first turn; gives what is called in its last one.
    """

    def __init__(self, crew: Crew, turns: Callable[[], TakesTurns], joins: Callable[[], Callable[[], None]]) -> None:
        self.crew = crew
        self._make = turns
        self._joins = joins
        self._turns: TakesTurns | None = None
        self._leave: Callable[[], None] | None = None

    def begin(self) -> None:
        """It works for the rank."""
        _local.member = self

    def act(self) -> None:
        """Take turns, from now on. Raises SystemExit if the rank has ended."""
        if self._turns is not None:
            return
        if self.crew.closed:
            raise SystemExit
        turns = self._make()
        turns.enter()
        self._turns, _local.crew = turns, self.crew
        self.crew.write(None)
        self._leave = self._joins()

    def end(self) -> None:
        """Its work is done."""
        if self._turns is not None:
            try:
                if self._leave is not None:
                    self._leave()
            finally:
                self._turns.leave()
        _local.member = _local.crew = None


def current_member() -> Member | None:
    """The member whose thread runs; None in other threads."""
    return _local.member


def current_thread_is_side() -> bool:
    """Whether a thread runs that a rank's program has started."""
    return _local.member is not None


def acts_for_a_rank() -> bool:
    """In any thread: whether it is a side thread of a rank; if so, it takes turns from now on."""
    if _local.member is None or _local.outside:
        return False
    _local.member.act()
    return True


@contextmanager
def going_on() -> Iterator[None]:
    """For the length of a block, the running thread keeps its turn, whatever it waits for."""
    before, _local.goes_on = _local.goes_on, True
    try:
        yield
    finally:
        _local.goes_on = before


@contextmanager
def being_outside() -> Iterator[None]:
    """For the length of a block, the running thread has no turn: it waits for the world, and asks nothing of the simulation."""
    _local.outside = True
    try:
        yield
    finally:
        _local.outside = False


def is_outside() -> bool:
    """Whether the running thread is in such a block."""
    return _local.outside


def found(crew: Crew | None) -> None:
    """In a rank's own thread: it has others beside it now; None: the rank has ended."""
    _local.crew = crew


def acting_crew() -> Crew | None:
    """The crew of the rank for which the running thread takes turns, if others may run while it waits. None if it is alone."""
    return None if _local.goes_on or _local.outside or _forked else _local.crew


def is_forked() -> bool:
    """Whether a rank's threads are in the process that has forked this one."""
    return bool(_forked)


def is_in_rank() -> bool:
    """Whether a rank runs here that has a thread, or the process, to itself, and not a process that it has forked."""
    return has_own_thread() and not is_forked()


def _forget() -> None:
    if _local.crew is not None or current_carrier() is not None:
        _forked.append(True)


os.register_at_fork(after_in_child=_forget)
