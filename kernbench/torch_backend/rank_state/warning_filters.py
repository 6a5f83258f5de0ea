"""Filters and recorders of warnings belong to the rank that changes them.

``warnings.catch_warnings``, ``assertWarns`` and ``pytest.warns`` replace globals of :mod:`warnings` and put back what they
found: ranks that take turns inside such blocks would record each other's warnings and leave in another order than they
entered. From the first such block on, or the first filter that one adds, these globals are each rank's own.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

from kernbench.torch_backend.gpu.device.devices import current_rank
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.rank_state.module_globals import ModuleGlobals
from kernbench.torch_backend.relies_on import Reliance

_NAMES = ("filters", "showwarning", "_showwarnmsg_impl")
_CHANGES = ("simplefilter", "filterwarnings", "resetwarnings")


RELIES_ON = (
    Reliance("warnings", "catching warnings replaces these", has=_NAMES),
    Reliance(
        "warnings.catch_warnings.__enter__",
        "a block begins with it",
        holds=lambda enter: {"filters", "showwarning", "_showwarnmsg_impl"} <= {*enter.__code__.co_names},
    ),
)


def install(patches: Patches, modules: Callable[[], ModuleGlobals]) -> None:
    """Notice a rank's first block, and its first filter."""

    def noticed(stock: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(stock)
        def change(*args: object, **kwargs: Any) -> Any:
            if current_rank() is not None:
                modules().take(warnings, _NAMES)
            return stock(*args, **kwargs)

        return change

    patches.set(warnings.catch_warnings, "__enter__", noticed(warnings.catch_warnings.__enter__))
    for name in _CHANGES:
        patches.set(warnings, name, noticed(getattr(warnings, name)))
