"""How a process joins a simulation: it says who it is and hands over what both share; it receives what the simulation is.

The first message goes to the simulation as JSON, with the descriptors; what comes back, and all that follows, is pickled, and
comes from a process of the same user. Each side asks the system who the other one is (SO_PEERCRED, unix(7)) before it reads or
sends a byte, and who joins shows the simulation's *key*, which only the environment of the processes that it starts has: the
name of the socket can be read by every user of the machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import json
import os
import secrets
import signal
import socket
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, NamedTuple

from kernbench.errors import KernbenchError
from kernbench.processes.channel import Wire
from kernbench.processes.shared_memory import SharedMemory, unnamed_file
from kernbench.version import __version__

_F_SETSIG = 10
_CREDENTIALS = struct.Struct("3i")
_LONGEST = 1 << 12
_FILES = 3

PATIENCE = 10.0
"""Seconds of wall-clock time that a process which has connected has to say who it is."""


class Address(NamedTuple):
    """Where a simulation is joined.

    Attributes:
        name: of its socket, which no folder has.
        key: what those who join know, hexadecimal.
    """

    name: str
    key: str

    @classmethod
    def new(cls) -> Address:
        """One that no other simulation has, and that cannot be guessed."""
        return cls(f"kernbench-{os.getpid()}-{secrets.token_hex(8)}", secrets.token_hex(16))

    @classmethod
    def of(cls, text: str) -> Address:
        """As :meth:`__str__` has written it."""
        name, _, key = text.partition(":")
        return cls(name, key)

    def __str__(self) -> str:
        """Value of the environment variable by which processes find it."""
        return f"{self.name}:{self.key}"

    def admits(self, key: str) -> bool:
        """Whether this is the key; in constant time."""
        return hmac.compare_digest(self.key.encode(), key.encode(errors="replace"))


@dataclass(frozen=True)
class Hello:
    """Who joins.

    Attributes:
        rank, size: as it and its launcher count.
        local_size: ranks of its node, 0 if not known.
        version: of kernbench.
        key: of the simulation.
    """

    rank: int
    size: int
    local_size: int = 0
    version: str = __version__
    key: str = ""

    @classmethod
    def read(cls, message: bytes) -> Hello:
        """From JSON. Raises ValueError if that is anything else."""
        try:
            hello = cls(**json.loads(message))
        except (TypeError, RecursionError) as error:
            raise ValueError(str(error)) from None
        for each in fields(cls):
            value = getattr(hello, each.name)
            if type(value).__name__ != each.type:
                raise ValueError(f"{each.name}: {value!r}")
        return hello


@dataclass(frozen=True)
class Welcome:
    """What a process that joins receives.

    Attributes:
        options: of :func:`kernbench.simulate`.
        clock: virtual time at which its world begins, s.
        stop_after_steps: as ``simulate`` has it.
        driven: the SIPs that ranks drive, by rank.
        refusal: why it cannot join; empty if it can.
    """

    options: dict[str, Any]
    clock: float = 0.0
    stop_after_steps: int | None = None
    driven: Sequence[int] = ()
    refusal: str = ""


class Seat:
    """A process's place in a simulation, from its own side.

    Attributes:
        rank: its number.
        welcome: what it received.
        wire: to the simulation.
        shared: memory shared with it.
        stacks: where to write where this process was when it crashes.
    """

    def __init__(self, address: str, hello: Hello) -> None:
        """Take it, at an :class:`Address`, written; returns when the simulation has answered.

        Raises:
            KernbenchError: there is none any more, or it refuses.
        """
        self.rank = hello.rank
        where = Address.of(address)
        hello = replace(hello, key=where.key)
        files = unnamed_file()
        self.stacks = os.memfd_create(f"kernbench-rank-{hello.rank}")
        self._lifeline, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            end.connect("\0" + where.name)
            _require_own(end)
            socket.send_fds(end, [json.dumps(asdict(hello)).encode()], [files, self.stacks, theirs.fileno()])
            self.wire = Wire(end)
            self.welcome: Welcome = self.wire.receive()
        except (EOFError, OSError) as error:
            end.close()
            raise KernbenchError(
                f"rank {hello.rank} of {hello.size} cannot join the simulation ({where.name}): it has ended, or is not "
                f"on this machine ({error})"
            ) from None
        finally:
            theirs.close()
        if self.welcome.refusal:
            end.close()
            raise KernbenchError(self.welcome.refusal)
        self.shared = SharedMemory(file=files)
        os.close(files)
        self._die_with_it()

    def _die_with_it(self) -> None:
        """The system kills this process when the other end of the lifeline is closed."""
        lifeline = self._lifeline.fileno()
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(lifeline, _F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)

    def leave(self) -> None:
        """In a process that the rank has forked: the place is the rank's."""
        self._lifeline.close()


def receive(end: socket.socket) -> tuple[Hello, int, tuple[int, int, int]] | None:
    """On the other side: who joins, its process, and what it hands over; None if it is no rank of this simulation.

    Raises OSError if it is gone.
    """
    pid = _require_own(end)
    end.settimeout(PATIENCE)
    message, descriptors, _, _ = socket.recv_fds(end, _LONGEST, _FILES)
    end.settimeout(None)
    try:
        hello = Hello.read(message)
        shared, stacks, lifeline = descriptors
    except ValueError:
        for descriptor in descriptors:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        return None
    return hello, pid, (shared, stacks, lifeline)


def _require_own(end: socket.socket) -> int:
    """The process at the other end, which must be this user's. Raises OSError if it is not."""
    pid, user, _ = _CREDENTIALS.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    if user != os.geteuid():
        raise PermissionError(f"process {pid} is another user's")
    return int(pid)
