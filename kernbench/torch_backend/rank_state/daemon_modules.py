"""Daemons of a rank that take no turns, where they need modules that each rank executes itself: they take turns from then on.

Such a thread runs beside all ranks, and ``sys.modules`` has the entries of whichever rank runs. It would import another rank's
module, and pickle or unpickle by the names of another rank's classes.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import multiprocessing.reduction
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

from kernbench.scheduler.crew import acting_crew, acts_for_a_rank, current_member
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

_Pickler: Any = multiprocessing.reduction.ForkingPickler

RELIES_ON = (
    Reliance("builtins.__import__", "an import statement calls it, and what finds classes by name as it unpickles"),
    Reliance("importlib.import_module", "imports by a name that is computed"),
    Reliance("multiprocessing.reduction.ForkingPickler", "what processes send each other is pickled by it", has=("dumps",)),
)  # fmt: skip


def install(patches: Patches, is_own: Callable[[str], bool]) -> None:
    """A daemon is about to begin. ``is_own``: whether each rank may execute a module itself, by its name."""
    patches.set(builtins, "__import__", _imports(builtins.__import__, is_own))
    patches.set(importlib, "import_module", _imports_by_name(importlib.import_module, is_own))
    patches.set(_Pickler, "dumps", _dumps(_Pickler.dumps, is_own))


def _has_no_turn() -> bool:
    return current_member() is not None and acting_crew() is None


def _imports(stock: Callable[..., Any], is_own: Callable[[str], bool]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def import_(
        name: str, globals: Mapping[str, object] | None = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:
        if current_member() is not None and is_own(name if not level else str((globals or {}).get("__package__"))):
            acts_for_a_rank()
        return stock(name, globals, locals, fromlist, level)

    return import_


def _imports_by_name(stock: Callable[..., Any], is_own: Callable[[str], bool]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def import_module(name: str, package: str | None = None) -> Any:
        if current_member() is not None and is_own(str(package) if name.startswith(".") else name):
            acts_for_a_rank()
        return stock(name, package)

    return import_module


def _dumps(stock: Any, is_own: Callable[[str], bool]) -> Any:
    class Asking(_Pickler):
        """Asks for a turn before it looks a class or function up by its name."""

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, type | FunctionType) and is_own(str(obj.__module__)):
                acts_for_a_rank()
            return NotImplemented

    def dumps(kind: object, obj: Any, protocol: int | None = None) -> Any:
        return stock.__func__(Asking if _has_no_turn() else kind, obj, protocol)

    return classmethod(dumps)
