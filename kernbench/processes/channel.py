"""The way between a rank's process and the simulation: batches of calls one way, replies the other, over a local socket."""

from __future__ import annotations

import contextlib
import io
import pickle
import socket
import struct
from typing import Any, NamedTuple

from kernbench.advice import advice_for, tell_advice
from kernbench.errors import kind_of, message_of, substitute
from kernbench.simulation.ranks.failures import place_of, tell_place

_LENGTH = struct.Struct("<Q")
_READ = 1 << 16


class Wire:
    """One end of a socket on which pickled objects travel."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self._buffer = bytearray()

    def close(self) -> None:
        """Close this end. Idempotent."""
        self.socket.close()

    def send(self, item: object) -> None:
        """Send an object; blocks while the other side has much to read. Raises OSError if that is gone."""
        body = pickle.dumps(item, pickle.HIGHEST_PROTOCOL)
        self.socket.sendall(_LENGTH.pack(len(body)) + body)

    def receive(self) -> Any:
        """The next object; blocks until there is one. Raises EOFError if the other side is gone."""
        while (body := self.taken()) is None:
            self.read()
        return pickle.loads(body)

    def read(self, flags: int = 0) -> None:
        """Read what has come, of a long object all that is to come. Raises EOFError, and BlockingIOError as ``flags`` say."""
        chunk = self.socket.recv(_READ, flags)
        if not chunk:
            raise EOFError("the other side is gone")
        self._buffer += chunk
        missing = self._missing()
        if missing > _READ:
            have = len(self._buffer)
            self._buffer.extend(bytes(missing))
            view = memoryview(self._buffer)
            try:
                while missing:
                    count = self.socket.recv_into(view[have:], missing)
                    if not count:
                        raise EOFError("the other side is gone")
                    have, missing = have + count, missing - count
            finally:
                view.release()

    def _missing(self) -> int:
        buffer = self._buffer
        if len(buffer) < _LENGTH.size:
            return 0
        return _LENGTH.size + int(_LENGTH.unpack_from(buffer)[0]) - len(buffer)

    @property
    def has_come(self) -> bool:
        """Whether an object has been read whole and is unclaimed."""
        return len(self._buffer) >= _LENGTH.size and self._missing() <= 0

    def taken(self) -> bytes | None:
        """The body of the first object that has come whole, None if none has."""
        buffer = self._buffer
        if not self.has_come:
            return None
        end = _LENGTH.size + int(_LENGTH.unpack_from(buffer)[0])
        body = bytes(buffer[_LENGTH.size : end])
        del buffer[:end]
        return body


def wires() -> tuple[Wire, Wire]:
    """Two ends of a new way."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return Wire(here), Wire(there)


class Portable(NamedTuple):
    """An exception as it travels.

    Attributes:
        pickled: None: it cannot be.
        kind: as :func:`.kind_of` gives it.
        said: what it says.
        place: the program's line that has raised it; empty if not known.
        advice: what to do about it, empty where nothing is known: its traceback, which says more, stays behind.
    """

    pickled: bytes | None
    kind: tuple[str, str]
    said: str
    place: str = ""
    advice: str = ""


class _ExceptionPickler(pickle.Pickler):
    """Reduces exceptions as their classes say.

    A reducer that a library has registered for them comes second: tblib's (which Dask installs) makes them without their
    constructor, so that ``SystemExit(2)`` arrives with the code None.
    """

    def reducer_override(self, obj: object) -> Any:
        """See :class:`pickle.Pickler`."""
        return obj.__reduce_ex__(pickle.HIGHEST_PROTOCOL) if isinstance(obj, BaseException) else NotImplemented


def portable(error: BaseException) -> Portable:
    """An exception as another process can read it."""
    advice = ""
    with contextlib.suppress(Exception):  # of a program's exceptions, which may answer anything
        advice = advice_for(error) or ""
    words = (kind_of(error), message_of(error), place_of(error), advice)
    for pickler in (_ExceptionPickler, pickle.Pickler):
        body = io.BytesIO()
        with contextlib.suppress(Exception, SystemExit, GeneratorExit):  # of this kind, or of what is in it
            pickler(body, pickle.HIGHEST_PROTOCOL).dump(error)
            pickle.loads(body.getvalue())
            return Portable(body.getvalue(), *words)
    return Portable(None, *words)


def restored(portable: Portable) -> BaseException:
    """The exception; one of its name, with its words, if it could not be sent, or its class is not known here."""
    error: object = None
    if portable.pickled is not None:
        with contextlib.suppress(Exception):
            error = pickle.loads(portable.pickled)
    if not isinstance(error, BaseException):
        error = substitute(portable.kind, portable.said)
    tell_place(error, portable.place)
    tell_advice(error, portable.advice)
    return error
