"""The environment of what a rank starts: its own variables, as children have those of their parent, and its cores.

``os.environ`` is each rank's own, in Python. The C library's variables, which a child gets if it is not said what it shall
have, are the process's: of several ranks, or of a rank that was forked, they are another owner's.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import inspect
import multiprocessing.util
import os
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from kernbench.scheduler.host_effects import cores, on_all_cores
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

_ENV = 10
"""Place of ``env`` among the arguments of ``subprocess.Popen``."""

_TAKES_ENV = ("execve", "posix_spawn", "posix_spawnp")
"""Functions of ``os`` whose third argument is the environment."""

Variables = dict[str, str]


RELIES_ON = (
    Reliance("multiprocessing.util", "what is no fork is started by this", has=("spawnv_passfds",)),
    Reliance(
        "subprocess.Popen.__init__", "`env` is its argument at this place",
        holds=lambda start: list(inspect.signature(start).parameters).index("env") == _ENV + 1,
    ),
)  # fmt: skip


def install(patches: Patches, more: Callable[[Variables], Variables], current_rank: Callable[[], int | None]) -> None:
    """Let processes that are started from here on have ``os.environ``, and what ``more`` gives of their variables besides."""
    on_cores = _install_cores(patches, current_rank)
    _install_popen(patches, more, on_cores)

    def telling(start: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(start)
        def started(*args: object, **kwargs: object) -> Any:
            with _told({**os.environ, **more(dict(os.environ))}), on_cores():
                return start(*args, **kwargs)

        return started

    def adding(start: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(start)
        def started(path: object, argv: object, env: Variables | None, *args: object, **kwargs: object) -> Any:
            given = dict(os.environ if env is None else env)
            with on_cores():
                return start(path, argv, {**given, **more(given)}, *args, **kwargs)

        return started

    for name in _TAKES_ENV:
        patches.set(os, name, adding(getattr(os, name)))
    for owner, name in ((os, "system"), (os, "execv"), (multiprocessing.util, "spawnv_passfds")):
        patches.set(owner, name, telling(getattr(owner, name)))


def _install_cores(
    patches: Patches, current_rank: Callable[[], int | None]
) -> Callable[[], AbstractContextManager[None]]:
    """Ranks that keep to one core have as many as the process has, or those of them that they have chosen: for what they start,
    and for what they are asked. Gives what is entered where they start a process."""
    stock: Any = getattr(os, "sched_getaffinity", None)
    if stock is None:
        return on_all_cores
    stock_set: Any = os.sched_setaffinity
    chosen: dict[int | None, set[int]] = {}

    def on_cores() -> AbstractContextManager[None]:
        return on_all_cores(chosen.get(current_rank()))

    @functools.wraps(stock)
    def sched_getaffinity(pid: int, /) -> set[int]:
        mine = cores() if pid in (0, os.getpid()) else None
        return stock(pid) if mine is None else chosen.get(current_rank(), mine)

    @functools.wraps(stock_set)
    def sched_setaffinity(pid: int, mask: Iterable[int], /) -> None:
        mine = cores() if pid in (0, os.getpid()) else None
        if mine is None:
            stock_set(pid, mask)
            return
        kept = mine.intersection(mask)
        if not kept:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        chosen[current_rank()] = kept

    patches.set(os, "sched_getaffinity", sched_getaffinity)
    patches.set(os, "sched_setaffinity", sched_setaffinity)
    return on_cores


def _install_popen(
    patches: Patches, more: Callable[[Variables], Variables], on_cores: Callable[[], AbstractContextManager[None]]
) -> None:
    stock: Any = subprocess.Popen.__init__

    @functools.wraps(stock)
    def start(self: object, *args: Any, **kwargs: Any) -> None:
        given = args[_ENV] if len(args) > _ENV else kwargs.get("env")
        environ = dict(os.environ) if given is None else given
        environ = {**environ, **more(environ)}
        if len(args) > _ENV:
            args = (*args[:_ENV], environ, *args[_ENV + 1 :])
        else:
            kwargs["env"] = environ
        with on_cores():
            stock(self, *args, **kwargs)

    patches.set(subprocess.Popen, "__init__", start)


@contextmanager
def _told(variables: Variables) -> Iterator[None]:
    """For the length of a block, the C library's variables are these."""
    wanted = {os.fsencode(name): os.fsencode(value) for name, value in variables.items()}
    before = _c_variables()
    _turn(before, wanted)
    try:
        yield
    finally:
        _turn(_c_variables(), before)


def _turn(present: dict[bytes, bytes], wanted: dict[bytes, bytes]) -> None:
    for name in present.keys() - wanted.keys():
        os.unsetenv(name)
    for name, value in wanted.items():
        if present.get(name) != value:
            os.putenv(name, value)


def _c_variables() -> dict[bytes, bytes]:
    """The C library's variables."""
    lines = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    found, at = {}, 0
    while lines and (line := lines[at]) is not None:
        name, _, value = line.partition(b"=")
        found[name] = value
        at += 1
    return found
