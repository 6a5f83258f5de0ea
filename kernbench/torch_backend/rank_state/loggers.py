"""Loggers belong to the rank that sets them up.

``logging.basicConfig`` does nothing where the root logger has handlers, so of ranks that share one only the first would have
its format, and a rank's level would be that of all ranks. While ranks run, what a logger keeps (level, handlers, filters,
whether it propagates or is disabled) and ``logging.disable`` are read and written by rank. A rank begins with what main
has; a handler that main has made is the same object for all. What is set before ranks run, and after them, is main's.

Looking costs nothing at a switch, and a third of a microsecond at each look of a logger at itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.rank_state.lazy_generators import LazyGenerators
from kernbench.torch_backend.rank_state.module_globals import ModuleGlobals
from kernbench.torch_backend.rank_state.rank_attributes import RankAttribute
from kernbench.torch_backend.relies_on import Reliance

_OF_A_LOGGER: dict[str, Callable[[], object]] = {
    "level": int, "handlers": list, "filters": list, "propagate": lambda: True, "disabled": bool, "_cache": dict,
}  # fmt: skip
"""What a logger keeps, and what a new one has."""

_OF_ALL: dict[str, Callable[[], object]] = {"_disable": int}
"""What their manager keeps."""

_GLOBALS = ("_handlers", "_handlerList", "_loggerClass", "_logRecordFactory", "raiseExceptions", "lastResort")
"""Globals of :mod:`logging`. ``logging.config`` closes the handlers that it finds there."""

RELIES_ON = (
    Reliance("logging.root", "a logger keeps this in its dictionary", holds=lambda root: {*_OF_A_LOGGER} <= vars(root).keys()),
    Reliance("logging.root.manager", "so does their manager", holds=lambda manager: {*_OF_ALL} <= vars(manager).keys()),
    Reliance("logging", "this is the process's", has=(*_GLOBALS, "_addHandlerRef")),
)  # fmt: skip


def install(patches: Patches, resident: LazyGenerators, modules: ModuleGlobals) -> None:
    """Let loggers be each rank's: that of ``resident``, whose state is the process's."""

    def whose() -> int | None:
        return resident.resident

    for owner, attributes in ((logging.Logger, _OF_A_LOGGER), (logging.Manager, _OF_ALL)):
        for name, make in attributes.items():
            patches.add(owner, name, RankAttribute(name, make, whose))
    stock = logging._addHandlerRef  # type: ignore[attr-defined]

    def add_handler_ref(handler: logging.Handler) -> None:
        if whose() is not None:
            modules.take(logging, _GLOBALS)
        stock(handler)

    patches.set(logging, "_addHandlerRef", add_handler_ref)
