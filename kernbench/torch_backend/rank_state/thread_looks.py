"""Where a rank's thread looks at what another one is to do: these are :class:`.ThreadLooks`.

They are ``Event.is_set``, ``Future.done``, ``Thread.is_alive``, a queue's ``empty`` and ``full``, its ``get`` and ``put`` where
these do not wait, locks and semaphores that are tried, and reads of what processes share (``multiprocessing.Value`` and
``Array``), each value of its own. A variable that another thread sets is not seen.
"""

from __future__ import annotations

import functools
import queue
import sys
import threading
from collections.abc import Callable
from concurrent import futures
from multiprocessing import sharedctypes
from typing import Any

from kernbench.scheduler.crew import acting_crew, acts_for_a_rank, current_member, is_forked
from kernbench.simulation.time.thread_looks import PATIENCE, ThreadLooks
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

RELIES_ON = (
    Reliance("sys._getframe", "the module that looks"),
    Reliance("multiprocessing.sharedctypes.Synchronized", "it reads and writes by a property", has=("value",),
             holds=lambda cls: isinstance(cls.value, property)),
)  # fmt: skip

_Thread: Any = threading.Thread
_Queue: Any = queue.Queue

_NOT_THE_PROGRAMS = ("threading", "kernbench.")
"""How the names of modules begin whose looks are not the program's."""


class Looks:
    """The looks of threads that may have no turn."""

    def __init__(self, looks: ThreadLooks) -> None:
        self._looks = looks
        self._without_a_turn = threading.local()

    def did(self) -> None:
        """The running thread has done what another one may look at."""
        if acting_crew() is not None:
            self._looks.did()

    def saw(self, what: object, *, ready: bool) -> None:
        """See :meth:`.ThreadLooks.saw`. A thread without a turn that looks in vain very often takes turns from then on."""
        if acting_crew() is not None:
            self._looks.saw(id(what), ready=ready)
        elif not ready and current_member() is not None and not is_forked():
            mine = vars(self._without_a_turn)
            mine["count"] = mine.get("count", 0) + 1
            if mine["count"] > PATIENCE:
                mine.clear()
                acts_for_a_rank()

    def install(self, patches: Patches) -> None:
        """Replace them."""
        for kind, name, ready in (
            (threading.Event, "is_set", True),
            (futures.Future, "done", True),
            (_Thread, "is_alive", False),
            (_Queue, "empty", False),
            (_Queue, "full", False),
        ):
            patches.set(kind, name, self._looking(getattr(kind, name), ready))
        patches.set(threading.Semaphore, "acquire", self._trying(threading.Semaphore.acquire))
        patches.set(threading.Event, "set", self._doing(threading.Event.set))
        for shared, name in (
            (sharedctypes.Synchronized, "value"),
            (sharedctypes.SynchronizedString, "value"),
            (sharedctypes.SynchronizedArray, "__getitem__"),
        ):
            patches.set(shared, name, self._reading(getattr(shared, name)))
        patches.set(
            sharedctypes.SynchronizedArray, "__setitem__", self._doing(sharedctypes.SynchronizedArray.__setitem__)
        )
        for name, failed in (("get", queue.Empty), ("put", queue.Full)):
            patches.set(_Queue, name, self._asking(getattr(_Queue, name), failed))

    def _looking(self, stock: Callable[..., bool], ready: bool) -> Callable[..., bool]:
        """A method that says how things are; they are ready if that is ``ready``."""

        @functools.wraps(stock)
        def method(what: Any) -> bool:
            found = stock(what)
            if not sys._getframe(1).f_globals.get("__name__", "").startswith(_NOT_THE_PROGRAMS):
                self.saw(what, ready=found is ready)
            return found

        return method

    def _reading(self, stock: Any) -> Any:
        """A method, or a property, that gives what is in shared memory. Any process may change that."""
        if isinstance(stock, property):
            assert stock.fget is not None
            assert stock.fset is not None
            return property(self._reading(stock.fget), self._doing(stock.fset))

        @functools.wraps(stock)
        def method(what: Any, *args: Any) -> Any:
            found = stock(what, *args)
            if acting_crew() is not None and not isinstance(found, list):
                self._looks.saw(hash((id(what), *args, found)), ready=True)
            return found

        return method

    def _trying(self, stock: Callable[..., bool]) -> Callable[..., bool]:
        """A method that takes something, or says that it could not."""

        @functools.wraps(stock)
        def acquire(what: Any, blocking: bool = True, timeout: float | None = None) -> bool:
            taken = stock(what, blocking, timeout)
            if taken:
                self.did()
            elif not blocking:
                self.saw(what, ready=False)
            return taken

        return acquire

    def _asking(self, stock: Callable[..., Any], failed: type[Exception]) -> Callable[..., Any]:
        """A method that says by an exception that it could not do something."""

        @functools.wraps(stock)
        def ask(what: object, *args: Any, **kwargs: Any) -> Any:
            try:
                given = stock(what, *args, **kwargs)
            except failed:
                self.saw(what, ready=False)
                raise
            self.did()
            return given

        return ask

    def _doing(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        """A method that changes how things are."""

        @functools.wraps(stock)
        def change(what: Any, *args: Any) -> None:
            stock(what, *args)
            self.did()

        return change
