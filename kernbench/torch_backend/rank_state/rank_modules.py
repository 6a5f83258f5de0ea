"""The modules of a program are executed by every rank, as they are in processes of their own (ADR 0116).

A module keeps what belongs to a process in its globals, in its classes, in objects, and in what it computes when it is
imported. Copying all of that would never end; so each rank imports the program's modules itself, and ``sys.modules`` has the
entries of the running rank. A class then differs between ranks as it does between processes: what is pickled in one is found by
name in the other.

A program's modules are those that its ranks are the first to import, or that it has imported itself before it spawned them, and
that are Python: its own files, wherever ``sys.path`` leads to them, and installed packages without compiled parts. Python's own
library, packages that kernbench or torch have imported before, and packages with compiled parts, which exist once per process,
are shared. So is an installed
package that cannot be executed twice, because it enters itself into one of those: the summary names it.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec, SourceFileLoader
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from kernbench.simulation.ranks.locations import is_installed, is_pythons
from kernbench.torch_backend.rank_state.replaced_attributes import PartingLoader
from kernbench.torch_backend.relies_on import Reliance

_bootstrap: Any = importlib._bootstrap

RELIES_ON = (
    Reliance("importlib._bootstrap._module_locks", "imports lock by name there: ranks that import the same do not wait for "
             "each other", looked_up_by=("importlib._bootstrap._get_module_lock",)),
)  # fmt: skip


_AGENTS = sys.stdlib_module_names | {
    "_frozen_importlib", "_frozen_importlib_external", "importlib_metadata", "pkg_resources", "pluggy",
}  # fmt: skip
"""Modules that import for others, plugins by their entry points, say: what asked them is who imports."""

_NONE: frozenset[str] = frozenset()

SPAWNED_MAIN = "__mp_main__"
"""What :mod:`multiprocessing` calls the ``__main__`` of a process, as long as it executes that again."""


class RankModules:
    """The modules that each rank of one spawn has of its own.

    Args:
        named: packages that are, whatever they consist of.
        shared: packages that are not.
        imported: modules that main has imported for the program, which ranks do not inherit.
        remark: receives, as a sentence, a package that ranks have to share.
    """

    def __init__(
        self,
        named: Collection[str] = (),
        shared: Collection[str] = (),
        imported: Collection[str] = (),
        *,
        remark: Callable[[str], object],
    ) -> None:
        self._remark = remark
        self._imported = imported
        self._resident: int | None = None
        self._executing: set[tuple[int | None, str]] = set()
        self._kinds: dict[str, bool] = {}
        self._named, self._not = frozenset(named), frozenset(shared)
        self._of: dict[int | None, dict[str, ModuleType]] = {None: {}}
        self._names: dict[int | None, frozenset[str]] = {}
        self._known_names: dict[frozenset[str], frozenset[str]] = {}
        self._gone: dict[tuple[frozenset[str], frozenset[str]], tuple[str, ...]] = {}
        self._locks: dict[int | None, dict[str, Any]] = {}
        self._extensions: dict[str, ModuleType] = {}
        self._installed: set[str] = set()
        self._count = 0
        self._changed = False
        self._again = self._executed_again()

    def open(self) -> None:
        """What is loaded by now is shared, but for what the program has imported. From here on :meth:`switch` switches."""
        self._kinds = {_top(name): False for name in sys.modules}
        self._kinds.update(dict.fromkeys((*self._again, SPAWNED_MAIN), True))
        self._count = len(sys.modules)
        self._locks[None] = _bootstrap._module_locks
        self._changed = True

    def executes(self, name: str) -> bool:
        """Whether each rank executes a module that main has imported for the program."""
        return _top(name) in self._again

    def is_own(self, name: str) -> bool:
        """Whether a module is one that each rank executes."""
        return bool(self._kinds.get(_top(name))) or name == "__main__"

    def may_be_own(self, name: str) -> bool:
        """The same of one that may not have been imported yet."""
        top = _top(name)
        return self.is_own(name) or (top not in self._kinds and top not in sys.stdlib_module_names)

    def close(self) -> None:
        """Forget the ranks' modules; main runs by now. Idempotent."""
        if None in self._locks:
            _bootstrap._module_locks = self._locks[None]
        self._of, self._names, self._locks = {None: {}}, {}, {}
        self._extensions.clear()

    def _executed_again(self) -> set[str]:
        """Packages that main has imported for the program, and that each rank executes itself.

        Not those that a shared module has something of: it would go on with main's.
        """
        loaded = {name: found for name in self._imported if isinstance(found := sys.modules.get(name), ModuleType)}
        own = {
            name
            for name, module in loaded.items()
            if _is_top(name) and module.__spec__ and self._is_own(module.__spec__)
        }
        shared = [module for name, module in loaded.items() if _top(name) not in own]
        while shared:
            for top in _packages_in(shared.pop()) & own & self._installed:
                own.discard(top)
                shared += [module for name, module in loaded.items() if _top(name) == top]
        return own

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None, asker: object
    ) -> ModuleSpec | None:
        """Where a module is that each rank executes; None if it is shared, or not there. ``asker`` is not asked."""
        top = _top(name)
        kind = self._kinds.get(top)
        if kind is False:
            return None
        spec = ask_others(name, path, target, asker)
        if spec is None:
            return None
        if kind is None:
            kind = self._kinds[top] = top == name and self._is_own(spec)
        if not kind:
            return None
        self._changed = True
        if isinstance(spec.loader, ExtensionFileLoader):
            spec.loader = _Once(spec.loader.name, spec.loader.path, self._extensions)
        elif type(spec.loader) is SourceFileLoader and top in self._installed:
            spec.loader = _ForEachRank(spec.loader.name, spec.loader.path)
            spec.loader.execution = self._execution
        elif type(spec.loader) is SourceFileLoader:
            spec.loader = PartingLoader(spec.loader.name, spec.loader.path)
        return spec

    @contextmanager
    def _execution(self, name: str) -> Iterator[None]:
        """A block in which an installed module is executed. If it fails where it has not in another rank, that is shared."""
        me = self._resident, name
        self._executing.add(me)
        try:
            yield
        except Exception as error:
            if not self._share(name, error):
                raise
        finally:
            self._executing.discard(me)

    def _share(self, name: str, error: Exception) -> bool:
        """Take another rank's module, and if it is a whole package all of that; false if there is none."""
        top = _top(name)
        if name != top and (self._resident, top) in self._executing:
            return False  # it is the whole package that fails
        for rank, theirs in self._of.items():
            if rank == self._resident or name not in theirs or {(rank, name), (rank, top)} & self._executing:
                continue
            taken = {each: theirs[each] for each in theirs if each == name or each.startswith(f"{name}.")}
            if name == top:
                self._kinds[top] = False
                for modules in self._of.values():
                    for each in [each for each in modules if each.partition(".")[0] == top]:
                        del modules[each]
                self._names = {each: self._interned(modules) for each, modules in self._of.items()}
            sys.modules.update(taken)
            self._changed = True
            self._remark(
                f"shared by all ranks: the module {name}, which cannot be executed once for each ({type(error).__name__}: "
                f"{str(error).strip().splitlines()[0] if str(error).strip() else 'no message'})"
            )
            return True
        return False

    def _interned(self, modules: Mapping[str, ModuleType]) -> frozenset[str]:
        names = frozenset(modules)
        return self._known_names.setdefault(names, names)

    def _is_own(self, spec: ModuleSpec) -> bool:
        if spec.name in self._not:
            return False
        places = [os.path.realpath(place) for place in spec.submodule_search_locations or [spec.origin or ""]]
        if not all(os.path.exists(place) for place in places):
            return False  # built into Python, say
        if any(is_installed(place) or _has_records(os.path.dirname(place)) for place in places):
            self._installed.add(spec.name)
            python = all(_is_python(place) for place in places)
            return (python and (spec.name in self._imported or not self._asked_by_shared())) or spec.name in self._named
        return spec.name in self._named or not any(map(is_pythons, places))

    def _asked_by_shared(self) -> bool:
        """Whether a shared package wants what is being imported: it would keep one rank's for all of them."""
        frame: Any = inspect.currentframe()
        while frame is not None:
            top = str(frame.f_globals.get("__name__", "")).partition(".")[0]
            if top != __name__.partition(".")[0] and top not in _AGENTS:
                return self._kinds.get(top) is False and top != "__main__"
            frame = frame.f_back
        return False

    def switch(self, leaving: int | None, entering: int | None) -> None:
        """Put the modules of one rank in the place of those of another."""
        modules = sys.modules
        if self._changed or len(modules) != self._count:
            self._changed = False
            kinds = self._kinds
            mine = {name: modules[name] for name in list(modules) if kinds.get(_top(name))}
            self._of[leaving], self._names[leaving] = mine, self._interned(mine)
        theirs = self._of.get(entering, {})
        before, after = self._names.get(leaving, _NONE), self._names.get(entering, _NONE)
        if before is not after:
            gone = self._gone.get((before, after))
            if gone is None:  # a set of names knows its hash once it has been asked
                gone = self._gone[before, after] = tuple(before - after)
            for name in gone:
                modules.pop(name, None)
        modules.update(theirs)
        self._count = len(modules)
        self._resident = entering
        _bootstrap._module_locks = self._locks.setdefault(entering, {})


