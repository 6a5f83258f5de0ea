"""What a process may set once, or adds to what it has of them: each rank is a process, and may.

How :mod:`multiprocessing` starts processes, the number of threads between operators, and the classes that ``torch.load`` takes
from a file.
"""

from __future__ import annotations

import functools
import multiprocessing.context
from collections.abc import Callable
from typing import Any

import torch

from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.rank_state.lazy_generators import LazyGenerators
from kernbench.torch_backend.rank_state.module_globals import ModuleGlobals
from kernbench.torch_backend.rank_state.rank_attributes import RankAttribute
from kernbench.torch_backend.relies_on import Reliance

_unpickler: Any = torch._weights_only_unpickler

_SET_AGAIN = (
    "Error: cannot set number of interop threads after parallel work has started or set_num_interop_threads called"
)
_SAFE = "_marked_safe_globals_set"
_CHANGES = ("_add_safe_globals", "_remove_safe_globals", "_clear_safe_globals")

RELIES_ON = (
    Reliance(
        "multiprocessing.context._default_context", "it keeps how processes are started, once that is decided",
        holds=lambda context: "_actual_context" in vars(context),
    ),
    Reliance("torch._weights_only_unpickler", "classes that a program has called safe are there", has=(_SAFE, *_CHANGES)),
    Reliance("torch.serialization", "programs call them safe by its functions", has=("add_safe_globals", "safe_globals")),
)  # fmt: skip


def install(patches: Patches, resident: LazyGenerators, modules: ModuleGlobals) -> None:
    """Let them be each rank's: that of ``resident``, whose state is the process's."""

    def whose() -> int | None:
        return resident.resident

    contexts = multiprocessing.context.DefaultContext
    patches.add(contexts, "_actual_context", RankAttribute("_actual_context", _undecided, whose))
    _install_threads(patches, whose)
    for name in _CHANGES:
        patches.set(_unpickler, name, _of_this_rank(getattr(_unpickler, name), whose, modules))


def _undecided() -> None:
    return None


def _install_threads(patches: Patches, whose: Callable[[], int | None]) -> None:
    """The number is kept for the rank, which has one thread anyway."""
    numbers: dict[int, int] = {}
    stock_set, stock_get = torch.set_num_interop_threads, torch.get_num_interop_threads

    @functools.wraps(stock_set)
    def set_num_interop_threads(number: int) -> None:
        rank = whose()
        if rank is None:
            stock_set(number)
        elif type(number) is not int or number <= 0:
            raise RuntimeError("expected a positive number of threads")
        elif rank in numbers:
            raise RuntimeError(_SET_AGAIN)
        else:
            numbers[rank] = number

    @functools.wraps(stock_get)
    def get_num_interop_threads() -> int:
        rank = whose()
        return numbers[rank] if rank is not None and rank in numbers else stock_get()

    patches.set(torch, "set_num_interop_threads", set_num_interop_threads)
    patches.set(torch, "get_num_interop_threads", get_num_interop_threads)


def _of_this_rank(
    stock: Callable[..., Any], whose: Callable[[], int | None], modules: ModuleGlobals
) -> Callable[..., Any]:
    """``stock``, before which the set that it changes becomes the rank's own."""

    @functools.wraps(stock)
    def change(*args: Any) -> Any:
        if whose() is not None:
            modules.take(_unpickler, (_SAFE,))
        return stock(*args)

    return change
