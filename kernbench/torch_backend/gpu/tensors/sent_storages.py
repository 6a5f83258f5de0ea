"""Tensors of GPUs that ranks send each other through ``multiprocessing``: by CUDA's IPC the receiver has the same memory.

Ranks of one process have one storage; what is sent is its number. A storage lives on until it is received, as on a GPU. Between
processes nothing is the same memory, and sending is refused.
"""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing import reductions

from kernbench.errors import KernbenchError
from kernbench.torch_backend.gpu.tensors.placement import block_of_storage
from kernbench.torch_backend.relies_on import Reliance

RELIES_ON = (
    Reliance("torch.multiprocessing.reductions.reduce_storage", "how a storage is sent that is on no GPU", parameters=(
        "storage",
    )),
)  # fmt: skip

_BETWEEN_PROCESSES = (
    "a tensor of a GPU was sent to another process (CUDA's IPC), which is modelled between ranks of one process, as "
    "torch.multiprocessing.spawn makes them with --isolation carrier (isolation='carrier'): make the processes so, or send "
    "tensor.cpu()"
)

_numbers = itertools.count()
_to_come: dict[int, torch.UntypedStorage] = {}
_known: weakref.WeakValueDictionary[int, torch.UntypedStorage] = weakref.WeakValueDictionary()


def open_for_ranks(*, alone: bool) -> None:
    """Send storages of GPUs by their numbers; refuse to in forks of this process, which are ranks of their own, and if this
    one is ``alone``, too."""
    process = os.getpid()

    def reduce(storage: torch.UntypedStorage) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        if block_of_storage(storage) is None:
            return reductions.reduce_storage(storage)
        if alone or os.getpid() != process:
            raise KernbenchError(_BETWEEN_PROCESSES)
        number = next(_numbers)
        _to_come[number] = _known[number] = storage
        return _received, (process, number)

    ForkingPickler.register(torch.UntypedStorage, reduce)


def close() -> None:
    """Send storages as torch does. What was not received is gone. Idempotent."""
    ForkingPickler.register(torch.UntypedStorage, reductions.reduce_storage)
    _to_come.clear()


def _received(process: int, number: int) -> torch.UntypedStorage:
    if process != os.getpid():
        raise KernbenchError(_BETWEEN_PROCESSES)
    storage = _to_come.pop(number, None)
    if storage is None and (storage := _known.get(number)) is None:
        raise KernbenchError(
            "a tensor of a GPU was received twice, and its memory is free since: its sender is to keep it"
        )
    return storage
