"""What a program gives the ranks that it spawns: each has its own, as processes that are sent a copy have.

What processes share stays one: the values of tensors, and what ``multiprocessing`` passes on (queues, events, locks, proxies).
"""

from __future__ import annotations

import functools
import io
import pickle
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch

from kernbench.torch_backend.gpu.tensors.placement import block_of
from kernbench.torch_backend.modes import plain_torch

_BY_NAME = (type, FunctionType, BuiltinFunctionType, ModuleType)
_SHARED = ("multiprocessing", "_multiprocessing", "torch.multiprocessing", "threading", "_thread")


def per_rank(fn: Callable[..., Any]) -> Callable[..., Any]:
    """``fn(rank, *args)`` with arguments of the rank's own."""

    @functools.wraps(fn)
    def of_rank(rank: int, *args: Any) -> Any:
        return fn(rank, *own(args))

    return of_rank


def own(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """A copy of arguments. One that cannot be pickled stays itself: a process could not have been given it."""
    with io.BytesIO() as file:
        try:
            pickler = _Pickler(file)
            pickler.dump(args)
            return _Unpickler(file, pickler.kept).loaded()
        except Exception:  # whatever an object's own way to be copied raises
            return args if len(args) < 2 else tuple(own((arg,))[0] for arg in args)


class _Pickler(pickle.Pickler):
    """Pickles but what stays one.

    Attributes:
        kept: that, by the number that stands for it.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.kept: list[Any] = []
        self._numbers: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        """The number of what stays one, None of what is copied."""
        kind = type(obj)
        if not isinstance(obj, (*_BY_NAME, torch.Tensor)) and not kind.__module__.startswith(_SHARED):
            return None
        found = self._numbers.get(id(obj))
        if found is None:
            found = self._numbers[id(obj)] = len(self.kept)
            self.kept.append(obj)
        return found


class _Unpickler(pickle.Unpickler):
    """Makes the copy."""

    def __init__(self, file: io.BytesIO, kept: list[Any]) -> None:
        file.seek(0)
        super().__init__(file)
        self._kept = kept
        self._made: dict[int, Any] = {}

    def loaded(self) -> tuple[Any, ...]:
        """The arguments."""
        found: tuple[Any, ...] = self.load()
        return found

    def persistent_load(self, number: int) -> Any:
        """What stays one; of a tensor another one of the same memory, with a gradient of its own."""
        if number not in self._made:
            self._made[number] = _same_memory(self._kept[number])
        return self._made[number]


def _same_memory(obj: Any) -> Any:
    kind = type(obj)
    if kind not in (torch.Tensor, torch.nn.Parameter) or not obj.is_leaf or block_of(obj) is not None:
        return obj
    with plain_torch():
        if kind is torch.nn.Parameter:
            return torch.nn.Parameter(obj.detach(), obj.requires_grad)
        return obj.detach().requires_grad_(obj.requires_grad)
