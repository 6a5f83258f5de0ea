"""Tensors as the simulation takes them: which are in a call, which storage is theirs, and which tell of looks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import torch
from torch._C import DisableTorchFunctionSubclass

from kernbench.topology.dtypes import canonical_dtype

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})


def tells_of_looks(tensor: torch.Tensor) -> bool:
    """Whether the simulation is notified before the host looks at this tensor's values: launches that write it may be kept."""
    return getattr(type(tensor), "tells_of_looks", False)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor without the class that tells of looks: operations on it are not drained for."""
    return plain_of(tensor) if getattr(type(tensor), "tells_of_looks", False) else tensor


def plain_of(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor without whatever class it has."""
    if type(tensor) in _PLAIN:
        return tensor
    with DisableTorchFunctionSubclass():
        return tensor.as_subclass(torch.Tensor)


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage:
    """The storage of a tensor, without looking at its values."""
    if type(tensor) in _PLAIN:
        return tensor.untyped_storage()
    with DisableTorchFunctionSubclass():
        return tensor.untyped_storage()


def nbytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the tensors' elements, whatever their classes say."""
    with DisableTorchFunctionSubclass():
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def tensors_in(args: Any, kwargs: Any = None) -> Iterator[torch.Tensor]:
    """Every tensor in nested arguments."""
    for value in args:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)
        elif isinstance(value, dict):
            yield from tensors_in(value.values())
    if kwargs:
        yield from tensors_in(kwargs.values())


def listed_tensors(values: Iterable[Any]) -> list[torch.Tensor]:
    """Tensors among an operation's arguments and in lists of them, no deeper: for those who ask at every operation."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif type(value) in (list, tuple):
            found += [each for each in value if isinstance(each, torch.Tensor)]
    return found


def made_tensors(result: Any) -> list[torch.Tensor]:
    """Tensors that an operation has given: what it gives, those of a tuple, and those of lists in one (a recurrent layer gives
    the gradients of its weights so)."""
    if isinstance(result, torch.Tensor):
        return [result]
    return listed_tensors(result) if type(result) in (list, tuple) else []


def poison(tensor: torch.Tensor) -> torch.Tensor:
    """Fill fresh memory with what shows: NaN for floats, the largest value for integers, True for booleans."""
    if tensor.dtype == torch.bool:
        return tensor.fill_(True)
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        return tensor.fill_(float("nan"))
    return tensor.fill_(torch.iinfo(tensor.dtype).max)


@lru_cache(64)
def short_dtype(dtype: torch.dtype) -> str:
    """The name by which device descriptions call a dtype (``"fp16"``); ``"fp32"`` for those they do not list."""
    try:
        return canonical_dtype(dtype)
    except ValueError:
        return "fp32"
