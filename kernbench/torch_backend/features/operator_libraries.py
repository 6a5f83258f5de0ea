"""Operators that a program registers (``torch.library``): each rank has its own implementation of them.

PyTorch's registry is the process's. Ranks that execute the same program define the same operators, which it refuses
(``Library(ns, "DEF")``), or the second definition takes the first one's operator away (``custom_op``), and a caller that
has kept it calls into freed memory. So of equal definitions by several ranks the first is made, and each rank's calls run
its own implementation. A definition with another schema is refused as by torch, and so is a second one by the same rank.

Of torch's own operators a program may replace the kernels for CUDA (:mod:`.program_kernels`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.library
from torch._library import custom_ops, fake_impl

from kernbench.torch_backend.gpu.kernels import program_kernels
from kernbench.torch_backend.gpu.kernels.autocasting import device_of
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.rank_state.module_globals import ModuleGlobals
from kernbench.torch_backend.relies_on import Reliance

_PER_RANK = ("OPDEF_TO_LIB", "OPDEFS")

RELIES_ON = (
    Reliance("torch._C._dispatch_library", "a library is made by it, and is called `define`, `impl` and `reset`",
             looked_up_by=("torch.library.Library",)),
    Reliance("torch._library.custom_ops", "what is known of custom operators, by name", has=_PER_RANK),
    Reliance("torch._library.custom_ops.get_library_allowing_overwrite", "it takes away what another rank has defined",
             looked_up_by=("torch._library.custom_ops.CustomOpDef",)),
    Reliance("torch._library.fake_impl.FakeImplHolder", "the newest of its kernels is used", has=("kernel", "register")),
    Reliance("torch.library.fallthrough_kernel", "C++ compares implementations with it"),
    Reliance("torch._C", "whether an operator of torch consists of others", has=(
        "_dispatch_has_kernel_for_dispatch_key", "DispatchKey", "DispatchKeySet", "_ExcludeDispatchKeyGuard",
    )),
)  # fmt: skip

_OWNER = "kernbench_rank"  # attribute of a fake implementation: who registered it

_TORCHS = ("aten", "prim", "prims", "_")
"""Namespaces in which an implementation is shared by all ranks."""

Whose = Callable[[], "int | None"]
Remark = Callable[[str], object]


@dataclass
class _Namespace:
    """What ranks have defined in one namespace.

    Attributes:
        definers: ranks that have a ``DEF`` library of it.
        schemas: of its operators, by name.
        implementations: by operator and dispatch key, by rank.
        made: libraries that C++ has made for it, kept until none of them has a user.
        users: how many libraries of ranks do.
    """

    definers: set[int] = field(default_factory=set)
    schemas: dict[str, tuple[object, ...]] = field(default_factory=dict)
    implementations: dict[tuple[str, str], dict[int, Callable[..., object]]] = field(default_factory=dict)
    made: list[Any] = field(default_factory=list)
    users: int = 0


_namespaces: dict[str, _Namespace] = {}


class _RankLibrary:
    """A rank's part of a library, in the place of the one that C++ has."""

    def __init__(self, name: str, rank: int, kind: str, made: Any, whose: Whose) -> None:
        self._name = name
        self._rank = rank
        self._kind = kind
        self._made = made
        self._whose = whose
        self._space = _namespaces.setdefault(name, _Namespace())
        self._space.users += 1
        self._space.made.append(made)
        if kind == "DEF":
            self._space.definers.add(rank)
        self._own: list[tuple[tuple[str, str], Callable[..., Any]]] = []

    def define(self, schema: str, *how: object) -> Any:
        name = schema.partition("(")[0].strip()
        told = (schema, *map(str, how))
        if self._space.schemas.get(name) == told:
            return name
        result = self._made.define(schema, *how)
        self._space.schemas[name] = told
        return result

    def impl(self, name: str, key: str, function: Any, *how: object) -> Any:
        if function is torch.library.fallthrough_kernel:
            return self._made.impl(name, key, function, *how)
        place = name.rpartition("::")[2], key
        known = self._space.implementations.get(place)
        if known is None:
            known = self._space.implementations[place] = {}
            self._made.impl(name, key, _by_rank(known, self._whose, function), *how)
        known[self._rank] = function
        self._own.append((place, function))
        return None

    def reset(self) -> None:
        """The rank uses it no more. C++ forgets what has no user."""
        if self._made is None:
            return
        self._made = None
        for place, function in self._own:
            known = self._space.implementations[place]
            if known.get(self._rank) is function and len(known) > 1:
                del known[self._rank]
        self._own.clear()
        if self._kind == "DEF":
            self._space.definers.discard(self._rank)
        self._space.users -= 1
        if not self._space.users:
            for made in self._space.made:
                made.reset()
            _namespaces.pop(self._name, None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._made, name)


