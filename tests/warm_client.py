"""``python`` for a command: a fork of the process of :mod:`tests.warm_python`, with the files and folder of this one.

Run by itself, with nothing imported but what is needed: it stands for a command that has to start at once.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
from collections.abc import Sequence

LENGTH = struct.Struct("<Q")
"""Before a request."""

CODE = struct.Struct("<i")
"""The answer: the exit code, as a shell counts; -1: the environment is another one."""


_CREDENTIALS = struct.Struct("3i")
"""What the system says of who is at the other end: process, user, group."""


def is_own(end: socket.socket) -> bool:
    """Whether this user is at the other end: the name of the socket can be read, and used, by every user of the machine."""
    told = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(told)[1]) == os.geteuid()


def exactly(end: socket.socket, size: int) -> bytes:
    """The next ``size`` bytes. Raises EOFError where there are fewer."""
    found = b""
    while len(found) < size:
        part = end.recv(size - len(found))
        if not part:
            raise EOFError("the other side is gone")
        found += part
    return found


def _run(name: str, words: Sequence[str]) -> int:
    request = json.dumps({"words": words, "folder": os.getcwd(), "environment": dict(os.environ)}).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as end:
        end.connect(f"\0{name}")
        if not is_own(end):
            return -1
        socket.send_fds(end, [LENGTH.pack(len(request))], [0, 1, 2])
        end.sendall(request)
        return int(CODE.unpack(exactly(end, CODE.size))[0])


def _main(name: str, words: Sequence[str]) -> None:
    if words and words[0].startswith("-m") and words[0] != "-m":
        words = ["-m", words[0][2:], *words[1:]]
    is_program = bool(words) and (words[0] == "-m" or not words[0].startswith("-"))
    code = _run(name, words) if is_program else -1
    if code == -1:
        os.execv(sys.executable, [sys.executable, *words])
    sys.exit(code)


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2:])
