"""The ranks of a world whose processes another launcher has started, and which have joined.

No parent of theirs is here: what has started them hears how they have ended, and ends the others if one fails. The simulation
holds a socket of each, their *lifeline*; when that closes, also because the simulation was killed, the system kills them.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import socket
from collections.abc import Mapping, Sequence
from time import perf_counter  # the machine's own clock

from kernbench.processes.channel import Wire
from kernbench.processes.rank_process import RankDiedError, RankProcess, RankProcesses
from kernbench.processes.shared_memory import SharedMemory
from kernbench.processes.timekeeper import LONGEST, SHORTEST, Timekeeper

PARTING = 3.0
"""Seconds of wall-clock time that processes have to end by themselves when one of them has failed."""

ORPHANED = 0.5
"""Seconds of wall-clock time that they have when what has started them has ended: it would have ended them before."""


_ORPHAN = "what has started the ranks (torchrun, say) has ended before they had: they were ended, too"


class Joined(RankProcess):
    """One rank's process that has joined.

    Args:
        rank, pid: its numbers.
        wire: to it.
        files: that it has handed over: its shared memory, where it writes its stacks, its lifeline.
    """

    def __init__(self, rank: int, pid: int, wire: Wire, files: tuple[int, int, int]) -> None:
        shared, stacks, lifeline = files
        super().__init__(rank, SharedMemory(file=shared), stacks)
        os.close(shared)
        self.wire = wire
        self.pid = pid
        self.descriptor = os.pidfd_open(pid)
        self._lifeline = socket.socket(fileno=lifeline)

    @property
    def gone(self) -> bool:
        """Whether its process has ended."""
        return self.descriptor < 0 or bool(select.select([self.descriptor], [], [], 0)[0])

    def reap(self) -> None:
        """That is the duty of the process that started it."""

    def kill(self) -> None:
        """See :class:`RankProcess`."""
        if self.descriptor >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.descriptor, signal.SIGKILL)

    def signal(self, number: int) -> None:
        """See :class:`RankProcess`."""
        signal.pidfd_send_signal(self.descriptor, number)

    def cause(self) -> str:
        """See :class:`RankProcess`."""
        return "ended in the middle of its program (a signal, os._exit, or who started it has ended it)"

    def close(self) -> None:
        """Forget it: if it still runs, it ends. Idempotent."""
        super().close()
        self._lifeline.close()


class Company(RankProcesses):
    """The processes of a world whose ranks have joined.

    Args:
        by_rank: the processes.
        launcher: a descriptor of what has started them all, readable when that has ended.
        keeper: keeps the time of the command's other processes.
    """

    unwound = False

    def __init__(self, by_rank: Mapping[int, Joined], launcher: int, keeper: Timekeeper | None = None) -> None:
        super().__init__(by_rank)
        self._company = dict(by_rank)
        self._launcher = launcher
        self._keeper = keeper

    def await_input(self, member: RankProcess) -> bool | None:
        """See :class:`RankProcesses`. A rank that dies is noticed in its turn. If the process that started them ends, they
        have to, soon."""
        self.awaited = [member.rank]
        try:
            return self._await_member(member.wire.socket.fileno())
        finally:
            self.awaited = []

    def _await_member(self, descriptor: int) -> bool | None:
        keeper, pause = self._keeper, SHORTEST
        while keeper is not None:
            if descriptor in self.await_one([descriptor, *keeper.descriptors], pause if keeper.active else None):
                return True
            if not keeper.take() and keeper.active and keeper.stands_still():
                if self.await_one([descriptor], 0):  # it has said so since, and stands still for the answer
                    return True
                if not keeper.give_turn():
                    return None
                pause = SHORTEST
                continue
            pause = min(2 * pause, LONGEST)
        return bool(self.await_one([descriptor]))

    def await_one(self, descriptors: Sequence[int], seconds: float | None = None) -> Sequence[int]:
        """See :class:`RankProcesses`."""
        poll = select.poll()
        for each in (*descriptors, self._launcher):
            poll.register(each, select.POLLIN)
        deadline = None
        while True:
            left = None if deadline is None else max(0, round(1000 * (deadline - perf_counter())))
            if deadline is None and seconds is not None:
                left = math.ceil(1000 * seconds)
            ready = [number for number, _ in poll.poll(left)]
            if back := [number for number in descriptors if number in ready]:
                return back
            if deadline is None and not ready and seconds is not None:
                return ()
            if deadline is None:
                poll.unregister(self._launcher)
                deadline = perf_counter() + ORPHANED
            else:
                for rank, member in self._company.items():
                    if not member.gone:
                        self.end(rank, RankDiedError(_ORPHAN))
                if seconds is not None:
                    return ()

    def part(self) -> None:
        """One has failed, or could not go on: the others are given time to be ended by the process that started them, then
        asked to."""
        until = perf_counter() + PARTING
        left = [each.descriptor for each in self._company.values() if not each.gone]
        while left and (seconds := until - perf_counter()) > 0:
            ended = select.select(left, [], [], seconds)[0]
            left = [each for each in left if each not in ended]
        for each in self._company.values():
            each.wire.close()

    def close(self) -> None:
        """End them at once. Idempotent."""
        for each in self._company.values():
            each.close()
