"""What a program changes of the interpreter that ranks share: it is as it was when they have ended, as if each was a process.

Settings that one rank makes hold for all of them meanwhile. Python's own names and modules are there again as soon as a
rank has ended, whatever it has put in their place: what explains how it did needs them.
"""

from __future__ import annotations

import builtins
import functools
import gc
import locale
import logging
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any

import torch

from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

RELIES_ON = (
    Reliance(
        "torch._tensor_str.PRINT_OPTS",
        "torch.set_printoptions keeps there what was set",
        has=("precision", "linewidth"),
    ),
)

_BUILTINS, _MODULES = builtins.__dict__, sys.modules


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _switch_collector(on: bool) -> None:
    (gc.enable if on else gc.disable)()


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


_use_deterministic = torch.use_deterministic_algorithms  # torch's own: its name is patched while ranks run


def _set_deterministic(value: tuple[bool, bool]) -> None:
    _use_deterministic(value[0], warn_only=value[1])


DETERMINISTIC = (_deterministic, _set_deterministic)
"""Whether kernels are to be deterministic, and whether others are only warned of; how that is read and written."""


def _print_options() -> dict[str, object]:
    return dict(vars(torch._tensor_str.PRINT_OPTS))


def _set_print_options(options: dict[str, Any]) -> None:
    vars(torch._tensor_str.PRINT_OPTS).update(options)


PRINTING = (_print_options, _set_print_options)
"""How tensors are printed; likewise."""

_set_anomaly = torch.set_anomaly_enabled


def _anomaly() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


ANOMALY = (_anomaly, lambda value: _set_anomaly(*value))
"""Whether gradients' errors are explained by what was called forward, and NaNs among them are errors; likewise."""

DEEPEST = 1_000_000
"""Calls within calls that ranks which share a process may make. Python 3.11 counts those of Python's functions alone, and a
recursion without end would take all memory there is, and minutes to be unwound, in which no other thread runs."""


def bound_recursion(patches: Patches) -> None:
    """No limit of recursion that ranks set is above :data:`DEEPEST`."""
    stock = sys.setrecursionlimit

    @functools.wraps(stock)
    def setrecursionlimit(limit: int, /) -> None:
        stock(min(limit, DEEPEST))

    patches.set(sys, "setrecursionlimit", setrecursionlimit)


SETTINGS: tuple[tuple[Callable[[], object], Callable[[Any], Any]], ...] = (
    (sys.getrecursionlimit, sys.setrecursionlimit),
    (sys.getswitchinterval, sys.setswitchinterval),
    (gc.isenabled, _switch_collector),
    (gc.get_threshold, lambda thresholds: gc.set_threshold(*thresholds)),
    (gc.get_debug, gc.set_debug),
    (lambda: locale.setlocale(locale.LC_ALL), lambda name: locale.setlocale(locale.LC_ALL, name)),
    (_umask, os.umask),
    (lambda: logging.root.manager.disable, logging.disable),
    (lambda: logging.root.level, logging.root.setLevel),
    DETERMINISTIC,
    ANOMALY,
    (lambda: torch.backends.opt_einsum.strategy, lambda name: setattr(torch.backends.opt_einsum, "strategy", name)),
    PRINTING,
)
"""By how they are read and written."""

HOOKS: tuple[tuple[object, str], ...] = (
    (sys, "displayhook"), (sys, "unraisablehook"), (sys, "breakpointhook"), (threading, "excepthook"), (tempfile, "tempdir"),
)  # fmt: skip
"""Names of modules that are there to be set."""


class InterpreterState:
    """The interpreter's settings, names and modules as they are when this is made."""

    def __init__(self) -> None:
        self._settings = [read() for read, _ in SETTINGS]
        self._hooks = [getattr(owner, name) for owner, name in HOOKS]
        self._builtins, self._modules = _BUILTINS.copy(), _MODULES.copy()

    def put_back_names(self) -> None:
        """Let Python have its own names, and the modules that there were where all have been taken away."""
        _BUILTINS.update(self._builtins)
        if _MODULES.get("sys") is not sys:
            _MODULES.update(self._modules)

    def put_back(self) -> None:
        """Let all be as it was."""
        self.put_back_names()
        for (read, write), before in zip(SETTINGS, self._settings, strict=True):
            if read() != before:
                write(before)
        for (owner, name), before in zip(HOOKS, self._hooks, strict=True):
            setattr(owner, name, before)
