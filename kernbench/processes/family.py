"""The processes of one spawn's ranks: their births, and their deaths, of which none is left unnoticed or behind."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import select
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from time import perf_counter  # the machine's own clock: inside ranks the time module shows virtual time

from kernbench.child_processes import descendants, end_with_parent
from kernbench.errors import KernbenchError
from kernbench.processes.channel import wires
from kernbench.processes.rank_process import RankProcess, RankProcesses, leave, tell_where
from kernbench.processes.shared_memory import SharedMemory
from kernbench.scheduler.host_effects import with_room

GRACE = 0.8
"""Seconds of wall-clock time that processes have to unwind, all together, once ranks are being unwound."""

_DESCRIPTORS = 4
"""Files of the parent per rank: both ends of a socket, the stacks of a crash, the process."""


class Child(RankProcess):
    """One rank's process that this one has forked.

    Attributes:
        theirs: its end of the wire, until it has begun; in the child, ours.
        status: as ``os.waitpid`` gives it, None while it runs.
    """

    def __init__(self, rank: int) -> None:
        shared = SharedMemory()
        self.wire, self.theirs = wires()
        super().__init__(rank, shared, os.memfd_create(f"kernbench-rank-{rank}"))
        self.status: int | None = None

    def become(self) -> None:
        """In the new process: it dies with its parent, tells where it was if it crashes, and Ctrl-C is its parent's."""
        end_with_parent(signal.SIGKILL)
        self.wire, self.theirs = self.theirs, self.wire
        self.theirs.close()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        tell_where(self.stacks)

    def reap(self) -> None:
        """Wait for a process that has ended, or is about to."""
        if self.status is None:
            _, self.status = os.waitpid(self.pid, 0)

    def kill(self) -> None:
        """End it at once, and the processes that it has started."""
        if self.pid and self.status is None:
            for pid in (self.pid, *descendants(self.pid)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def signal(self, number: int) -> None:
        """See :class:`RankProcess`."""
        if self.status is None:
            os.kill(self.pid, number)

    def cause(self) -> str:
        """How it has ended, in words."""
        assert self.status is not None
        if os.WIFSIGNALED(self.status):
            number = os.WTERMSIG(self.status)
            name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
            hint = " (the system does that when it is out of memory)" if number == signal.SIGKILL else ""
            return f"was killed by {name}{hint}"
        code = os.WEXITSTATUS(self.status)
        return (
            f"ended with exit code {code} in the middle of its program (os._exit, or a library that ends the process)"
        )

    def close(self) -> None:
        """Forget it. Idempotent."""
        super().close()
        self.theirs.close()


class Family(RankProcesses):
    """The processes of one spawn, forked by this one.

    Args:
        ranks: their numbers.
        aborting: whether ranks are being unwound.

    Attributes:
        children: by rank.
    """

    def __init__(self, ranks: Sequence[int], aborting: Callable[[], bool]) -> None:
        if not hasattr(os, "memfd_create") or not hasattr(os, "pidfd_open"):
            raise KernbenchError("isolation='process' needs Linux 5.3 or later: use isolation='carrier'")
        self.children: dict[int, Child] = {}
        try:
            for rank in ranks:
                self.children[rank] = Child(rank)
        except OSError as error:
            self.close_children()
            what, limit = (
                ("address space for the memory that it shares", "ulimit -v")
                if error.errno == errno.ENOMEM
                else (f"{_DESCRIPTORS} files of this one", "ulimit -n")
            )
            raise KernbenchError(
                f"no room for {len(ranks)} ranks that are processes, each of which takes {what}: {error.strerror}. "
                f"Allow more ({limit}), or use isolation='carrier'"
            ) from None
        super().__init__(self.children)
        self._aborting = aborting
        self._deadline: float | None = None
        self._poll = select.poll()
        self._watched: dict[int, Child] = {}

    def start(self, body: Callable[[Child], None]) -> None:
        """Begin all processes; each calls ``body`` with its child and must not return from it."""
        sys.stdout.flush()
        sys.stderr.flush()
        gc.freeze()  # what is old stays out of the children's collections, which would write to its pages
        try:
            for child in self.children.values():
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", DeprecationWarning)  # torch's threads are not used in the child
                    try:
                        child.pid = with_room(os.fork)
                    except BlockingIOError as error:
                        raise KernbenchError(
                            f"no process for rank {child.rank}: {error.strerror}. Allow more (ulimit -u), or use "
                            "isolation='carrier'"
                        ) from None
                if child.pid == 0:
                    self._leave_others(child)
                    body(child)
                    leave(70)
                child.theirs.close()
                child.descriptor = os.pidfd_open(child.pid)
                self._watched[child.descriptor] = child
                self._poll.register(child.descriptor, select.POLLIN)
        except BaseException:
            self.close()
            raise
        finally:
            gc.unfreeze()

    def _leave_others(self, mine: Child) -> None:
        """In a child: drop what it has inherited of its siblings, so that their ends are noticed."""
        for child in self.children.values():
            if child is not mine:
                child.close()
        self._watched.clear()

    def await_input(self, member: RankProcess) -> bool:
        """See :class:`RankProcesses`. While ranks are being unwound, one that takes too long is killed."""
        descriptor = member.wire.socket.fileno()
        poll = self._poll
        poll.register(descriptor, select.POLLIN)
        try:
            self.awaited = [member.rank]
            while True:
                ready = poll.poll(self._patience())
                if not ready:
                    member.kill()
                    continue
                if any(number == descriptor for number, _ in ready):
                    return True
                died = [self._ended(number) for number, _ in ready]
                if any(died):
                    return False
        finally:
            self.awaited = []
            poll.unregister(descriptor)

    def await_one(self, descriptors: Sequence[int], seconds: float | None = None) -> Sequence[int]:
        """See :class:`RankProcesses`."""
        poll = self._poll
        for each in descriptors:
            poll.register(each, select.POLLIN)
        try:
            while True:
                ready = [number for number, _ in poll.poll(None if seconds is None else 1000 * seconds)]
                if not ready:
                    return ()
                if back := [number for number in descriptors if number in ready]:
                    return back
                died = [self._ended(number) for number in ready]
                if any(died):
                    return descriptors
        finally:
            for each in descriptors:
                poll.unregister(each)

    def _patience(self) -> int | None:
        """Milliseconds to wait for a process; None: any number."""
        if not self._aborting():
            return None
        if self._deadline is None:
            self._deadline = perf_counter() + GRACE
        return max(0, round(1000 * (self._deadline - perf_counter())))

    def _ended(self, descriptor: int) -> bool:
        """A process has ended: whether it had not been through with its program."""
        child = self._watched.pop(descriptor)
        self._poll.unregister(descriptor)
        child.reap()
        if child.status == 0:
            return False
        self.died.append(child.rank)
        return True

    def close(self) -> None:
        """End those that are left. Idempotent."""
        self.close_children()
        self._watched.clear()

    def close_children(self) -> None:
        """End those that run, and forget all."""
        for child in self.children.values():
            child.kill()
        for child in self.children.values():
            if child.pid:
                child.reap()
            child.close()
