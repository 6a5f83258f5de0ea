"""What programs leave to their end (``atexit``): each rank's is done at the end of its program, while it is a rank."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

import torch

from kernbench.errors import KernbenchError
from kernbench.own_files import is_own
from kernbench.simulation.ranks.locations import is_installed, is_pythons
from kernbench.torch_backend.patches import Patches

_BESIDE_TORCH = os.path.dirname(os.path.dirname(torch.__file__))
_TORCHS = tuple(os.path.join(_BESIDE_TORCH, name, "") for name in ("torch", "triton"))

_Task = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class AtExit:
    """The tasks of the programs that run: each in a thread of its own, in which it registers them.

    What the standard library and torch register, and packages when they are imported, is the process's, as it is without
    a simulation. A program that fails does nothing at its end: others may not come to what it would wait for.

    Args:
        aborting: whether ranks are being unwound.
    """

    def __init__(self, aborting: Callable[[], bool]) -> None:
        self._aborting = aborting
        self._tasks: dict[int, list[_Task]] = {}
        self._register, self._unregister = atexit.register, atexit.unregister

    def install(self, patches: Patches) -> None:
        """Have ``atexit`` ask here."""
        patches.set(atexit, "register", self.register)
        patches.set(atexit, "unregister", self.unregister)

    def register(self, func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        """``atexit.register``."""
        tasks = self._tasks.get(threading.get_ident())
        if tasks is None or not _is_programs(sys._getframe(1).f_code):
            return self._register(func, *args, **kwargs)
        tasks.append((func, args, kwargs))
        return func

    def unregister(self, func: Callable[..., Any], /) -> None:
        """``atexit.unregister``."""
        tasks = self._tasks.get(threading.get_ident(), [])
        tasks[:] = [task for task in tasks if task[0] != func]
        self._unregister(func)

    @contextmanager
    def program(self) -> Iterator[None]:
        """For the length of a block a program runs in this thread; at its end its tasks are done, the last one first."""
        tasks = self._tasks[threading.get_ident()] = []
        try:
            try:
                yield
            except SystemExit:
                if not self._aborting():
                    _do(tasks)
                raise
            _do(tasks)
        finally:
            del self._tasks[threading.get_ident()]


def _is_programs(code: CodeType) -> bool:
    """Whether what ``code`` registers is the program's own."""
    file = code.co_filename
    if is_own(file) or file.startswith(_TORCHS) or is_pythons(file):
        return False
    return code.co_name != "<module>" or not is_installed(file)


def _do(tasks: list[_Task]) -> None:
    """As Python does: what a task raises is shown, and the others are done."""
    while tasks:
        func, args, kwargs = tasks.pop()
        try:
            func(*args, **kwargs)
        except KernbenchError:  # a deadlock is one
            raise
        except SystemExit:
            continue
        except Exception:
            print(f"Exception ignored in atexit callback: {func!r}", file=sys.stderr)
            traceback.print_exc()