class _OverridingLibrary:
    """A rank's library for operators of torch: what it has for CUDA is the rank's, the rest is shared."""

    def __init__(self, namespace: str, rank: int, made: Any, whose: Whose, remark: Remark) -> None:
        self._namespace = namespace
        self._rank = rank
        self._made = made
        self._whose = whose
        self._remark = remark
        self._own: list[tuple[str, Callable[..., Any]]] = []

    def impl(self, name: str, key: str, function: Any, with_keyset: bool = False) -> Any:
        operator = f"{self._namespace}::{name.rpartition('::')[2]}"
        known = program_kernels.overload(operator) is not None
        if key not in _ON_GPUS or not known or function is torch.library.fallthrough_kernel:
            return self._made.impl(name, key, function, with_keyset)
        if key != "CUDA":
            self._remark(f"the program's implementation of {operator} for {key} is not called: torch's own is")
            return self._made.impl(name, key, function, with_keyset)
        if with_keyset:
            function = functools.partial(function, torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA))
        program_kernels.override(operator, self._rank, function)
        self._own.append((operator, function))
        _compose(operator, self._whose)
        return None

    def reset(self) -> None:
        """The rank uses it no more."""
        for operator, function in self._own:
            program_kernels.restore(operator, self._rank, function)
        self._own.clear()
        self._made.reset()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._made, name)


class AutocastingLibrary:
    """A library of a program's own operators, whose kernels for autocast are those of the device that its tensors are on: both
    are given to torch for the CPU's, of whose tensors a simulated GPU's are."""

    def __init__(self, namespace: str, made: Any) -> None:
        self._namespace = namespace
        self._made = made
        self._kernels: dict[str, dict[str, Callable[..., Any]]] = {}

    def impl(self, name: str, key: str, function: Any, with_keyset: bool = False) -> Any:
        """As of the library that it stands for."""
        if key not in _AUTOCASTS.values() or with_keyset or function is torch.library.fallthrough_kernel:
            return self._made.impl(name, key, function, with_keyset)
        operator = f"{self._namespace}::{name.rpartition('::')[2]}"
        known = self._kernels.get(operator)
        if known is None:
            known = self._kernels[operator] = {}
            self._made.impl(name, "AutocastCPU", _by_device(operator, known), False)
        known[key] = function
        return None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._made, name)


REGISTERS_AUTOCAST = "torchvision._autograd_registrations"
"""A module that is executed with torch's own names, and registers kernels for autocast."""

_AUTOCASTS = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}


def _by_device(operator: str, known: dict[str, Callable[..., Any]]) -> Callable[..., Any]:
    """Calls a kernel for autocast, or where there is none for the device what is below autocast."""

    def compute(*args: object, **kwargs: Any) -> Any:
        device = device_of(args, kwargs)
        below = program_kernels.overload(operator)
        function: Any = known.get(_AUTOCASTS[device], below) if torch.is_autocast_enabled(device) else below
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)):
            return function(*args, **kwargs)

    return compute


