"""``per_rank_modules``: modules whose globals each rank has of its own.

A program for many processes keeps what belongs to one process in module globals (Megatron's ``parallel_state``). Which of
them can change is read off the module: names that one of its functions declares ``global``, names whose value is a list, a
dict or a set, and names that are set from outside. Only these are switched, so a module with sixty such names costs
a few microseconds. Every rank starts with the values that the module had when the ranks were spawned, containers copied.
"""

from __future__ import annotations

import dis
import functools
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator, Sequence
from types import CodeType, ModuleType
from typing import Any
from weakref import WeakValueDictionary

MISSING: object = object()

_STORES = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL"})
_CONTAINERS = (list, dict, set, OrderedDict, defaultdict, Counter, deque, WeakValueDictionary)

ALWAYS = (
    "torch.distributed.tensor._random",
    "torch.distributed.tensor._ops._math_ops",
    "torch.utils._python_dispatch",
)
"""Modules of torch itself that keep per process what belongs to a rank."""

WATCHED = (
    "torch.distributed",
    "torch.distributed.distributed_c10d",
    "torch.distributed.fsdp._fully_shard._fsdp_collectives",
    "torch.distributed.fsdp._fully_shard._fsdp_param_group",
    "torch.storage",
)
"""Modules of torch whose functions programs replace (to count calls, to load what is safe): what a rank sets is its own."""


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _functions(module: ModuleType) -> Iterator[CodeType]:
    """The code of every function that the module defines, also in its classes."""
    seen: set[int] = set()
    pending = list(vars(module).values())
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        value = getattr(value, "__func__", value)
        value = getattr(value, "__wrapped__", value)
        code = getattr(value, "__code__", None)
        if isinstance(code, CodeType):
            if getattr(value, "__module__", None) == module.__name__:
                yield code
        elif isinstance(value, type) and value.__module__ == module.__name__:
            pending += vars(value).values()
        elif isinstance(value, property):
            pending += [part for part in (value.fget, value.fset, value.fdel) if part is not None]


@functools.lru_cache(maxsize=1024)
def _rebound(module: ModuleType) -> frozenset[str]:
    """Names that a function of the module declares ``global``."""
    return frozenset(
        instruction.argval
        for function in _functions(module)
        for code in _codes(function)
        for instruction in dis.get_instructions(code)
        if instruction.opname in _STORES
    )


def rebindable(module: ModuleType) -> list[str]:
    """Names of globals that may be different in each rank."""
    names = set(_rebound(module))
    names |= {name for name, value in vars(module).items() if type(value) in _CONTAINERS and not name.startswith("__")}
    return sorted(names)


class _Watched(ModuleType):
    """A module that notes which of its names are set from outside."""

    def __setattr__(self, name: str, value: Any) -> None:
        note = vars(self).get("__kernbench_note__")
        if note is not None:
            note(self, name, value)
        super().__setattr__(name, value)


class _Switched:
    """One module that is switched."""

    __slots__ = ("cls", "initial", "module", "names", "values")

    def __init__(self, module: ModuleType, names: Sequence[str]) -> None:
        self.module = module
        self.cls: type[ModuleType] = type(module)
        self.names = list(names)
        self.initial = {name: _fresh(vars(module).get(name, MISSING)) for name in self.names}
        self.values: dict[int | None, list[Any]] = {}


class _SwitchedClass:
    """A class whose attributes are switched: those that a rank has set, read off what they were before.

    Args:
        names: those that a rank may set; None: all.
    """

    __slots__ = ("before", "changes", "cls", "names")

    def __init__(self, cls: type, names: set[str] | None = None) -> None:
        self.cls = cls
        self.names = names
        self.before = dict(vars(cls))
        self.changes: dict[int | None, dict[str, object]] = {}

    def switch(self, leaving: int | None, entering: int | None) -> None:
        now, before = vars(self.cls), self.before
        mine: dict[str, Any] = {}
        if self.names is not None or now != before:
            for name in now.keys() | before.keys() if self.names is None else self.names:
                value = now.get(name, MISSING)
                if value is not before.get(name, MISSING):
                    mine[name] = value
        self.changes[leaving] = mine
        theirs = self.changes.get(entering, {})
        for name in mine.keys() | theirs.keys():
            value = theirs.get(name, before.get(name, MISSING))
            if value is not MISSING:
                setattr(self.cls, name, value)
            elif name in now:
                delattr(self.cls, name)

    @property
    def is_idle(self) -> bool:
        """Whether it is for all as it was: no rank's is another's."""
        return self.names is not None and not any(self.changes.values())


