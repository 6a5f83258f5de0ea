"""Handlers of signals run between a rank's calls to the simulation, not in them: half a message is none.

It is so where ranks are what they stand for, too: Python runs handlers between two of its own instructions, and a collective
is one call of C++.
"""

from __future__ import annotations

import functools
import inspect
import signal
from collections.abc import Callable
from functools import partial
from threading import get_ident, main_thread
from types import FunctionType, MethodType
from typing import Any

_stock_signal, _stock_getsignal = signal.signal, signal.getsignal


class HeldSignals:
    """A block in which handlers do not run; what has come meanwhile is handled at its end. May be nested.

    Attributes:
        handles: whether the program has set a handler.
        begun: called when it sets one.
        held: called when one is held: the block may wait for long.
    """

    def __init__(self) -> None:
        self.handles = False
        self.begun: Callable[[], None] = lambda: None
        self.held: Callable[[], None] = lambda: None
        self._main = main_thread().ident
        self._depth = 0
        self._come: list[tuple[Any, int]] = []

    def __enter__(self) -> None:
        if get_ident() == self._main:
            self._depth += 1

    def __exit__(self, *_: object) -> None:
        if get_ident() == self._main:
            self._depth -= 1
            while self._come and not self._depth:
                handler, number = self._come.pop(0)
                handler(number, inspect.currentframe())

    def install(self) -> None:
        """From now on, until this process ends, handlers that its program sets are held."""

        @functools.wraps(_stock_signal)
        def set_handler(signalnum: int, handler: Any) -> Any:
            held = callable(handler) and handler is not signal.default_int_handler
            if held and not self.handles:
                self.handles = True
                self.begun()
            return _given(_stock_signal(signalnum, _Held(self, handler) if held else handler))

        @functools.wraps(_stock_getsignal)
        def get_handler(signalnum: int) -> Any:
            return _given(_stock_getsignal(signalnum))

        signal.signal, signal.getsignal = set_handler, get_handler
        if get_ident() == self._main:
            for each in signal.valid_signals():
                handler = _stock_getsignal(each)
                if isinstance(handler, FunctionType | MethodType | partial) and not _is_runs(
                    handler
                ):  # it was there before
                    signal.signal(each, handler)

    def come(self, handler: Any, number: int, frame: object) -> None:
        """A signal has come."""
        if self._depth:
            self._come.append((handler, number))
            self.held()
        else:
            handler(number, frame)


class _Held:
    """A handler that is held."""

    def __init__(self, signals: HeldSignals, handler: object) -> None:
        self.handler = handler
        self._signals = signals

    def __call__(self, number: int, frame: object) -> None:
        self._signals.come(self.handler, number, frame)


def _is_runs(handler: object) -> bool:
    """Whether it ends the run: the process that this one was forked from has it."""
    return str(getattr(handler, "__module__", "")).startswith("kernbench.scheduler.")


def _given(handler: object) -> Any:
    return handler.handler if isinstance(handler, _Held) else handler
