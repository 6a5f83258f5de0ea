"""What comes from threads that have no turn: main takes it, in an order that does not depend on how quick they are."""

from __future__ import annotations

from _queue import Empty, SimpleQueue
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from kernbench.sim_engine import Condition


class Coming(NamedTuple):
    """What comes from a thread that has no turn.

    Attributes:
        of: of threads that take no turns yet, the rank's number; of one that was outside, what ends that.
        call: called in main: before time moves if the thread has not rested before (``prompt``), else when nothing else can
            happen.
    """

    of: int | Condition
    call: Callable[[], None]
    prompt: bool = False


class Arrivals:
    """What has come of one simulation's threads.

    Attributes:
        come: in main: what it has taken, and has not had happen.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[Coming | None] = SimpleQueue()
        self.come: list[Coming] = []

    def put(self, coming: Coming | None) -> None:
        """In any thread; None: main is to look again."""
        self._queue.put(coming)

    def take(self, timeout: float = 0) -> None:
        """In main: take what has come, and wait for the first so many seconds of the machine's time."""
        with suppress(Empty):
            # Python 3.10 may wait for ever where the timeout is 0
            self._note(self._queue.get(timeout=timeout) if timeout else self._queue.get_nowait())
            while True:
                self._note(self._queue.get_nowait())

    def _note(self, coming: Coming | None) -> None:
        if coming is not None:
            self.come.append(coming)

    def begin_asked(self, *, prompt: bool = False) -> bool:
        """In main: have happen what threads that take no turns have asked for, or only what was ``prompt``; whether there is
        any."""
        begun = [each for each in self.come if isinstance(each.of, int) and each.prompt >= prompt]
        if begun:
            self.come = [each for each in self.come if each not in begun]
            for each in sorted(begun, key=_rank_of):
                each.call()
        return bool(begun)

    def clear(self) -> None:
        """Forget all of it."""
        self._queue = SimpleQueue()
        self.come.clear()


def _rank_of(arrival: Coming) -> Any:
    return arrival.of
