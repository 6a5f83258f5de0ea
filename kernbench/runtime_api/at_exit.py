"""What programs leave to their end (``atexit``, ``weakref.finalize``): each rank's is done at the end of its program, while it
is a rank."""

from __future__ import annotations

import atexit
import functools
import inspect
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

import torch

from kernbench.errors import KernbenchError
from kernbench.own_files import is_own
from kernbench.scheduler import user_traceback
from kernbench.simulation.ranks.locations import is_installed, is_pythons
from kernbench.torch_backend.patches import Patches

_BESIDE_TORCH = os.path.dirname(os.path.dirname(torch.__file__))
_TORCHS = tuple(os.path.join(_BESIDE_TORCH, name, "") for name in ("torch", "triton"))

_PRUNED = 256
"""Of so many finalizers, and twice as many each time, those that are done are forgotten."""

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
        self._tasks: dict[tuple[int, int], list[_Task]] = {}
        self._finalizers: dict[tuple[int, int], list[Any]] = {}
        self._register, self._unregister = atexit.register, atexit.unregister

    def install(self, patches: Patches) -> None:
        """Have ``atexit`` ask here, and ``weakref.finalize`` tell."""
        patches.set(atexit, "register", self.register)
        patches.set(atexit, "unregister", self.unregister)
        patches.set(weakref.finalize, "__init__", self._finalizes(weakref.finalize.__init__))

    def _finalizes(self, stock: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(stock)
        def init(
            finalizer: object, obj: object, func: Callable[..., object], /, *args: object, **kwargs: object
        ) -> None:
            stock(finalizer, obj, func, *args, **kwargs)
            mine = self._finalizers.get(_me())
            if mine is None or _is_process_wide(func):
                return
            if len(mine) >= _PRUNED and len(mine).bit_count() == 1:
                mine[:] = [each for each in mine if each.alive]
            mine.append(finalizer)

        return init

    def register(self, func: Callable[..., object], /, *args: object, **kwargs: object) -> Callable[..., Any]:
        """``atexit.register``."""
        tasks = self._tasks.get(_me())
        if tasks is None or not _is_programs(sys._getframe(1).f_code):
            return self._register(func, *args, **kwargs)
        tasks.append((func, args, kwargs))
        return func

    def unregister(self, func: Callable[..., object], /) -> None:
        """``atexit.unregister``."""
        tasks = self._tasks.get(_me(), [])
        tasks[:] = [task for task in tasks if task[0] != func]
        self._unregister(func)

    @contextmanager
    def program(self) -> Iterator[None]:
        """For the length of a block a program runs in this thread; at its end its tasks are done, the last one first."""
        me = _me()
        tasks: list[_Task] = []
        finalizers: list[Any] = []
        self._tasks[me], self._finalizers[me] = tasks, finalizers
        try:
            try:
                yield
            except SystemExit:
                if not self._aborting():
                    _do(tasks, finalizers)
                raise
            _do(tasks, finalizers)
        finally:
            for each in finalizers:  # of a program that has failed
                each.atexit = False
            del self._tasks[me], self._finalizers[me]


def _me() -> tuple[int, int]:
    """The thread that runs, and its process: a fork of it is another program, and leaves what it does to Python."""
    return os.getpid(), threading.get_ident()


def _is_programs(code: CodeType) -> bool:
    """Whether what ``code`` registers is the program's own."""
    file = code.co_filename
    if is_own(file) or file.startswith(_TORCHS) or is_pythons(file):
        return False
    return code.co_name != "<module>" or not is_installed(file)


def _is_process_wide(func: Callable[..., object]) -> bool:
    """Whether a finalizer's function is torch's or ours, and what it ends may be all ranks'."""
    code = getattr(inspect.unwrap(getattr(func, "__func__", func)), "__code__", None)
    return code is None or is_own(code.co_filename) or code.co_filename.startswith(_TORCHS)


def _do(tasks: list[_Task], finalizers: list[Any]) -> None:
    """As Python does: what a task raises is shown, and the others are done. Finalizers, which are a task of their own, come
    after those."""
    tasks[:0] = [(each, (), {}) for each in finalizers if each.alive and each.atexit]
    while tasks:
        func, args, kwargs = tasks.pop()
        try:
            func(*args, **kwargs)
        except KernbenchError:  # a deadlock is one
            raise
        except SystemExit:
            continue
        except Exception as error:
            said = f"Exception ignored in atexit callback: {func!r}\n{user_traceback(error)}"
            print(said, end="", file=sys.stderr)
