"""Memory as a reader sees it that nothing orders behind the last writes: for as long as it reads, what these replaced is back.

:mod:`kernbench.order.weak` says what a reader may see, and which of it does; here is what it takes to show it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from kernbench.order import ByteRegion, MemoryAccess, RankOrder, ReplacedBytes, Shadow, Strand
from kernbench.simulation.memory.tensor_queries import plain, poison, storage_of
from kernbench.simulation.order.shadow_memory import StorageShadow, region_in, shadow_of


class OlderView(NamedTuple):
    """Bytes of a storage that a reader sees as they were before.

    Attributes:
        storage: all its bytes, uint8 [nbytes].
        shadow: of the storage.
        replaced: what they were.
    """

    storage: torch.Tensor
    shadow: Shadow
    replaced: ReplacedBytes


class FutureWrite(NamedTuple):
    """What a write is about to replace.

    Attributes:
        shadow: of the storage.
        region: the bytes.
        values: what they are; None: unwritten.
    """

    shadow: Shadow
    region: ByteRegion
    values: torch.Tensor | None

    def written(self, write: MemoryAccess) -> None:
        """It has been done."""
        self.shadow.replaced(write, self.region, self.values, 0 if self.values is None else self.values.nbytes)


def about_to_write(shadow: Shadow, storage: torch.Tensor, region: ByteRegion) -> FutureWrite:
    """Keep what a write is about to replace; ``storage``: uint8 [nbytes]."""
    undefined = shadow.undefined
    fresh = undefined is not None and undefined.whole(region)
    return FutureWrite(shadow, region, None if fresh else bytes_in(storage, region).clone())


def writes_of(order: RankOrder, tensors: Iterable[torch.Tensor]) -> list[FutureWrite]:
    """Keep what an operation is about to replace that writes these tensors."""
    return [about_to_write(kept.shadow, bytes_of(tensor), region) for tensor, kept, region in _parts(order, tensors)]


def written_anew(order: RankOrder, tensors: Iterable[torch.Tensor]) -> None:
    """An operation has given tensors in memory of their own, and was the first to write there: before that was anything."""
    for _, kept, region in _parts(order, tensors):
        made = kept.shadow.made
        if made is not None and kept.shadow.earlier is None and kept.shadow.writer(region) is made:
            kept.shadow.replaced(made, region)


def older_of(
    order: RankOrder, name: str, tensors: Iterable[torch.Tensor], strand: Strand, *behind: Strand
) -> list[OlderView]:
    """What an operation of one strand sees instead of what is in these tensors, if memory is weak.

    ``behind``: strands that it comes after besides.
    """
    if order.weak is None:
        return []
    readers: dict[int, tuple[torch.Tensor, Shadow, list[ByteRegion]]] = {}
    for tensor, kept, region in _parts(order, tensors):
        if kept.shadow.earlier is not None:
            readers.setdefault(id(kept.shadow), (tensor, kept.shadow, []))[2].append(region)
    found = []
    for tensor, shadow, regions in readers.values():
        may = shadow.older([(region, (strand, *behind)) for region in regions])
        if may:
            reader = MemoryAccess(strand, strand.n + 1, name, order.locate())
            found += [OlderView(bytes_of(tensor), shadow, each) for each in order.weak.seen(reader, may)]
    return found


def _parts(
    order: RankOrder, tensors: Iterable[torch.Tensor]
) -> Iterator[tuple[torch.Tensor, StorageShadow, ByteRegion]]:
    for tensor in tensors:
        kept = shadow_of(order, tensor)
        region = None if kept is None else region_in(kept, tensor)
        if kept is not None and region is not None:
            yield tensor, kept, region


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """All bytes of a tensor's storage, uint8 [nbytes]."""
    storage: Any = storage_of(tensor)
    return torch.empty(0, dtype=torch.uint8).set_(storage)


def bytes_in(storage: torch.Tensor, region: ByteRegion) -> torch.Tensor:
    """A view of the bytes of a region; ``storage``: uint8 [nbytes]."""
    if region.dense:
        return storage[region.lo : region.hi]
    sizes, strides = zip(*region.strides, strict=True)
    return storage.as_strided((*sizes, region.run), (*strides, 1), region.lo)


@contextmanager
def as_before(older: Sequence[OlderView], written: Iterable[torch.Tensor] = ()) -> Iterator[None]:
    """For the length of a block, memory is as a reader sees it.

    Args:
        older: of one storage the last that was replaced first.
        written: what the block writes, which stays.
    """
    if not older:
        yield
        return
    kept = []
    for storage, shadow, replaced in older:
        view = bytes_in(storage, replaced.region)
        kept.append((view, view.clone()))
        if replaced.values is None:
            _forget(view, shadow)
        else:
            view.copy_(replaced.values)
    try:
        yield
    finally:
        results = [(tensor, tensor.clone()) for tensor in (plain(each).data for each in written)]
        for view, values in reversed(kept):
            view.copy_(values)
        for tensor, values in results:
            tensor.copy_(values)


def _forget(view: torch.Tensor, shadow: Shadow) -> None:
    """Bytes that were unwritten: what shows, of the dtype that they have now."""
    dtype = torch.uint8 if shadow.tensor is None else shadow.tensor[0]
    if view.dim() == 1 and view.storage_offset() % dtype.itemsize == 0 and len(view) % dtype.itemsize == 0:
        poison(view.view(dtype))
    else:
        poison(view)
