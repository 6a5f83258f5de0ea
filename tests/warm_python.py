"""A Python that has imported what takes long: what pages and tests start as ``python`` is a fork of it.

Most commands are over in less time than their imports take. What a fresh process would do and a fork of this one does not is
import torch and kernbench with the command's own environment: where a command sets any, it has a fresh one.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import secrets
import select
import shlex
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.warm_client import CODE, LENGTH, exactly, is_own

ROOT = Path(__file__).parents[1]
_PYTHON = sys.executable
_CLIENT = Path(__file__).with_name("warm_client.py")

_SHELLS_OWN = frozenset(
    (
        "COLUMNS",
        "HOME",
        "KERNBENCH_PROGRESS",
        "LINES",
        "OLDPWD",
        "PATH",
        "PWD",
        "PYTHONPATH",
        "PY_COLORS",
        "SHLVL",
        "TORCHINDUCTOR_CACHE_DIR",
        "USERPROFILE",
        "_",
    )
)
_PYTESTS_OWN = "PYTEST_"
"""What the environment of a command may have otherwise: none of it is looked at by an import."""


class WarmPython:
    """The process, started when it is first asked for."""

    def __init__(self) -> None:
        self._name: str | None = None
        self._end: socket.socket | None = None

    def tool(self, arguments: str = "") -> str:
        """The shell command that runs ``python`` with these arguments, and those behind them."""
        if self._name is None:
            self._name = f"kernbench-tests-{os.getpid()}-{secrets.token_hex(8)}"
            self._end = _started(self._name)
        client = " ".join(map(shlex.quote, (_PYTHON, "-I", "-S", str(_CLIENT), self._name)))
        return f"{client} {arguments}"

    def executable(self, path: Path, arguments: str = "") -> Path:
        """Make ``path`` an executable that is ``python`` with these arguments, and those it is given."""
        path.write_text(f'#!/bin/sh\nexec {self.tool(arguments)} "$@"\n')
        path.chmod(0o755)
        return path


WARM = WarmPython()
"""One for all that a process of the tests starts."""


def _started(name: str) -> socket.socket:
    """Start the process; it ends when the socket that is given is closed."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        ends = (theirs.fileno(), listener.fileno())
        subprocess.Popen(
            [_PYTHON, "-m", __name__, *map(str, ends)], cwd=ROOT, pass_fds=ends,
            env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    return mine


# -- the process itself --------------------------------------------------------------------------------------------------


def _serve(owner: socket.socket, listener: socket.socket) -> list[str]:
    """Start a process for each command until the owner is gone. In that process: be it, and return its command line."""
    gc.freeze()  # what is imported is never looked through again, which would copy its pages
    environment = dict(os.environ)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no parent asks how those end that look after the commands
    while True:
        if owner in select.select([owner, listener], [], [])[0]:
            os._exit(0)
        client = listener.accept()[0]
        if not is_own(client):  # what it is sent is run as this user
            client.close()
            continue
        if os.fork() == 0:
            owner.close()
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return _look_after(client, environment)
        client.close()


def _look_after(client: socket.socket, environment: Mapping[str, str]) -> list[str]:
    """Start a client's command, and tell it how that ended. In the command's process: be it, and return its command line."""
    head, files, _, _ = socket.recv_fds(client, LENGTH.size, 3)
    request = json.loads(exactly(client, LENGTH.unpack(head)[0]))
    if _less_own(environment) != _less_own(request["environment"]):
        client.sendall(CODE.pack(-1))
        os._exit(0)
    command = os.fork()
    if command == 0:
        client.close()
        return _become(request, files)
    for each in files:
        os.close(each)
    ended = os.pidfd_open(command)
    if client in select.select([ended, client], [], [])[0]:  # it has no waiter any more
        os.kill(command, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
    client.sendall(CODE.pack(code if code >= 0 else 128 - code))
    os._exit(0)


def _less_own(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value for name, value in environment.items() if name not in _SHELLS_OWN and not name.startswith(_PYTESTS_OWN)
    }  # fmt: skip


def _become(request: Mapping[str, Any], files: Sequence[int]) -> list[str]:
    for number, each in enumerate(files):
        os.dup2(each, number)
        os.close(each)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    if type(ir.module).__name__.startswith("nb_"):  # nanobind lists all that is alive in the end: what is frozen is
        atexit.register(gc.unfreeze)
    os.environ["PYTEST_ADDOPTS"] = (
        "-W ignore::pytest.PytestAssertRewriteWarning"  # the plugin has been imported already
    )
    return list(request["words"])


def _run(words: Sequence[str]) -> None:
    """As ``python`` runs its command line."""
    is_module = words[0] == "-m"
    sys.argv = list(words[1:] if is_module else words)
    sys.path[0] = "" if is_module else str(Path(words[0]).resolve().parent)
    sys.excepthook = _show
    if is_module:
        warnings.filterwarnings("ignore", module=r"runpy$")  # that the module has been imported already
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(words[0], run_name="__main__")


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Without the frames of this file, and of what runs the program."""
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
        trace = trace.tb_next
    sys.__excepthook__(kind, error, trace)


if __name__ == "__main__":
    from triton._C.libtriton import ir

    import kernbench.commands.explore_search
    import kernbench.commands.run
    import kernbench.trace.chrome
    import kernbench.trace.steps_report  # noqa: F401

    _run(_serve(*[socket.socket(fileno=int(number)) for number in sys.argv[1:]]))
