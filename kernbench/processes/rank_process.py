"""A rank's process, as the simulation sees it, whoever has started it."""

from __future__ import annotations

import contextlib
import faulthandler
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, NoReturn

from kernbench.errors import KernbenchError
from kernbench.processes import shared_memory
from kernbench.processes.channel import Wire
from kernbench.sim_engine import Condition
from kernbench.torch_backend import environment

PATIENCE = 1.0
"""Seconds of the machine's time for which one who is back waits for another who went before, and is not."""


class Away(NamedTuple):
    """A thread of a rank that waits for what the simulation does not see.

    Attributes:
        process: its rank's.
        has_come: whether it has said that it is back.
        counts: whether another one may be able to go on when it is.
    """

    process: RankProcess
    has_come: Callable[[], bool]
    counts: Callable[[], bool]


class RankDiedError(KernbenchError):
    """A rank's process has ended in the middle of its program."""


class RankProcess(ABC):
    """One rank's process.

    Attributes:
        rank: its number.
        shared: memory shared with it.
        stacks: a file without a name, in which it writes where it was when it crashes.
        wire: to it; in the process itself, to the simulation.
        pid: of the process, 0 before it has begun.
        descriptor: of the process, readable when it has ended.
    """

    wire: Wire

    def __init__(self, rank: int, shared: shared_memory.SharedMemory, stacks: int) -> None:
        self.rank = rank
        self.shared = shared
        self.stacks = stacks
        self.pid = 0
        self.descriptor = -1

    def told(self) -> str:
        """Where its threads were when it crashed; empty if nobody can tell."""
        size = os.fstat(self.stacks).st_size
        lines = os.pread(self.stacks, min(size, 1 << 16), 0).decode(errors="replace").splitlines()
        end = next((at for at, line in enumerate(lines) if environment.__file__ in line), len(lines))
        return "\n".join(line for line in lines[:end] if __file__ not in line).strip()

    @abstractmethod
    def reap(self) -> None:
        """Its end of the wire is closed: have it ended."""

    @abstractmethod
    def kill(self) -> None:
        """End it at once."""

    @abstractmethod
    def cause(self) -> str:
        """How it has ended, in words."""

    def close(self) -> None:
        """Forget it. Idempotent."""
        self.wire.close()
        for descriptor in (self.descriptor, self.stacks):
            if descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        self.descriptor = self.stacks = -1


class RankProcesses(ABC):
    """The processes of one world's ranks.

    Attributes:
        by_rank: the processes.
        died: ranks whose processes have ended in the middle of their programs, as far as anybody has looked.
        away: those who wait for what the simulation does not see, by what ends that.
        unwound: whether ranks that are to end are told so, and their programs unwind.
    """

    unwound = True

    def __init__(self, by_rank: Mapping[int, RankProcess]) -> None:
        self.by_rank = by_rank
        self.died: list[int] = []
        self.away: dict[Condition, Away] = {}
        self._slow: set[Condition] = set()

    @abstractmethod
    def await_input(self, member: RankProcess) -> bool:
        """Wait until there is something to read from ``member``; False if another one has died meanwhile."""

    def await_absent(self, seconds: float | None = None) -> bool:
        """Wait until a thread that is away comes back, without which none can go on; False if none is, or after ``seconds``.

        They come back one after the other, in the order in which they went, unless one is slow.
        """
        while True:
            come = [back for back, each in self.away.items() if each.has_come()]
            awaited = [back for back, each in self.away.items() if each.counts()] or come
            if not awaited:
                return False
            first = next((back for back in awaited if back not in self._slow), awaited[0])
            if first in come:
                self._slow.discard(first)
                first.fulfil()
                return True
            others = any(back in come for back in awaited)
            sockets = {self.away[back].process.wire.socket.fileno() for back in ([first] if others else awaited)}
            if not self.await_one(sorted(sockets), PATIENCE if others else seconds):
                if not others:
                    return False
                self._slow = {back for back in awaited if back not in come}

    @abstractmethod
    def await_one(self, descriptors: Sequence[int], seconds: float | None = None) -> Sequence[int]:
        """Wait until there is something to read from one of ``descriptors``, sockets to members: those of which there is. All,
        if a process has died; none, if ``seconds`` of the machine's time have passed."""

    @abstractmethod
    def close(self) -> None:
        """End those that are left. Idempotent."""


_exit = os._exit


def leave(status: int) -> NoReturn:
    """End this process, and nothing is told of where it was."""
    _exit(status)


def tell_where(stacks: int) -> None:
    """In a rank's process: if it crashes, or ends itself at once, it writes where it was."""

    def tell_and_exit(status: int) -> NoReturn:
        faulthandler.dump_traceback(file=stacks, all_threads=False)
        _exit(status)

    faulthandler.enable(file=stacks)
    os._exit = tell_and_exit


def tell_nothing() -> None:
    """In a process that a rank has forked, or at the end of its program: its end is its own."""
    faulthandler.disable()
    os._exit = _exit