@contextmanager
def autocasting() -> Iterator[None]:
    """For the length of a block, in which a module is executed with torch's own names, its libraries are of this kind."""
    C: Any = torch._C
    make = C._dispatch_library
    C._dispatch_library = lambda kind, name, *where: AutocastingLibrary(name, make(kind, name, *where))
    try:
        yield
    finally:
        C._dispatch_library = make


_ON_GPUS = ("CUDA", "AutogradCUDA", "AutocastCUDA")
_composed: dict[str, torch.library.Library] = {}
"""What asks for the kernels of ranks before torch composes an operator of others, by its name."""


def _compose(operator: str, whose: Whose) -> None:
    """Let torch ask before it composes an operator of others, if it does."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    if operator in _composed or has_kernel(operator, "CPU") or not has_kernel(operator, "CompositeImplicitAutograd"):
        return
    stock = program_kernels.overload(operator)
    library = _composed[operator] = torch.library.Library(operator.partition("::")[0], "IMPL")
    library.impl(stock, program_kernels.composed(operator, stock, whose), "AutogradCPU")


def _decompose(operator: str) -> None:
    if operator in _composed and not program_kernels.is_overridden(operator):
        _composed.pop(operator)._destroy()


program_kernels.tell(_decompose)


def _by_rank(known: dict[int, Callable[..., Any]], whose: Whose, first: Callable[..., Any]) -> Callable[..., Any]:
    """Calls what the rank that calls has registered, or where it has nothing the first of the others."""

    @functools.wraps(first)
    def implementation(*args: object, **kwargs: object) -> Any:
        rank = whose()
        function = known.get(rank) if rank is not None else None
        return (next(iter(known.values())) if function is None else function)(*args, **kwargs)

    return implementation


def install(
    patches: Patches, whose: Whose, modules: Callable[[], ModuleGlobals], on_gpu_of: Whose, remark: Remark
) -> None:
    """Let what ranks register be theirs: that of ``whose()``, None for main, whose libraries are torch's.

    Args:
        patches: undo it.
        whose: the rank whose state the process has.
        modules: the globals that ranks have of modules.
        on_gpu_of: the rank that runs, also one that has the process to itself.
        remark: receives, as a sentence, an implementation that is not called.
    """
    C: Any = torch._C
    make = C._dispatch_library

    def dispatch_library(kind: str, name: str, key: str, *where: object) -> Any:
        rank = on_gpu_of()
        if rank is not None and name in _TORCHS:
            return _OverridingLibrary(name, rank, make(kind, name, key, *where), on_gpu_of, remark)
        rank = whose()
        if name in _TORCHS:
            return make(kind, name, key, *where)
        if rank is None:
            return AutocastingLibrary(name, make(kind, name, key, *where))
        space = _namespaces.get(name)
        again = kind == "DEF" and space is not None and space.definers and rank not in space.definers
        made = _RankLibrary(name, rank, kind, make("FRAGMENT" if again else kind, name, key, *where), whose)
        return AutocastingLibrary(name, made)

    patches.set(C, "_dispatch_library", dispatch_library)
    overwrite = custom_ops.get_library_allowing_overwrite

    def get_library_allowing_overwrite(namespace: str, name: str) -> object:
        if whose() is not None:
            modules().take(custom_ops, _PER_RANK)
        return overwrite(namespace, name)

    patches.set(custom_ops, "get_library_allowing_overwrite", get_library_allowing_overwrite)
    holder: Any = fake_impl.FakeImplHolder
    register, kernel = holder.register, holder.kernel

    def register_for_rank(self: Any, *args: object, **kwargs: object) -> Any:
        handle = register(self, *args, **kwargs)
        setattr(self.kernels[-1], _OWNER, whose())
        return handle

    def kernel_of_rank(self: Any) -> Any:
        rank = whose()
        mine = [each for each in self.kernels if rank is not None and getattr(each, _OWNER, None) == rank]
        return mine[-1] if mine else kernel.fget(self)

    patches.set(holder, "register", functools.wraps(register)(register_for_rank))
    patches.set(holder, "kernel", property(kernel_of_rank, kernel.fset))
