"""Functions of Python's library, and of torch, to which a program hands numbers, where these may have been assumed.

A log record is rendered with the marks of its arguments, and tensors made of assumed numbers are assumed. A format of files
has no place for a mark (``json``): the line is noted in the summary. They are replaced while ranks run without data.
"""

from __future__ import annotations

import functools
import json
import logging
import struct
import sys
from collections.abc import Callable
from typing import Any

import torch

from kernbench.own_files import is_own
from kernbench.simulation.values.assumptions import LOST
from kernbench.torch_backend.gpu.names.tensor_methods import is_sequence_of_values
from kernbench.torch_backend.hollow.assumed_numbers import formatted, holds_marked, note
from kernbench.torch_backend.hollow.numbers_in_tensors import assumed
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

_WRITE: tuple[tuple[Any, str, str], ...] = (
    (json.JSONEncoder, "encode iterencode", "json"),
    (struct, "pack pack_into", "struct"),
)
"""What writes bare values, and the name by which it is noted."""

_MAKE: tuple[tuple[Any, str], ...] = (
    (torch, "tensor as_tensor asarray full full_like scalar_tensor"),
    (torch.Tensor, "new_tensor new_full"),
)
"""What makes tensors of numbers."""

_MAKE_OF_SEQUENCES: tuple[tuple[Any, str], ...] = ((torch.Tensor, "new"),)
"""What makes tensors of lists and tuples of numbers: other numbers are sizes."""

RELIES_ON = (
    Reliance("logging.LogRecord.getMessage", "a record's text", parameters=("self",)),
    Reliance("sys._getframe", "the frames of the thread that runs, innermost first"),
    *(Reliance("torch" if owner is torch else "torch.Tensor", "programs make tensors of numbers", has=tuple(names.split()))
      for owner, names in _MAKE),
)  # fmt: skip


def install(patches: Patches) -> None:
    """Replace them."""
    patches.set(logging.LogRecord, "getMessage", _message(logging.LogRecord.getMessage))
    tables: tuple[tuple[Callable[..., Any], tuple[tuple[Any, ...], ...]], ...] = (
        (_writes, _WRITE), (_makes, _MAKE), (_makes_of_sequences, _MAKE_OF_SEQUENCES),
    )  # fmt: skip
    for wrapper, rows in tables:
        for owner, names, *more in rows:
            for name in names.split():
                if (stock := getattr(owner, name, None)) is not None:
                    patches.set(owner, name, wrapper(stock, *more))
    patches.set(torch.Tensor, "__init__", _initialised(torch.Tensor.__init__))


def _message(stock: Callable[[logging.LogRecord], str]) -> Callable[[logging.LogRecord], str]:
    @functools.wraps(stock)
    def message(record: logging.LogRecord) -> str:
        return str(formatted(str(record.msg), record.args)) if record.args else stock(record)

    return message


def _writes(stock: Callable[..., Any], entry: str) -> Callable[..., Any]:
    also = {name for _, names, kind in _WRITE if kind == entry for name in names.split()}

    @functools.wraps(stock)
    def writes(*args: Any, **kwargs: Any) -> Any:
        if holds_marked(args):
            frame = sys._getframe(1)
            if frame.f_code.co_name not in also and not is_own(frame.f_code.co_filename):
                note(LOST, entry, frame)
        return stock(*args, **kwargs)

    return writes


def _makes(stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def makes(*args: Any, **kwargs: Any) -> Any:
        made = stock(*args, **kwargs)
        if holds_marked(args) or (kwargs and holds_marked([*kwargs.values()])):
            assumed((made,))
        return made

    return makes


def _makes_of_sequences(stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def makes(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        made = stock(tensor, *args, **kwargs)
        if holds_marked([value for value in (*args, *kwargs.values()) if is_sequence_of_values(value)]):
            assumed((made,))
        return made

    return makes


def _initialised(stock: Callable[..., None]) -> Callable[..., None]:
    """``torch.Tensor.__init__``, which Python calls of ``torch.Tensor([loss])``, and of no tensor that torch makes."""

    def initialised(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        if type(tensor).__init__ is not initialised:  # a class has its own, which calls this one
            stock(tensor, *args, **kwargs)
        elif holds_marked([value for value in (*args, *kwargs.values()) if is_sequence_of_values(value)]):
            assumed((tensor,))

    return initialised
