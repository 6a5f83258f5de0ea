"""The shadows of tensors' storages: where torch's operations, collectives and copies say what they touch.

A shadow lives with its storage, as what else is known of one does (:mod:`.storages`). When the storage
dies, or is resized, the memory goes back to the pool of the stream that it was allocated on, which may give it out again.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from kernbench.memory.ledger import EXTENT
from kernbench.order import ByteRegion, MemoryAccess, RankOrder, Shadow, Undefined, region_of
from kernbench.simulation.memory.storages import NOTE, Block, Stored
from kernbench.simulation.memory.tensor_queries import plain_of, storage_of

_untyped_storage: Any = torch.Tensor.untyped_storage

SHADOW = "_kernbench_shadow"
"""The attribute of a storage that is its :class:`StorageShadow`."""


class StorageShadow:
    """The shadow of one storage, until its memory is given back.

    Attributes:
        captured: whether a graph that is being captured was the first to touch it, which has memory of its own.
        lent: what messages that may be on their way have taken of it.
        whole: all its bytes.
        world: of the ranks that touch it.
        on_gpu: whether it is on one.
    """

    __slots__ = ("_address", "_order", "_recorded", "_stream", "captured", "lent", "on_gpu", "shadow", "whole", "world")

    def __init__(self, order: RankOrder, tensor: torch.Tensor, storage: Any) -> None:
        nbytes = storage.nbytes()
        self.world = order.world
        self.whole = ByteRegion(0, nbytes)
        self.on_gpu = False
        self.captured = order.capturing is not None
        self._order: RankOrder | None = None
        self._address = 0
        self._stream = ""
        self._recorded: set[str] | None = None
        self.lent: list[weakref.ref[torch.Tensor]] = []
        self.shadow = Shadow(order.report, nbytes)
        self.shadow.tensor = tensor.dtype, tensor.shape
        self.place(order, storage)

    def place(self, order: RankOrder, storage: object) -> None:
        """Find out where the storage is: C++ may make one that is on a GPU only when its operation has been called."""
        block = getattr(storage, NOTE, None)
        if type(block) is not Block:
            return
        self.on_gpu = True
        allocation = block.allocation
        if allocation is not None:
            if allocation.shadow is None:
                allocation.shadow = self.shadow
            else:
                self.shadow = allocation.shadow  # kernels of other ranks have been there
        self.shadow.shared |= block.shared
        extent = None if block.entry is None else block.entry[EXTENT]
        if extent is not None and not block.shared and not self.captured:
            self._order, self._address, self._stream = block.owner.host.order, extent.address, extent.pool.stream
            if self._order is order:
                order.handed_out(self.shadow, extent.address)

    def record_stream(self, name: str) -> None:
        """The pool waits for what is on a stream before it gives the memory out again."""
        self._recorded = {*(self._recorded or ()), name}

    def lend(self, taken: torch.Tensor) -> None:
        """A message has taken it."""
        self.lent = [*(each for each in self.lent if each() is not None), weakref.ref(taken)]

    def lose(self, order: RankOrder, stream: str) -> None:
        """The tensor that a library may have is going to have other memory, and this has no other owner. Raises RaceError."""
        order.lost(self.shadow, self._stream or stream)

    def give_back(self) -> None:
        """The memory is the pool's again. Idempotent."""
        order, self._order = self._order, None
        if order is not None:
            order.returned(self.shadow, self._address, self._stream, self._recorded or ())

    __del__ = give_back


def shadow_of(order: RankOrder, tensor: torch.Tensor) -> StorageShadow | None:
    """The shadow of a tensor's storage, a new one where there is none.

    None for a sparse tensor, which has no storage: its parts are touched by operations of their own.
    """
    try:
        storage: Any = _untyped_storage(tensor) if type(tensor) is torch.Tensor else storage_of(tensor)
    except (NotImplementedError, RuntimeError):
        return None
    kept: StorageShadow | None = getattr(storage, SHADOW, None)
    if kept is None or kept.world is not order.world:
        kept = StorageShadow(order, plain_of(tensor), storage)
        setattr(storage, SHADOW, kept)
    elif not kept.on_gpu:
        kept.place(order, storage)
    return kept


