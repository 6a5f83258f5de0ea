"""Operations the size of whose result depends on values: masks choose, repeats repeat, duplicates go.

Masks are true as often as is assumed (``stand_ins``), and values that are not known differ from each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernbench.torch_backend.hollow.shapes import Described, described
from kernbench.torch_backend.hollow.stand_ins import counted, element_of
from kernbench.torch_backend.overloads import OpOverload

_MASKS = (torch.bool, torch.uint8)


def _packed(size: tuple[int, ...], dtype: torch.dtype) -> Described:
    stride, step = [], 1
    for each in reversed(size):
        stride.append(step)
        step *= max(each, 1)
    return Described(size, tuple(reversed(stride)), dtype)


def _chosen(mask: torch.Tensor) -> int:
    return counted(element_of(mask), mask.numel())


def selected(name: str, func: OpOverload, args: Any, kwargs: Any) -> Any:
    """What such an operation gives; None if ``name`` is another one."""
    if name == "nonzero":
        return _packed((_chosen(args[0]), args[0].dim()), torch.int64)
    if name == "masked_select":
        shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
        return _packed((counted(element_of(args[1]), shape.numel()),), args[0].dtype)
    if name in ("index", "_unsafe_index"):
        return _indexed(func, args)
    if name in ("_unique2", "unique_consecutive", "_unique"):
        size = (args[0].numel(),)
        return (_packed(size, args[0].dtype), *[_packed(size, torch.int64)] * (len(func._schema.returns) - 1))
    if name in ("unique_dim", "unique_dim_consecutive"):
        size = (args[0].size(args[1]),)
        return (_packed(tuple(args[0].shape), args[0].dtype), *[_packed(size, torch.int64)] * 2)
    if name == "repeat_interleave" and len(func._schema.arguments) == 2:
        known = kwargs.get("output_size")
        return _packed((round(element_of(args[0]) * args[0].numel()) if known is None else known,), args[0].dtype)
    if name == "bincount":
        longest = kwargs.get("minlength", args[2] if len(args) > 2 else 0)
        return _packed((max(longest, int(element_of(args[0])) + 1),), torch.int64)
    return None


def _masks(args: Any, kwargs: Any) -> list[torch.Tensor]:
    return [index for index in args[1] if index is not None and index.dtype in _MASKS]


def _first(args: Any, kwargs: Any) -> list[torch.Tensor]:
    return [args[0]]


def _repeats(args: Any, kwargs: Any) -> list[torch.Tensor]:
    return [args[0]] if kwargs.get("output_size") is None else []


def _counted(args: Any, kwargs: Any) -> list[torch.Tensor]:
    return [] if kwargs.get("minlength", args[2] if len(args) > 2 else 0) else [args[0]]


_DECIDERS: dict[str, Callable[[Any, Any], list[torch.Tensor]]] = {
    **dict.fromkeys(("index", "_unsafe_index"), _masks),
    "masked_select": lambda args, kwargs: [args[1]],
    **dict.fromkeys(
        ("nonzero", "_unique", "_unique2", "unique_consecutive", "unique_dim", "unique_dim_consecutive"), _first
    ),
    "repeat_interleave": _repeats,
    "bincount": _counted,
}


def deciders(name: str, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The operands by whose values it follows how large the result is; a count of at least so many places has these."""
    found = _DECIDERS.get(name)
    return [] if found is None else found(args, kwargs)


def _indexed(func: OpOverload, args: Any) -> Any:
    """``tensor[mask, ...]``."""
    if not any(index is not None and index.dtype in _MASKS for index in args[1]):
        return None
    indices: list[torch.Tensor | None] = []
    for index in args[1]:
        if index is not None and index.dtype in _MASKS:
            rows = torch.empty(_chosen(index), dtype=torch.int64, device="meta")
            indices += [rows] * index.dim()
        else:
            indices.append(index)
    return described(func, (args[0], indices), {})
