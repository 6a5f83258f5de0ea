"""Which tensors are on a simulated GPU, and how much memory they take there.

A tensor that a program has put on ``cuda`` is a CPU tensor whose storage carries a :class:`Block`. Operations on such
tensors give such tensors. A block counts against the HBM of its rank's SIP until its storage dies.

A subclass that wraps tensors (DTensor, AsyncCollectiveTensor) is where they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernbench.torch_backend.relies_on import Reliance

_ATTRIBUTE = "_kernbench_block"

PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Types of tensors that have a storage of their own."""


def _keeps_attributes(untyped_storage: Any) -> bool:
    tensor = torch.zeros(1)
    untyped_storage(tensor).kernbench_seen = True
    view = tensor.view(-1)
    del tensor
    return bool(untyped_storage(view).kernbench_seen)


RELIES_ON = (
    Reliance("torch._C.TensorBase.untyped_storage", "its Python object, with attributes, lives as long as the storage",
             holds=_keeps_attributes),
    Reliance(
        "torch.distributed.tensor.DTensor.__tensor_flatten__", "it names the attributes of a wrapper that are tensors",
        parameters=("self",),
    ),
)  # fmt: skip


class DeviceMemory:
    """Bytes allocated on one SIP by torch tensors.

    Args:
        index: of the SIP, as torch counts devices.
        capacity: bytes.
        changed: told of each change, bytes; None once nobody wants to know.
    """

    def __init__(self, index: int, capacity: int, changed: Callable[[int], None] | None = None) -> None:
        self.changed = changed
        self.index = index
        self.capacity = capacity
        self.used = 0
        self.peak = 0
        self.fraction = 1.0
        self.limited = False

    def reserve(self, nbytes: int) -> None:
        """Count ``nbytes`` more. Raises ``torch.OutOfMemoryError`` if the SIP is full and the program asked for limits."""
        used = self.used + nbytes
        if self.limited and used > self.capacity * self.fraction:
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {nbytes / 2**20:.2f} MiB. GPU {self.index} has a total capacity "
                f"of {self.capacity / 2**30:.2f} GiB of which {(self.capacity - self.used) / 2**30:.2f} GiB is free "
                f"(simulated; {self.used / 2**30:.2f} GiB is allocated by PyTorch)."
            )
        self.used = used
        if used > self.peak:
            self.peak = used
        if self.changed is not None:
            self.changed(nbytes)

    def release(self, nbytes: int) -> None:
        """Count ``nbytes`` less."""
        self.used -= nbytes
        if self.changed is not None:
            self.changed(-nbytes)


class Block:
    """The memory of one storage on a SIP.

    ``shared``: other ranks address it too, each as memory of its own device (symmetric memory).
    """

    __slots__ = ("memory", "nbytes")

    shared = False

    def __init__(self, memory: DeviceMemory, nbytes: int) -> None:
        memory.reserve(nbytes)
        self.memory = memory
        self.nbytes = nbytes

    def __del__(self) -> None:
        memory = getattr(self, "memory", None)  # none if there was no room
        if memory is not None:
            memory.release(self.nbytes)


class SharedBlock(Block):
    """The memory of a buffer that several ranks address."""

    __slots__ = ()

    shared = True


def block_of(tensor: torch.Tensor) -> Block | None:
    """The block of a tensor's storage, None if it is not on a simulated GPU."""
    try:
        block: Block | None = getattr(torch._C.TensorBase.untyped_storage(tensor), _ATTRIBUTE, None)
    except (NotImplementedError, RuntimeError):  # sparse tensors and tensors without memory have no storage
        block = getattr(tensor, _ATTRIBUTE, None)
    if block is None and type(tensor) not in PLAIN:
        return next(filter(None, map(block_of, wrapped_by(tensor))), None)
    return block


def wrapped_by(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors that a wrapper consists of; none for others."""
    flatten = getattr(type(tensor), "__tensor_flatten__", None)
    names = [] if flatten is None else flatten(tensor)[0]
    return [part for part in (getattr(tensor, name, None) for name in names) if isinstance(part, torch.Tensor)]


def stored_in(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors with a storage that a tensor consists of: itself, unless it is a wrapper."""
    if type(tensor) in PLAIN or not (parts := wrapped_by(tensor)):
        return [tensor]
    return [stored for part in parts for stored in stored_in(part)]


def is_described(cls: type) -> bool:
    """Whether tensors of this class say what a tensor would be, and hold no data: fake and functional tensors."""
    return cls.__module__.startswith("torch._subclasses.")


def place(tensor: torch.Tensor, memory: DeviceMemory | None) -> None:
    """Put a tensor's storage on a SIP, or (None) back on the host."""
    try:
        storage: Any = torch._C.TensorBase.untyped_storage(tensor)
        nbytes = storage.nbytes()
    except (NotImplementedError, RuntimeError):
        storage, nbytes = tensor, 0
    block = getattr(storage, _ATTRIBUTE, None)
    if memory is None:
        if block is not None:
            delattr(storage, _ATTRIBUTE)
    elif block is None or block.memory is not memory:
        setattr(storage, _ATTRIBUTE, Block(memory, nbytes))


def place_wrapper(tensor: torch.Tensor, memory: DeviceMemory) -> None:
    """Let a wrapper whose parts are not known say that it is on a SIP; it takes no memory there itself."""
    setattr(torch._C.TensorBase.untyped_storage(tensor), _ATTRIBUTE, Block(memory, 0))


def place_shared(tensor: torch.Tensor, memory: DeviceMemory) -> None:
    """Put a fresh tensor's storage on a SIP where other ranks address it too."""
    setattr(tensor.untyped_storage(), _ATTRIBUTE, SharedBlock(memory, tensor.untyped_storage().nbytes()))


def place_storage(storage: Any, memory: DeviceMemory) -> None:
    """Put an untyped storage on a SIP."""
    setattr(storage, _ATTRIBUTE, Block(memory, storage.nbytes()))


__all__ = [
    "PLAIN", "Block", "DeviceMemory", "SharedBlock", "block_of", "is_described", "place", "place_shared", "place_storage",
    "place_wrapper", "stored_in", "wrapped_by",
]  # fmt: skip
