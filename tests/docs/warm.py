"""A Python that has imported what takes long: each command is a fork of it, which goes on as ``python`` would.

Most of a page's commands are over in less time than their imports take. What a fresh process would do and a fork of this one
does not is import torch and kernbench with the command's own environment: only commands that set none of their own run here.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).parents[2]
_LENGTH = struct.Struct("<Q")
_CODE = struct.Struct("<i")
_SHELLS = frozenset("|&;<>()$`*?[]#~=%{}\\\n")
"""What a shell would take for more than a word."""


class WarmPython:
    """The process, started when it is first asked."""

    def __init__(self) -> None:
        self._end: socket.socket | None = None

    def runs(self, command: str) -> bool:
        """Whether a shell command is one that can run here: ``kernbench``, or ``python`` with a script or module."""
        words = command.split()
        plain = not _SHELLS.intersection(command) and '"' not in command and "'" not in command
        return plain and (words[0] == "kernbench" or (words[0] == "python" and _is_program(words[1:])))

    def run(self, command: str, folder: Path, environment: Mapping[str, str], output: int) -> int:
        """Run a command in a folder, its output and errors to a descriptor; its exit code, as a shell counts."""
        words = command.split()
        arguments = ["-m", "kernbench.cli", *words[1:]] if words[0] == "kernbench" else words[1:]
        request = json.dumps({"words": arguments, "folder": str(folder), "environment": dict(environment)}).encode()
        if self._end is None:
            self._end = _started()
        socket.send_fds(self._end, [_LENGTH.pack(len(request))], [output])
        self._end.sendall(request)
        return int(_CODE.unpack(_exactly(self._end, _CODE.size))[0])


WARM = WarmPython()
"""One for all pages of a process."""


def _is_program(words: Sequence[str]) -> bool:
    return bool(words) and (words[0] == "-m" or not words[0].startswith("-"))


def _started() -> socket.socket:
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with theirs:
        subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno())], cwd=ROOT, pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    return mine


def _exactly(end: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = end.recv(size - len(found))
        if not part:
            raise EOFError("the other side is gone")
        found += part
    return found


# -- the process itself --------------------------------------------------------------------------------------------------


def _serve(end: socket.socket) -> list[str]:
    """Start a process for each request until there are no more. In that process: be it, and return its command line."""
    gc.freeze()  # what is imported is never looked through again, which would copy its pages
    while True:
        head, descriptors, _, _ = socket.recv_fds(end, _LENGTH.size, 1)
        if not head:
            os._exit(0)
        request = json.loads(_exactly(end, _LENGTH.unpack(head)[0]))
        child = os.fork()
        if child == 0:
            end.close()
            return _become(request, descriptors[0])
        os.close(descriptors[0])
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        end.sendall(_CODE.pack(code if code >= 0 else 128 - code))


def _become(request: Mapping[str, Any], output: int) -> list[str]:
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    return list(request["words"])


def _run(words: Sequence[str]) -> None:
    """As ``python`` runs its command line."""
    is_module = words[0] == "-m"
    sys.argv = list(words[1:] if is_module else words)
    sys.path[0] = "" if is_module else str(Path(words[0]).resolve().parent)
    sys.excepthook = _show
    if is_module:
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(words[0], run_name="__main__")


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Without the frames of this file, and of what runs the program."""
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
        trace = trace.tb_next
    sys.__excepthook__(kind, error, trace)


if __name__ == "__main__":
    import kernbench.commands.explore
    import kernbench.commands.run
    import kernbench.trace.chrome
    import kernbench.trace.steps_report  # noqa: F401

    _run(_serve(socket.socket(fileno=int(sys.argv[1]))))
