"""Storages of simulated GPUs by themselves: ``torch.UntypedStorage`` says that it is on ``cuda:N``, is made and copied there.

C++ has them on the CPU. torch's modules that write a storage's bytes or share its memory ask where these are, which is the
host's memory.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
from torch.types import Device

from kernbench.torch_backend.gpu.device.devices import current_device
from kernbench.torch_backend.gpu.tensors.placement import block_of_storage, place_storage
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

RELIES_ON = (
    Reliance("torch.UntypedStorage", "programs make storages, and copy them, by it", has=("device", "copy_", "is_shared")),
    Reliance("torch._utils._to", "storages' `cuda` and `to` make one there, and copy to it",
             holds=lambda function: "UntypedStorage" in function.__code__.co_names),
    Reliance("sys._getframe", "whose code asks where a storage is"),
)  # fmt: skip

_TAKE_BYTES = frozenset(("torch.serialization", "torch.multiprocessing.reductions", "torch.package.package_exporter"))
"""Modules that ask where the bytes are."""


def install(patches: Patches) -> None:
    """Let storages say where they are."""
    cls: Any = torch.UntypedStorage
    patches.add(cls, "device", property(_device_of(cls.device)))
    patches.add(cls, "__new__", staticmethod(_new(cls.__new__)))
    patches.add(cls, "copy_", _copies(cls.copy_))
    patches.add(cls, "is_shared", _shared(cls.is_shared))


def _device_of(stock: Any) -> Any:
    def device(self: Any) -> torch.device:
        block, mine = block_of_storage(self), current_device()
        if block is not None and mine is not None and sys._getframe(1).f_globals.get("__name__") not in _TAKE_BYTES:
            return torch.device("cuda", mine.index_of(block.memory.sip))
        found: torch.device = stock.__get__(self)
        return found

    return device


def _new(stock: Any) -> Any:
    @functools.wraps(stock)
    def new(cls: type, *args: object, device: Device = None, **kwargs: object) -> Any:
        mine = current_device()
        if mine is None or device is None or (type(device) is not int and torch.device(device).type != "cuda"):
            return stock(cls, *args, **kwargs) if device is None else stock(cls, *args, device=device, **kwargs)
        mine.host.uses_gpu = True
        made = stock(cls, *args, **kwargs)
        place_storage(made, mine.memory_at(device))
        return made

    return new


def _shared(stock: Any) -> Any:
    @functools.wraps(stock)
    def is_shared(self: Any) -> bool:
        return self.is_cuda or bool(stock(self))

    return is_shared


def _copies(stock: Any) -> Any:
    @functools.wraps(stock)
    def copy_(self: Any, source: Any, non_blocking: bool | None = None) -> Any:
        if current_device() is None or not (block_of_storage(self) or block_of_storage(source)):
            return stock(self, source, non_blocking)
        storages = (self, getattr(source, "_untyped_storage", source))
        target, bytes_of_source = (torch.empty(0, dtype=torch.uint8, device="cpu").set_(each) for each in storages)
        target.copy_(bytes_of_source, non_blocking=bool(non_blocking))
        return self

    return copy_