class ModuleGlobals:
    """The globals of some modules, for the ranks of one spawn.

    Args:
        prefixes: a module counts if its name is one of these or begins with one and a dot.

    Attributes:
        classes: classes whose attributes are each rank's, too. Looking at them takes time at every switch.
        shared: whether what one rank replaces is replaced for all of them: they stand for threads of one process.
        paused: whether names that are set now are set by us.
    """

    def __init__(self, prefixes: Sequence[str]) -> None:
        self._prefixes = tuple(prefixes)
        self._switched: list[_Switched] = []
        self._known: set[str] = set()
        self._switched_classes: list[_SwitchedClass] = []
        self.classes: Sequence[type] = ()
        self.shared = False
        self.paused = False

    def open(self) -> None:
        """Take in the modules that are loaded by now."""
        for name in list(sys.modules) if self._prefixes else ALWAYS:
            module = sys.modules.get(name)
            if isinstance(module, ModuleType) and self.matches(name):
                self.loaded(module)
        for name in () if self.shared else WATCHED:
            module = sys.modules.get(name)
            if type(module) is ModuleType and name not in self._known:
                self._known.add(name)
                self._watch(_Switched(module, names=()))
        self._switched_classes = [_SwitchedClass(cls) for cls in self.classes]

    def matches(self, name: str) -> bool:
        """Whether a module of this name has globals per rank."""
        return name in ALWAYS or any(name == prefix or name.startswith(prefix + ".") for prefix in self._prefixes)

    def loaded(self, module: ModuleType) -> None:
        """Take in a module, which has just been executed: what it is now, it is for every rank that comes to it."""
        name = module.__name__
        if name in self._known:
            return
        self._known.add(name)
        switched = _Switched(module, rebindable(module))
        if name not in ALWAYS and type(module) is ModuleType:
            self._watch(switched)
        else:
            self._switched.append(switched)

    def _watch(self, switched: _Switched) -> None:
        """Switch a module, and notice the names that are set in it."""
        self._switched.append(switched)
        switched.module.__class__ = _Watched
        vars(switched.module)["__kernbench_note__"] = self._note

    def take(self, module: ModuleType, names: Sequence[str]) -> None:
        """Take in some globals while a rank runs: what they are now stays that rank's, the others and main get copies.

        A module is taken in once.
        """
        if module.__name__ in self._known:
            return
        self._known.add(module.__name__)
        switched = _Switched(module, list(names))
        switched.values[None] = [_fresh(value) for value in switched.initial.values()]
        self._switched.append(switched)

    def part(self, owner: type | ModuleType, name: str) -> None:
        """A rank is about to replace an attribute, for itself: from now on it is each rank's."""
        if self.shared:
            return
        if isinstance(owner, type):
            known = next((each for each in self._switched_classes if each.cls is owner), None)
            if known is None:
                self._switched_classes.append(_SwitchedClass(owner, {name}))
            elif known.names is not None and name not in known.names:
                known.names.add(name)
                known.before[name] = vars(owner).get(name, MISSING)
        elif type(owner) is ModuleType and owner.__name__ not in self._known:
            self._known.add(owner.__name__)
            self._switched.append(_Switched(owner, (name,)))
        else:
            for switched in self._switched:
                if switched.module is owner and type(owner) is not _Watched and name not in switched.names:
                    self._add(switched, name)

    @staticmethod
    def _add(switched: _Switched, name: str) -> None:
        before = vars(switched.module).get(name, MISSING)
        switched.names.append(name)
        switched.initial[name] = before
        for values in switched.values.values():
            values.append(before)

    def _note(self, module: ModuleType, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and sys.modules.get(f"{module.__name__}.{name}") is value:
            self._bound(module, name, value)
            return
        if self.paused:
            return
        for switched in self._switched:
            if switched.module is module and name not in switched.names:
                self._add(switched, name)

    def _bound(self, module: ModuleType, name: str, value: ModuleType) -> None:
        """An import binds a submodule once, for every importer: also where that name has been set before."""
        for switched in self._switched:
            if switched.module is module and name in switched.names:
                at = switched.names.index(name)
                switched.initial[name] = value
                for values in switched.values.values():
                    values[at] = value

    def switch(self, leaving: int | None, entering: int | None) -> None:
        """Save the globals of one rank, and load those of another."""
        for switched in self._switched:
            names = switched.names
            if not names:
                continue
            variables = vars(switched.module)
            present = switched.values[leaving] = [variables.get(name, MISSING) for name in names]
            values = switched.values.get(entering)
            if values is None:
                values = [_fresh(switched.initial[name]) for name in names] if entering is not None else [
                    switched.initial[name] for name in names
                ]  # fmt: skip
            for name, value, before in zip(names, values, present, strict=True):
                if value is before:
                    continue
                if value is MISSING:
                    variables.pop(name, None)
                else:
                    variables[name] = value
        idle = False
        for switched_class in self._switched_classes:
            switched_class.switch(leaving, entering)
            idle = idle or switched_class.is_idle
        if idle:  # what replaces something again says so again
            self._switched_classes = [each for each in self._switched_classes if not each.is_idle]

    def close(self) -> None:
        """Forget what the ranks had; main has its own values back by now."""
        for switched in self._switched:
            if type(switched.module) is _Watched:
                vars(switched.module).pop("__kernbench_note__", None)
                switched.module.__class__ = switched.cls  # type: ignore[assignment]
        self._switched.clear()
        self._switched_classes.clear()
        self._known.clear()


def _fresh(value: Any) -> Any:
    return value.copy() if isinstance(value, _CONTAINERS) else value
