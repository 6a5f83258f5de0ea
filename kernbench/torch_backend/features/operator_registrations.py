"""What a program registers for its operators beside libraries: rules of dispatch modes, and types of its own as arguments.

PyTorch keeps both once per process, by name, and refuses a second registration. Ranks that execute the same program register
the same (``torch.library.triton_op`` a rule, ``register_opaque_type`` a type), so each rank has its own rules, and a type that
one rank has registered is known for the others. A second registration by the same rank is refused as by torch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch._library import simple_registry
from torch._library.utils import RegistrationHandle

from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.rank_state.module_globals import ModuleGlobals
from kernbench.torch_backend.relies_on import Reliance

RELIES_ON = (
    Reliance("torch._library.simple_registry.GenericTorchDispatchRuleHolder", "rules of modes by class, one each",
             has=("register", "find")),
    Reliance("torch._library.utils.RegistrationHandle", "takes a registration back", has=("destroy",)),
    Reliance("torch._C._register_opaque_type", "is called with the name of a class, and refuses one that it has",
             looked_up_by=("torch._library.opaque_object",)),
    Reliance("torch._C._unregister_opaque_type", "takes it back, which torch offers since 2.15",
             looked_up_by=("torch._library.opaque_object",), since="2.15"),
)  # fmt: skip

_types_of_ranks: set[str] = set()
"""Opaque types that ranks have registered, in any simulation, and C++ has, which keeps one until it is taken back."""


@dataclass
class _Registered:
    """What the ranks of one spawn have registered.

    Attributes:
        rules: by operator, rank and class of the mode.
        types: names, by rank.
    """

    rules: dict[tuple[str, int, type], Callable[..., object]] = field(default_factory=dict)
    types: set[tuple[int, str]] = field(default_factory=set)


def install(patches: Patches, whose: Callable[[], int | None], modules: Callable[[], ModuleGlobals]) -> None:
    """Let what ranks register be theirs: that of ``whose()``, None for main, whose registrations are torch's.

    ``modules``: the globals that ranks have of modules, which live as long as the ranks do.
    """
    spawns = WeakKeyDictionary[ModuleGlobals, _Registered]()

    def registered() -> _Registered:
        return spawns.setdefault(modules(), _Registered())

    _install_rules(patches, whose, registered)
    _install_types(patches, whose, registered)


def _install_rules(patches: Patches, whose: Callable[[], int | None], registered: Callable[[], _Registered]) -> None:
    holder: Any = simple_registry.GenericTorchDispatchRuleHolder
    stock_register, stock_find = holder.register, holder.find
    known: set[str] = set()
    """Operators for which a rank has registered one: torch asks at every operation of every mode."""

    def register(self: Any, torch_dispatch_class: type, func: Callable[..., object]) -> Any:
        rank = whose()
        if rank is None:
            return stock_register(self, torch_dispatch_class, func)
        rules, key = registered().rules, (self.qualname, rank, torch_dispatch_class)
        if key in rules or stock_find(self, torch_dispatch_class) is not None:
            raise RuntimeError(
                f"{torch_dispatch_class} already has a `__torch_dispatch__` rule registered for {self.qualname}"
            )
        rules[key] = func
        known.add(self.qualname)
        return RegistrationHandle(lambda: rules.pop(key, None))

    def find(self: Any, torch_dispatch_class: type) -> Callable[..., Any] | None:
        rank = whose() if self.qualname in known else None
        mine = None if rank is None else registered().rules.get((self.qualname, rank, torch_dispatch_class))
        rule: Callable[..., Any] | None = stock_find(self, torch_dispatch_class) if mine is None else mine
        return rule

    patches.set(holder, "register", functools.wraps(stock_register)(register))
    patches.set(holder, "find", functools.wraps(stock_find)(find))


def _install_types(patches: Patches, whose: Callable[[], int | None], registered: Callable[[], _Registered]) -> None:
    C: Any = torch._C
    stock = C._register_opaque_type

    def register_opaque_type(name: str) -> None:
        rank = whose()
        if rank is None or name not in _types_of_ranks or (rank, name) in registered().types:
            stock(name)
        if rank is not None:
            _types_of_ranks.add(name)
            registered().types.add((rank, name))

    patches.set(C, "_register_opaque_type", register_opaque_type)
    if not hasattr(C, "_unregister_opaque_type"):
        return
    stock_unregister = C._unregister_opaque_type

    def unregister_opaque_type(name: str) -> None:
        rank = whose()
        types = set() if rank is None else registered().types
        if rank is not None:
            types.discard((rank, name))
        if not any(each == name for _, each in types):  # no other rank has it
            _types_of_ranks.discard(name)
            stock_unregister(name)

    patches.set(C, "_unregister_opaque_type", unregister_opaque_type)
