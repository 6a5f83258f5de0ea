"""Loggers belong to the rank that sets them up.

``logging.basicConfig`` does nothing where the root logger has handlers, so of ranks that share one only the first would have
its format, and a rank's level would be that of all ranks. While ranks run, what a logger keeps (level, handlers, filters,
whether it propagates or is disabled) and ``logging.disable`` are read and written by rank. A rank begins with what main
has; a handler that main has made is the same object for all. What is set before ranks run, and after them, is main's.

So is which loggers there are, as far as they are named for modules that each rank executes, or for none: ``name in
logging.root.manager.loggerDict``, by which a program knows whether it has set one up, and ``disable_existing_loggers`` see
those that their rank has asked for. The objects are one for all.

Looking costs nothing at a switch, and a third of a microsecond at each look of a logger at itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

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
    Reliance("logging.root.manager", "so does their manager", has=("getLogger",),
             holds=lambda manager: {*_OF_ALL, "loggerDict"} <= vars(manager).keys()),
    Reliance("logging", "this is the process's", has=(*_GLOBALS, "_addHandlerRef")),
)  # fmt: skip


class _NamesOfRanks:
    """``logging.Manager.loggerDict``, read by rank: a descriptor.

    Args:
        whose: the rank that runs; None: main.
        own: whether a name is of no module that ranks share.
    """

    def __init__(self, whose: Callable[[], int | None], own: Callable[[str], bool]) -> None:
        self._whose = whose
        self._own = own
        self._of_ranks: set[str] = set()
        self._names: dict[int, set[str]] = {}
        self._whole = False

    def __get__(self, owner: object, cls: Any = None) -> Any:
        if owner is None:
            return self
        of_all: dict[str, object] = vars(owner)["loggerDict"]
        rank = self._whose()
        if rank is None or self._whole:
            return of_all
        hidden = self._of_ranks - self._names.get(rank, set())
        return {name: logger for name, logger in of_all.items() if name not in hidden}

    def __set__(self, owner: object, value: Any) -> None:
        vars(owner)["loggerDict"] = value

    def asking(self, stock: Callable[..., logging.Logger]) -> Callable[..., logging.Logger]:
        """``Manager.getLogger``, after which the rank has the logger, and those above it or places for them."""

        def get_logger(manager: logging.Manager, name: str) -> logging.Logger:
            rank = self._whose()
            if rank is not None and isinstance(name, str):
                mine = self._names.setdefault(rank, set())
                if name not in mine and self._own(name):
                    parts = name.split(".")
                    asked = {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
                    self._of_ranks |= asked - vars(manager)["loggerDict"].keys()
                    mine |= asked
            self._whole = True
            try:
                return stock(manager, name)
            finally:
                self._whole = False

        return get_logger


def install(patches: Patches, resident: LazyGenerators, modules: ModuleGlobals, own: Callable[[str], bool]) -> None:
    """Let loggers be each rank's: that of ``resident``, whose state is the process's.

    ``own``: whether a name is of no module that ranks share.
    """

    def whose() -> int | None:
        return resident.resident

    for owner, attributes in ((logging.Logger, _OF_A_LOGGER), (logging.Manager, _OF_ALL)):
        for name, make in attributes.items():
            patches.add(owner, name, RankAttribute(name, make, whose))
    names = _NamesOfRanks(whose, own)
    patches.set(logging.Manager, "getLogger", names.asking(logging.Manager.getLogger))
    patches.add(logging.Manager, "loggerDict", names)
    stock = logging._addHandlerRef  # type: ignore[attr-defined]

    def add_handler_ref(handler: logging.Handler) -> None:
        if whose() is not None:
            modules.take(logging, _GLOBALS)
        stock(handler)

    patches.set(logging, "_addHandlerRef", add_handler_ref)
