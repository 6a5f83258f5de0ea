"""The threads of one rank: its own, and those that its program has started. One of them at a time acts for the rank.

A rank is one thing to the scheduler: it runs, waits, and is resumed. A thread that a program starts (a checkpoint's writer, a
prefetcher) takes turns with the rank's own: it runs when the thread that acts for the rank waits for another thread of the
program (a future, a queue, an event, a join), and acts in its place until it waits for a thread itself, or ends. So which
thread acts is decided by the program, not by the machine; what a side thread does happens when the program waits for it.

A daemon serves somebody for as long as the program runs (a monitor, a logger, a server): it runs freely beside the simulation,
until it asks something of it, and takes turns from then on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from greenlet import getcurrent

from kernbench.scheduler.carrier import Carrier, act_as, current_carrier

LOOK_AGAIN = 0.05
"""Seconds of the machine's time after which a thread that waits looks whether its rank is being unwound."""

Join = Callable[[], Callable[[], None]]
"""Called in a side thread that begins to act for a rank; gives what is called when it has ended, or has nothing to do."""

Own = tuple[Callable[[], Any], Callable[[Any], None]]
"""Gives what the thread that acts has set for itself (its stream, say); and sets it again (None: it is a new thread)."""


class _SideThread(threading.local):
    member: Member | None = None
    own: Any = None
    goes_on = False


_local = _SideThread()


class Crew:
    """The threads of the rank that ``carrier`` runs.

    Args:
        join: what a side thread needs that acts for the rank.
        own: what each thread of the rank has of its own.

    Attributes:
        threads: those that its program has started and that must end before it does (no daemons).
        closed: whether the rank has ended, or is being unwound: nobody acts for it any more.
    """

    def __init__(self, carrier: Carrier, rank: int, rank_by_greenlet: dict[Any, int], join: Join, own: Own) -> None:
        self.carrier = carrier
        self.threads: list[threading.Thread] = []
        self.closed = False
        self.join = join
        self._read, self._write = own
        self._rank = rank
        self._rank_by_greenlet = rank_by_greenlet
        self._acts = threading.Lock()
        self._acts.acquire()  # the carrier's own thread, which makes this

    def take(self) -> None:
        """Act for the rank, once nobody else does. Raises SystemExit if the rank has ended."""
        while not self._acts.acquire(timeout=LOOK_AGAIN):
            if self.closed and current_thread_is_side():
                raise SystemExit
        if self.closed and current_thread_is_side():
            self._acts.release()
            raise SystemExit
        act_as(self.carrier)
        self._rank_by_greenlet[getcurrent()] = self._rank
        self._write(_local.own)

    def give(self) -> None:
        """Let another thread act."""
        _local.own = self._read()
        if current_thread_is_side():
            act_as(None)
            self._rank_by_greenlet.pop(getcurrent(), None)
        self._acts.release()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """For the length of a block, in which the thread that acts waits for another one, others may act."""
        self.give()
        try:
            yield
        finally:
            self.take()


class Member:
    """What a side thread is to the rank that it works for, from ``begin`` to ``end``, which are called in the thread."""

    def __init__(self, crew: Crew) -> None:
        self.crew = crew
        self._leave: Callable[[], None] | None = None

    def begin(self) -> None:
        """It works for the rank."""
        _local.member = self

    def act(self) -> None:
        """Act for the rank, from now on and but for waits. Raises SystemExit if the rank has ended."""
        if self._leave is None:
            self.crew.take()
            self._leave = self.crew.join()

    def end(self) -> None:
        """Its work is done."""
        if self._leave is not None:
            self._leave()
            self.crew.give()
        _local.member = _local.own = None


def current_member() -> Member | None:
    """The member whose thread runs; None in other threads."""
    return _local.member


def current_thread_is_side() -> bool:
    """Whether a thread runs that a rank's program has started."""
    return _local.member is not None


def acts_for_a_rank() -> bool:
    """In any thread: whether it is a side thread of a rank; if so, it acts for the rank from now on."""
    if _local.member is None:
        return False
    _local.member.act()
    return True


@contextmanager
def going_on() -> Iterator[None]:
    """For the length of a block, the running thread goes on acting for its rank, whatever it waits for."""
    before, _local.goes_on = _local.goes_on, True
    try:
        yield
    finally:
        _local.goes_on = before


def acting_crew() -> Crew | None:
    """The crew of the rank that the running thread acts for, if others of it may act while this one waits."""
    carrier = current_carrier()
    return None if carrier is None or _local.goes_on else carrier.crew
