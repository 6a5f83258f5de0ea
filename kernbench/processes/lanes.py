"""What has come from a rank's process, by the thread that it has come from, and what the process is asked meanwhile."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable
from socket import MSG_DONTWAIT
from typing import Any, NoReturn

from kernbench.processes.rank_process import RankProcess, RankProcesses
from kernbench.processes.uplink import ASKED, LOOK, SETTLE
from kernbench.scheduler import SideThread


class ThreadLane:
    """One thread of the rank.

    Attributes:
        number: in its process; 0 is the rank's own.
        side: what it is to the scheduler; None: the rank's own.
        inbox: what has come from it.
        asked: the call that it waits for.
        promised: what was sent to it as its clock then.
        late: what it receives with its next request.
        away: what it waits for that is not seen here.
        looked: whether it goes on only to look at memory once more.
    """

    def __init__(self, number: int, side: SideThread | None) -> None:
        self.number = number
        self.side = side
        self.inbox: deque[list[tuple[Any, ...]]] = deque()
        self.asked: tuple[str, Any] | None = None
        self.promised: float | None = None
        self.late: BaseException | None = None
        self.away = ""
        self.looked = False


class ThreadLanes:
    """The threads of one rank's process, by their numbers.

    Args:
        child: the process.
        family: the processes of all ranks.

    Attributes:
        own: the rank's own thread.
        of: all of them.
        now: the one that runs.
        said: what threads without turns have said, each with whether it is prompt.
    """

    def __init__(self, child: RankProcess, family: RankProcesses) -> None:
        self._child = child
        self._family = family
        self.own = self.now = ThreadLane(0, None)
        self.of = {0: self.own}
        self.said: deque[tuple[tuple[Any, ...], bool]] = deque()
        self._found: dict[int, deque[Any]] = {SETTLE: deque(), LOOK: deque(), ASKED: self.said}

    def read(self, otherwise: Callable[..., object], *args: object) -> None:
        """Take what has come to its lane, or call ``otherwise``. Raises EOFError or OSError at the wire's end."""
        wire = self._child.wire
        body = wire.taken()
        if body is not None:
            number, items = pickle.loads(body)
            if number in self._found:
                self._found[number].append(items)
            elif number in self.of:
                self.of[number].inbox.append(items)
            return
        try:
            wire.read(MSG_DONTWAIT)
        except BlockingIOError:
            otherwise(*args)

    def read_what_is_there(self, enough: Callable[[], bool]) -> bool:
        """Take what has come until that is ``enough``; whether it is. Raises EOFError or OSError at the wire's end."""
        try:
            while not enough():
                self.read(_nothing_there)
        except BlockingIOError:
            return False
        return True

    def ask(self, number: int, about: object) -> Any:
        """What the process answers when it is asked something, in main, while its threads wait."""
        self._child.wire.send((number, about))
        found = self._found[number]
        while not found:
            self.read(self._family.await_input, self._child)
        return found.popleft()


def _nothing_there() -> NoReturn:
    raise BlockingIOError