def _top(name: str) -> str:
    return name.partition(".")[0]


def _is_top(name: str) -> bool:
    return "." not in name


def _packages_in(module: ModuleType) -> set[str]:
    """The packages of the modules, classes, functions and other objects that are globals of a module."""
    found = set()
    for value in list(vars(module).values()):
        if isinstance(value, ModuleType):
            found.add(_top(value.__name__))
        else:
            owner = value if isinstance(value, type | FunctionType) else type(value)
            found.add(_top(str(owner.__module__)))
    return found


def ask_others(name: str, path: Sequence[str] | None, target: ModuleType | None, asker: object) -> ModuleSpec | None:
    """Where a module is, as finders other than ``asker`` say."""
    for finder in sys.meta_path:
        find = None if finder is asker else getattr(finder, "find_spec", None)
        if find is not None and (spec := find(name, path, target)) is not None:
            found: ModuleSpec = spec
            return found
    return None


@functools.cache
def _has_records(folder: str) -> bool:
    """Whether a folder is one that packages have been installed into (``pip install --target``, say)."""
    return next(Path(folder).glob("*.dist-info"), None) is not None


@functools.cache
def _is_python(place: str) -> bool:
    """Whether an installed package or module has no compiled parts."""
    if not os.path.isdir(place):
        return not place.endswith(tuple(EXTENSION_SUFFIXES))
    return not any(name.endswith(".so") or ".so." in name for _, _, names in os.walk(place) for name in names)


class _ForEachRank(PartingLoader):
    """An installed module is executed by each rank."""

    execution: Callable[[str], AbstractContextManager[None]]

    def exec_module(self, module: ModuleType) -> None:
        execution = self.execution
        del self.execution  # the module keeps its loader
        with execution(self.name):
            super().exec_module(module)


class _Once(ExtensionFileLoader):
    """A compiled module is there once: every rank's import finds the same."""

    def __init__(self, name: str, path: str, loaded: dict[str, ModuleType]) -> None:
        super().__init__(name, path)
        self._loaded = loaded

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        known = self._loaded.get(spec.name)
        return super().create_module(spec) if known is None else known

    def exec_module(self, module: ModuleType) -> None:
        if self.name not in self._loaded:
            self._loaded[self.name] = module
            super().exec_module(module)
