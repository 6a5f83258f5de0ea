"""The shadows of tensors' storages: where torch's operations, collectives and copies say what they touch.

A shadow lives with its storage, as what else is known of one does (:mod:`kernbench.simulation.storages`). When the storage
dies, or is resized, the memory goes back to the pool of the stream that it was allocated on, which may give it out again.
"""

from __future__ import annotations

from typing import Any

import torch

from kernbench.memory.ledger import EXTENT
from kernbench.order import ByteRegion, MemoryAccess, RankOrder, region_of
from kernbench.simulation.storages import NOTE, Block
from kernbench.simulation.tensors import storage_of

SHADOW = "_kernbench_shadow"
"""The attribute of a storage that is its :class:`StorageShadow`."""


class StorageShadow:
    """The shadow of one storage, until its memory is given back.

    Attributes:
        whole: all its bytes.
        world: of the ranks that touch it.
    """

    __slots__ = ("_address", "_order", "_recorded", "_stream", "shadow", "whole", "world")

    def __init__(self, order: RankOrder, tensor: torch.Tensor, storage: Any) -> None:
        nbytes = storage.nbytes()
        block = getattr(storage, NOTE, None)
        self.world = order.world
        self.whole = ByteRegion(0, nbytes)
        self._order: RankOrder | None = None
        self._address = 0
        self._stream = ""
        self._recorded: set[str] = set()
        shared = False
        if type(block) is Block:
            shared = block.shared
            extent = None if block.entry is None else block.entry[EXTENT]
            if extent is not None and not shared:
                self._order, self._address, self._stream = block.owner.host.order, extent.address, extent.pool.stream
        of_pool = self._order is order
        self.shadow = order.shadow(nbytes, shared=shared, address=self._address if of_pool else None)
        self.shadow.title = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
        self.shadow.itemsize = tensor.element_size()

    def record_stream(self, name: str) -> None:
        """The pool waits for what is on a stream before it gives the memory out again."""
        self._recorded.add(name)

    def give_back(self) -> None:
        """The memory is the pool's again. Idempotent."""
        order, self._order = self._order, None
        if order is not None:
            order.returned(self.shadow, self._address, self._stream, self._recorded)

    def __del__(self) -> None:
        self.give_back()


def touch(order: RankOrder, tensor: torch.Tensor, access: MemoryAccess, *, writes: bool, fresh: bool = False) -> None:
    """An operation touches a tensor.

    ``fresh``: it gives it, as new memory; one whose memory was there before is another view of what it was given.

    Raises :class:`~kernbench.errors.RaceError` if nothing orders it and an access before it (unless they are collected).
    """
    try:
        storage: Any = storage_of(tensor)
    except (NotImplementedError, RuntimeError):
        return  # sparse tensors have none: their parts are touched by operations of their own
    kept: StorageShadow | None = getattr(storage, SHADOW, None)
    if kept is None or kept.world is not order.world:
        kept = StorageShadow(order, tensor, storage)
        setattr(storage, SHADOW, kept)
        kept.shadow.made = access
    elif fresh:
        writes = False
    if tensor.is_contiguous():
        nbytes, lo = tensor.nbytes, int(tensor.storage_offset())
        if not nbytes:
            return
        if lo:
            lo *= tensor.element_size()
        region: ByteRegion | None = kept.whole if nbytes == kept.whole.hi and not lo else ByteRegion(lo, lo + nbytes)
    else:
        region = region_of(tensor.shape, tensor.stride(), int(tensor.storage_offset()), tensor.element_size())
    if region is None:
        return
    if writes:
        kept.shadow.write(access, region)
    else:
        kept.shadow.read(access, region)


def record_stream(storage: Any, name: str) -> None:
    """``Tensor.record_stream`` of a tensor with this storage."""
    kept: StorageShadow | None = getattr(storage, SHADOW, None)
    if kept is not None:
        kept.record_stream(name)


def forget(storage: Any) -> None:
    """A storage is about to change its size: what memory it has goes back, and what it gets is other memory."""
    kept: StorageShadow | None = getattr(storage, SHADOW, None)
    if kept is not None:
        kept.give_back()
        delattr(storage, SHADOW)
