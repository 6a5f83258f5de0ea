"""What a program gives the ranks that it spawns: each has its own, as processes that are sent a copy have.

What processes share stays one: the values of tensors, and what ``multiprocessing`` passes on (queues, events, locks, proxies).
"""

from __future__ import annotations

import ctypes
import io
import operator
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch

from kernbench.torch_backend.gpu.tensors.placement import block_of
from kernbench.torch_backend.modes import plain_torch

_BY_NAME = (type, FunctionType, BuiltinFunctionType, ModuleType)
_SHARED = ("multiprocessing", "_multiprocessing", "torch.multiprocessing", "threading", "_thread")

_CData: Any = ctypes.Structure.__base__
"""The base of all objects of C; those of :mod:`multiprocessing` keep the shared memory that they are in."""

IsAgain = Callable[[str], bool]
"""Whether each rank executes a module, by its name: what is looked up there by name is the rank's."""


class Sent:
    """A function and its arguments, as they were when ranks were spawned.

    What cannot be pickled stays itself: a process could not have been given it.

    Attributes:
        by_name: whether a process would find the function by its name, or what it is made of.
    """

    def __init__(
        self, fn: Callable[..., object], args: tuple[object, ...], again: IsAgain = lambda name: False
    ) -> None:
        function = _pickled(fn, again)
        self.by_name = function is not None and function.by_name
        whole = _pickled((fn, args), again)
        if whole is None:
            parts = [_Itself(part) if (found := _pickled(part, again)) is None else found for part in (fn, *args)]
            self._parts: Callable[[], list[Any]] = lambda: [part.copy() for part in parts]
        else:
            self._parts = lambda: [(copy := whole.copy())[0], *copy[1]]

    def received(self) -> list[Any]:
        """The function and each argument, as the running rank has them."""
        return self._parts()


@dataclass(frozen=True)
class _Itself:
    """What there is one of."""

    value: Any

    def copy(self) -> Any:
        """That."""
        return self.value


@dataclass(frozen=True)
class _Pickled:
    """What can be copied.

    Attributes:
        kept: what stays one, by the number that stands for it.
        by_name: whether what belongs to modules that ranks execute again is looked up there.
    """

    data: bytes
    kept: list[Any]
    by_name: bool

    def copy(self) -> Any:
        """Another one, of what the running rank finds by name."""
        return _Unpickler(io.BytesIO(self.data), self.kept).load()


def _pickled(value: object, again: IsAgain) -> _Pickled | None:
    """None: it can neither be pickled nor be made again."""
    with io.BytesIO() as file:
        try:
            pickler = _Pickler(file, again)
            pickler.dump(value)
            found = _Pickled(file.getvalue(), pickler.kept, pickler.by_name)
            found.copy()
            return found
        except Exception:  # whatever an object's own way to be copied raises
            return None


class _Pickler(pickle.Pickler):
    """Pickles but what stays one."""

    def __init__(self, file: io.BytesIO, again: IsAgain) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._again = again
        self.kept: list[Any] = []
        self.by_name = True
        self._numbers: dict[int, int] = {}

    def persistent_id(self, obj: object) -> int | None:
        """The number of what stays one, None of what is copied."""
        kind = type(obj)
        if isinstance(obj, _BY_NAME):
            if self._again(str(getattr(obj, "__module__", None))):
                if _is_found(obj):
                    return None
                self.by_name = False
        elif not (
            isinstance(obj, torch.Tensor)
            or kind.__module__.startswith(_SHARED)
            or (isinstance(obj, _CData) and hasattr(obj, "_wrapper"))
        ):
            return None
        found = self._numbers.get(id(obj))
        if found is None:
            found = self._numbers[id(obj)] = len(self.kept)
            self.kept.append(obj)
        return found


def _is_found(obj: Any) -> bool:
    """Whether a class or function is what its module has by its name."""
    try:
        return operator.attrgetter(obj.__qualname__)(sys.modules[obj.__module__]) is obj
    except (AttributeError, KeyError):
        return False


class _Unpickler(pickle.Unpickler):
    """Makes the copy."""

    def __init__(self, file: io.BytesIO, kept: list[Any]) -> None:
        super().__init__(file)
        self._kept = kept
        self._made: dict[int, Any] = {}

    def persistent_load(self, number: int) -> object:
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
