"""Pinned memory: on a simulated host a note that is kept with the storage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.types import Device

from kernbench.simulation.memory.tensor_queries import storage_of
from kernbench.torch_backend.gpu.tensors.placement import block_of, components_of
from kernbench.torch_backend.relies_on import Reliance

_PINNED = "_kernbench_pinned"

_takes: Callable[[int], object] | None = None
_registered: dict[int, int] = {}
"""Memory of the host that programs have pinned where it is: sizes in bytes by addresses."""


RELIES_ON = (Reliance("torch._C.TensorBase.untyped_storage", "a storage's Python object keeps attributes"),)


def pinned(tensor: torch.Tensor) -> torch.Tensor:
    """Note that a tensor is in pinned memory, which on a simulated host all memory is as good as."""
    storage: Any = storage_of(tensor)
    if getattr(storage, _PINNED, None) is None:
        setattr(storage, _PINNED, (None if _takes is None else _takes(storage.nbytes())) or True)
    return tensor


def is_pinned(tensor: torch.Tensor, device: Device = None) -> bool:
    """``Tensor.is_pinned``; of a sparse tensor: whether what it consists of is."""
    if parts := components_of(tensor):
        return all(map(is_pinned, parts))
    return bool(getattr(storage_of(tensor), _PINNED, False)) or (bool(_registered) and _is_registered(tensor))


def register(address: int, size: int) -> bool:
    """Pin memory of the host by its address; False if that has been done."""
    if address in _registered:
        return False
    _registered[address] = size
    return True


def unregister(address: int) -> bool:
    """Pin it no more; False if it was not."""
    return _registered.pop(address, None) is not None


def count_by(takes: Callable[[int], object]) -> None:
    """``takes`` counts pinned memory: it gives what stands for a block of so many bytes, as long as that is in use."""
    global _takes
    _takes = takes


def forget() -> None:
    """The ranks have ended, and with them what they have registered and pinned."""
    global _takes
    _takes = None
    _registered.clear()


def _is_registered(tensor: torch.Tensor) -> bool:
    if block_of(tensor) is not None:
        return False
    begin = tensor.untyped_storage().data_ptr()
    return any(address <= begin < address + size for address, size in _registered.items())


def pin_memory(tensor: torch.Tensor, device: Device = None) -> torch.Tensor:
    """``Tensor.pin_memory``: a copy, unless it is pinned. Raises RuntimeError for a tensor on a GPU."""
    if block_of(tensor) is not None:
        raise RuntimeError(f"cannot pin '{tensor.type()}' only dense CPU tensors can be pinned")
    return tensor if is_pinned(tensor) else pinned(tensor.clone())
