"""``torch.distributed.ProcessGroup`` inside a simulated rank: the class whose objects the rank's groups are.

On hardware the groups of all backends are objects of that very class, and programs say so: ``type(group) is ProcessGroup``.
Here they are objects of a class of Python that derives from it, which takes its name while ranks run. What else a program does
with the name is done with torch's own class: ask whether something is a group, make one of a store, derive a class. A group
made of a store becomes one of simulated ranks when it is given a backend that is.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d

from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

STOCK: Any = dist.ProcessGroup  # its stub has overloads that name C++ options; ours take what torch passes
_OWNERS: tuple[object, ...] = (dist, dist.distributed_c10d, torch._C._distributed_c10d)

RELIES_ON = (
    Reliance("sys._getframe", "who makes a group"),
    Reliance("torch.distributed.ProcessGroup", "programs give backends to a group that they have made",
             has=("_register_backend",)),
    Reliance("torch.distributed.ProcessGroup", "its class is one of Python, from which ours derives",
             holds=lambda group: issubclass(type(group), type) and type(group) is not type),
    *(Reliance(f"{owner}.ProcessGroup", "programs have the class by this name")
      for owner in ("torch.distributed", "torch.distributed.distributed_c10d", "torch._C._distributed_c10d")),
)  # fmt: skip


class GroupClass(type(STOCK)):  # type: ignore[misc]
    """The class of the class that takes the name."""

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        simulated: bool = False,
        **options: object,
    ) -> Any:
        """A class that a program derives is derived from torch's own; ``simulated``: it is one of the simulator's."""
        if not simulated and any(isinstance(base, GroupClass) for base in bases):
            own = tuple(STOCK if isinstance(base, GroupClass) else base for base in bases)
            return type(STOCK)(name, own, namespace, **options)
        made = super().__new__(mcs, name, bases, namespace, **options)
        made.__name__, made.__qualname__, made.__module__ = STOCK.__name__, STOCK.__qualname__, STOCK.__module__
        return made

    def __call__(cls, *args: object, **kwargs: object) -> Any:
        """A group that a program makes, of a store, is torch's own until it has a backend."""
        if sys._getframe(1).f_globals.get("__name__") == dist.distributed_c10d.__name__:
            return STOCK(*args, **kwargs)  # for a backend that is the program's own
        return _MadeByHand(*args, **kwargs)

    def made(cls, *args: object) -> Any:
        """A group of simulated ranks."""
        return super().__call__(*args)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, STOCK)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, STOCK)


class _MadeByHand(STOCK):
    """A group that a program makes of a store, before it has a backend."""

    def __init__(self, *args: object) -> None:
        super().__init__(
            *(args if type(args[0]) is int else args[1:3])
        )  # C++ makes none of a store that Python may change

    def _register_backend(self, device: torch.device, backend_type: object, backend: object = None) -> None:
        if not isinstance(type(backend), GroupClass):
            STOCK._register_backend(self, device, backend_type, backend)
            return
        self.__class__ = dist.ProcessGroup  # type: ignore[assignment]  # a class of ours has the name
        self.__dict__.update(vars(backend), backends={})
        self._register_backend(device, backend_type, backend)


def install(patches: Patches, simulated: type) -> None:
    """Let ``simulated`` have the name."""
    for owner in _OWNERS:
        patches.set(owner, "ProcessGroup", simulated)
