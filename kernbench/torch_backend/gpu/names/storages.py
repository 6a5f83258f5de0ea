"""Storages of simulated GPUs by themselves: ``torch.UntypedStorage`` says that it is on ``cuda:N``, is made and copied there.

C++ has them on the CPU. torch's modules that write a storage's bytes or share its memory ask where these are, which is the
host's memory.

A slice of a storage is one of its own to C++, over the same memory. What is known of the memory is known of the whole: a tensor
that is given a slice has the whole storage, and begins where the slice does.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.types import Device

from kernbench.errors import KernbenchError
from kernbench.torch_backend.gpu.device.devices import current_device
from kernbench.torch_backend.gpu.tensors.placement import block_of_storage, place_storage
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

RELIES_ON = (
    Reliance("torch.UntypedStorage", "programs make storages, and copy them, by it", has=(
        "device", "copy_", "is_shared", "__getitem__",
    )),
    Reliance("torch.Tensor.set_", "a tensor is given a storage by it"),
    Reliance("torch._utils._to", "storages' `cuda` and `to` make one there, and copy to it",
             holds=lambda function: "UntypedStorage" in function.__code__.co_names),
    Reliance("sys._getframe", "whose code asks where a storage is"),
)  # fmt: skip

_PART = "_kernbench_part"
"""The attribute of a slice that says of which storage it is, and from which byte on."""

_TAKE_BYTES = frozenset(("torch.serialization", "torch.multiprocessing.reductions", "torch.package.package_exporter"))
"""Modules that ask where the bytes are."""


def install(patches: Patches) -> None:
    """Let storages say where they are."""
    cls: Any = torch.UntypedStorage
    patches.add(cls, "device", property(_device_of(cls.device)))
    patches.add(cls, "__new__", staticmethod(_new(cls.__new__)))
    patches.add(cls, "copy_", _copies(cls.copy_))
    patches.add(cls, "is_shared", _shared(cls.is_shared))
    patches.add(cls, "__getitem__", _slices(cls.__getitem__))
    patches.add(torch.Tensor, "set_", _sets(torch.Tensor.set_))


def _whole_of(storage: torch.UntypedStorage) -> tuple[torch.UntypedStorage, int]:
    """The storage of which it is a slice, or itself, and the byte at which it begins there."""
    return getattr(storage, _PART, None) or (storage, 0)


def _slices(stock: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(stock)
    def getitem(self: torch.UntypedStorage, index: object) -> object:
        made = stock(self, index)
        if isinstance(index, slice):
            whole, begin = _whole_of(self)
            if current_device() is not None and block_of_storage(whole) is not None:
                setattr(made, _PART, (whole, begin + index.indices(self.nbytes())[0]))
        return made

    return getitem


def _sets(stock: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(stock)
    def set_(self: torch.Tensor, *args: Any, **kwargs: Any) -> object:
        source = args[0] if args else kwargs.get("source")
        storage = getattr(source, "_untyped_storage", source)
        if not isinstance(storage, torch.UntypedStorage) or not hasattr(storage, _PART):
            return stock(self, *args, **kwargs)
        return stock(self, *_in_whole(self.dtype, storage, *args[1:], **kwargs))

    return set_


def _in_whole(
    dtype: torch.dtype,
    storage: torch.UntypedStorage,
    storage_offset: int = 0,
    size: Any = None,
    stride: object = None,
    **_: object,
) -> tuple[object, ...]:
    """The arguments of ``set_`` that mean the same part of the whole storage. ``storage`` is a slice."""
    whole, begin = _whole_of(storage)
    first, rest = divmod(begin, dtype.itemsize)
    if rest:
        raise KernbenchError(
            f"a tensor of {dtype} on a simulated GPU cannot begin at byte {begin} of a storage: an element has "
            f"{dtype.itemsize} bytes"
        )
    if size is None:
        size = (storage.nbytes() // dtype.itemsize,)
    if stride is None:
        stride = torch.empty(size, device="meta").stride()
    return whole, first + storage_offset, size, stride


def _device_of(stock: Any) -> Any:
    def device(self: torch.UntypedStorage) -> torch.device:
        block, mine = block_of_storage(_whole_of(self)[0]), current_device()
        if block is not None and mine is not None and sys._getframe(1).f_globals.get("__name__") not in _TAKE_BYTES:
            return torch.device("cuda", mine.index_of(block.memory.sip))
        found: torch.device = stock.__get__(self)
        return found

    return device


def _new(stock: Callable[..., torch.UntypedStorage]) -> Callable[..., torch.UntypedStorage]:
    @functools.wraps(stock)
    def new(cls: type, *args: object, device: Device = None, **kwargs: object) -> torch.UntypedStorage:
        mine = current_device()
        if mine is None or device is None or (type(device) is not int and torch.device(device).type != "cuda"):
            return stock(cls, *args, **kwargs) if device is None else stock(cls, *args, device=device, **kwargs)
        mine.host.uses_gpu = True
        made = stock(cls, *args, **kwargs)
        place_storage(made, mine.memory_at(device))
        return made

    return new


def _shared(stock: Callable[..., object]) -> Callable[..., bool]:
    @functools.wraps(stock)
    def is_shared(self: torch.UntypedStorage) -> bool:
        return self.is_cuda or bool(stock(self))

    return is_shared


def _copies(stock: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(stock)
    def copy_(self: torch.UntypedStorage, source: Any, non_blocking: bool | None = None) -> object:
        given = [_whole_of(getattr(each, "_untyped_storage", each))[0] for each in (self, source)]
        if current_device() is None or not any(map(block_of_storage, given)):
            return stock(self, source, non_blocking)
        storages = (self, getattr(source, "_untyped_storage", source))
        target, bytes_of_source = (torch.empty(0, dtype=torch.uint8, device="cpu").set_(each) for each in storages)
        target.copy_(bytes_of_source, non_blocking=bool(non_blocking))
        return self

    return copy_