def region_in(kept: StorageShadow, tensor: torch.Tensor) -> ByteRegion | None:
    """Which bytes of its storage a tensor has; None for one without elements."""
    tensor = plain_of(tensor)  # a lazy parameter does not tell
    if tensor.is_contiguous():
        nbytes, lo = tensor.nbytes, int(tensor.storage_offset())
        if not nbytes:
            return None
        if lo:
            lo *= tensor.element_size()
        return kept.whole if nbytes == kept.whole[1] and not lo else ByteRegion(lo, lo + nbytes)
    return region_of(tensor.shape, torch.Tensor.stride(tensor), int(tensor.storage_offset()), tensor.element_size())


def touch(
    kept: StorageShadow, tensor: torch.Tensor, access: MemoryAccess, *, writes: bool, fresh: bool = False
) -> None:
    """An operation touches a tensor, whose storage has this shadow.

    ``fresh``: it gives it, as new memory; one whose memory was there before is another view of what it was given.

    Raises :class:`~kernbench.errors.RaceError` if nothing orders it and an access before it (unless they are collected).
    """
    shadow = kept.shadow
    if shadow.made is None:
        shadow.made = access
    elif fresh:
        writes = False
    region = region_in(kept, tensor)
    if region is None:
        return
    if writes:
        shadow.write(access, region)
    else:
        shadow.read(access, region)


def allocated(order: RankOrder, tensor: torch.Tensor, name: str, *, zeros: bool = False) -> None:
    """Memory has been taken for a tensor, by the operation ``name``, and it is unwritten.

    ``zeros``: its allocator has cleared it, which is not promised: it may be counted up from there, but says nothing.
    """
    kept = shadow_of(order, tensor)
    if kept is not None and kept.shadow.made is None and kept.whole.hi:
        made = MemoryAccess(order.host, order.host.n, name, order.locate())
        kept.shadow.made, kept.shadow.undefined = made, Undefined(made, kept.whole, zeros=zeros)


def escapes(tensor: torch.Tensor) -> None:
    """A tensor is given to code that is not observed: it may write it."""
    kept: StorageShadow | None = getattr(storage_of(tensor), SHADOW, None)
    if kept is not None:
        kept.shadow.undefined = None


def link(order: RankOrder, tensor: torch.Tensor, stored: Stored | None) -> None:
    """A launch is given a tensor: have its shadow found by the address of its memory, as kernels find memory."""
    kept = shadow_of(order, tensor)
    if kept is not None and stored is not None and stored.allocation is not None:
        if stored.allocation.shadow is None:
            stored.allocation.shadow = kept.shadow
        else:
            kept.shadow = stored.allocation.shadow


def record_stream(storage: object, name: str) -> None:
    """``Tensor.record_stream`` of a tensor with this storage."""
    kept: StorageShadow | None = getattr(storage, SHADOW, None)
    if kept is not None:
        kept.record_stream(name)


def lose_memory(order: RankOrder, stream: str, storage: object, references: int) -> None:
    """A tensor with this storage is about to get another one; ``references``: that others have to it, messages among them.

    Raises :class:`~kernbench.errors.RaceError` if a library may still be at work on it (unless races are collected).
    """
    kept: StorageShadow | None = getattr(storage, SHADOW, None)
    if kept is not None and references <= len([each for each in kept.lent if each() is not None]):
        kept.lose(order, stream)


def forget(storage: object, *, captured: int | None = None) -> None:
    """A storage is about to change its size: what memory it has goes back, and what it gets is other memory.

    ``captured``: the bytes that it will have, if a graph does it, in each of whose replays it has the same memory.
    """
    kept: StorageShadow | None = getattr(storage, SHADOW, None)
    if kept is not None:
        if kept.captured and captured in (0, kept.whole.hi):
            return
        kept.give_back()
        delattr(storage, SHADOW)
    block = getattr(storage, NOTE, None)
    if type(block) is Block and block.allocation is not None:
        block.allocation.shadow = None  # its place among the addresses stays
