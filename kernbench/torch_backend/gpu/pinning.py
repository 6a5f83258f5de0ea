"""Pinned memory: on a simulated host a note that is kept with the storage."""

from __future__ import annotations

from typing import Any

import torch

from kernbench.simulation.tensors import storage_of
from kernbench.torch_backend.gpu.placement import block_of
from kernbench.torch_backend.relies_on import Reliance

_PINNED = "_kernbench_pinned"


RELIES_ON = (Reliance("torch._C.TensorBase.untyped_storage", "a storage's Python object keeps attributes"),)


def pinned(tensor: torch.Tensor) -> torch.Tensor:
    """Note that a tensor is in pinned memory, which on a simulated host all memory is as good as."""
    storage: Any = storage_of(tensor)
    setattr(storage, _PINNED, True)
    return tensor


def is_pinned(tensor: torch.Tensor, device: Any = None) -> bool:
    """``Tensor.is_pinned``."""
    return bool(getattr(storage_of(tensor), _PINNED, False))


def pin_memory(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
    """``Tensor.pin_memory``: a copy, unless it is pinned. Raises RuntimeError for a tensor on a GPU."""
    if block_of(tensor) is not None:
        raise RuntimeError(f"cannot pin '{tensor.type()}' only dense CPU tensors can be pinned")
    return tensor if is_pinned(tensor) else pinned(tensor.clone())
