"""Where processes join: a local socket, and the worlds that gather there."""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
from collections.abc import Callable
from time import perf_counter  # the machine's own clock

from kernbench.errors import KernbenchError
from kernbench.processes import seat
from kernbench.processes.channel import Wire
from kernbench.processes.joined import Joined
from kernbench.processes.seat import Address, Hello, Welcome
from kernbench.processes.timekeeper import Timekeeper
from kernbench.version import __version__

NOTICE, PATIENCE = 30.0, 600.0
"""Seconds of wall-clock time after the last one has come until the others are said to be missing, and until they are given up.
How long it takes them changes nothing in a run that goes on: virtual time begins when all are there."""


INHERITED = "KERNBENCH_GATE"
"""The environment variable by which a run is given a socket that listens already: its descriptor and its address."""


def listening() -> tuple[Address, socket.socket]:
    """A new address, and a socket on which processes join there."""
    address = Address.new()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind("\0" + address.name)
    listener.listen(1024)
    return address, listener


def _inherited() -> tuple[Address, socket.socket] | None:
    given = os.environ.pop(INHERITED, "")
    if not given:
        return None
    descriptor, address = given.split()
    listener = socket.socket(fileno=int(descriptor))
    listener.set_inheritable(False)
    return Address.of(address), listener


class Gate:
    """Lets processes in until a world is complete.

    Args:
        welcome: what joining processes receive.
        check: raises :class:`KernbenchError` if a world of that many ranks, so many of them on a node (0: not known),
            cannot be had.
        tell: prints a line for the user.

    Attributes:
        address: where processes join.
    """

    def __init__(
        self, welcome: Callable[[], Welcome], check: Callable[[int, int], None], tell: Callable[[str], None]
    ) -> None:
        self._welcome = welcome
        self._check = check
        self._tell = tell
        self.address, self._listener = _inherited() or listening()
        self._waiting: dict[int, Joined] = {}
        self._size = 0

    def close(self) -> None:
        """No process is admitted any more; waiters end. Idempotent."""
        self._listener.close()
        for each in self._waiting.values():
            each.close()
        self._waiting.clear()

    def gather(self, launcher: int, keeper: Timekeeper | None = None) -> dict[int, Joined] | None:
        """Wait until all ranks of a world have joined: their processes, by rank; None if ``launcher``, a descriptor of what
        starts them, has ended before any has. Time passes for the processes whose time ``keeper`` keeps.

        Raises:
            KernbenchError: it has ended, or a long time has passed, and some have not come.
        """
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        poll.register(launcher, select.POLLIN)
        last, noticed = perf_counter(), False
        while True:
            waited = perf_counter() - last
            limit = None if not self._waiting else max(0.0, (PATIENCE if noticed else NOTICE) - waited)
            held = None if keeper is None else keeper.let_pass(self._listener)
            others = [] if keeper is None else [*keeper.descriptors]
            for each in others:
                poll.register(each, select.POLLIN)
            waits = [each for each in (limit, held) if each is not None]
            ready = [number for number, _ in poll.poll(math.ceil(1000 * min(waits)) if waits else None)]
            for each in others:
                poll.unregister(each)
            if self._listener.fileno() in ready:
                self._let_in()
                last, noticed = perf_counter(), False
                if self._waiting and len(self._waiting) == self._size:
                    complete, self._waiting = self._waiting, {}
                    return dict(sorted(complete.items()))
            elif launcher in ready:
                if not self._waiting:
                    return None
                raise self._give_up("what starts the ranks has ended")
            elif perf_counter() - last < (PATIENCE if noticed else NOTICE) or not self._waiting:
                continue
            elif not noticed:
                noticed = True
                self._tell(f"waiting for {self._missing()} to join")
            else:
                raise self._give_up(f"no process has joined for {PATIENCE:.0f} s")

    def _missing(self) -> str:
        missing = [rank for rank in range(self._size) if rank not in self._waiting]
        named = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        return f"rank{'s' if len(missing) > 1 else ''} {named} of {self._size}"

    def _give_up(self, why: str) -> KernbenchError:
        error = KernbenchError(
            f"{self._missing()} did not join the simulation: {why}. A process joins when torch is imported and RANK and "
            "WORLD_SIZE are set, or else in init_process_group"
        )
        for each in self._waiting.values():
            each.close()
        self._waiting.clear()
        return error

    def _let_in(self) -> None:
        end, _ = self._listener.accept()
        try:
            found = seat.receive(end)
        except OSError:
            found = None
        if found is None:
            end.close()
            return
        hello, pid, files = found
        for rank in [rank for rank, each in self._waiting.items() if each.gone]:  # a launcher may have started anew
            self._waiting.pop(rank).close()
        wire = Wire(end)
        refusal = self._refusal(hello)
        try:
            if refusal:
                wire.send(Welcome({}, refusal=refusal))
            else:
                wire.send(self._welcome())
                self._waiting[hello.rank] = Joined(hello.rank, pid, wire, files)
                self._size = hello.size
                return
        except OSError:  # it is gone
            pass
        end.close()
        for descriptor in files:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _refusal(self, hello: Hello) -> str:
        """Why a process cannot join; empty if it can."""
        if not self.address.admits(hello.key):
            return (
                f"rank {hello.rank} has not the key of the simulation that it wants to join: KERNBENCH_JOIN is set in what a "
                "simulation starts, and was changed"
            )
        if hello.version != __version__:
            return (
                f"rank {hello.rank} has kernbench {hello.version}, the simulation {__version__}: install one for both"
            )
        if not 0 <= hello.rank < hello.size:
            return f"rank {hello.rank} is not one of a world of {hello.size}"
        if not self._waiting:
            try:
                self._check(hello.size, hello.local_size)
            except KernbenchError as error:
                return str(error)
            return ""
        if hello.size != self._size:
            return f"a world of {self._size} ranks is joining; this process is rank {hello.rank} of {hello.size}"
        if hello.rank in self._waiting:
            other = self._waiting[hello.rank].pid
            return f"process {other} is rank {hello.rank} already: each rank joins once (RANK, init_process_group(rank=...))"
        return ""
