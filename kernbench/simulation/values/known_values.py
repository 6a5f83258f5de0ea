"""What is known of storages where no data is computed: whole numbers of any size, and the parts of what began empty.

What steers a program is whole numbers: lengths, places, and the bytes of what was pickled. The host has made them, so they are
no more than it can hold; they stay known whatever their size, through copies to a GPU and back, and collectives. Numbers with
a point are weights and activations, known on a GPU only where they are small.

An empty tensor is known once all of it has been written with what is known; until then, the parts that have been. So are
parts of one that is not known, of which the host says what they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from kernbench.simulation.memory.storages import Span, StorageTable, Stored, borrowed_bytes
from kernbench.simulation.memory.tensor_queries import plain_of, storage_of

WHOLE = frozenset({
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64,
})  # fmt: skip
"""Types of whole numbers."""


MOST_PATCHED = 1 << 26
"""Bytes of a storage that began empty up to which it has values once some are written into a part of it."""


def are_whole(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether all of them are whole numbers, each with a memory of its own."""
    return all(tensor.dtype in WHOLE and tensor.layout is torch.strided for tensor in tensors)


def keep(storages: StorageTable, tensor: torch.Tensor) -> None:
    """A tensor of the host, which is going to be put on a GPU, is known, or assumed byte by byte: so it will be there."""
    if tensor.nbytes > storages.most_bytes and are_whole((tensor,)):
        storages.note(tensor).kept = True


def span_of(tensor: torch.Tensor) -> Span | None:
    """Which bytes of its storage a tensor has; None if these are not all between its first and its last."""
    tensor = plain_of(tensor)
    if not tensor.is_contiguous():
        return None
    begin = int(tensor.storage_offset()) * tensor.element_size()
    return begin, begin + tensor.nbytes


def without(spans: tuple[Span, ...], span: Span) -> tuple[Span, ...]:
    """What is left of ``spans`` where there is no ``span``."""
    begin, end = span
    left = []
    for low, high in spans:
        left += [part for part in ((low, min(high, begin)), (max(low, end), high)) if part[0] < part[1]]
    return tuple(left)


def is_unknown(stored: Stored, tensor: torch.Tensor) -> bool:
    """Whether a tensor with this storage has values that were not computed from known ones."""
    if stored.missing is None or not stored.unknown:
        return stored.unknown
    span = None if stored.hollow else span_of(tensor)
    return span is None or without(stored.missing, span) != stored.missing


def can_hold(storages: StorageTable, outputs: Sequence[torch.Tensor]) -> bool:
    """Whether all outputs of a collective or a copy can hold values: they do, or are whole numbers in memory that has none
    because it is large, of which nothing will be left, or which began empty."""
    hollow: dict[int, tuple[Stored, list[torch.Tensor]]] = {}
    for tensor in outputs:
        stored = storages.of(tensor)
        if stored is not None and stored.hollow:
            if not are_whole((tensor,)) or span_of(tensor) is None:
                return False
            hollow.setdefault(id(stored), (stored, []))[1].append(tensor)
    return all(_is_patched(stored, tensors[0]) or not _left(tensors) for stored, tensors in hollow.values())


def _is_patched(stored: Stored, tensor: torch.Tensor) -> bool:
    return stored.missing is not None and storage_of(tensor).nbytes() <= MOST_PATCHED


def _left(outputs: Sequence[torch.Tensor]) -> tuple[Span, ...]:
    """The bytes of a storage that none of these, which are parts of it, has."""
    left: tuple[Span, ...] = ((0, storage_of(outputs[0]).nbytes()),)
    for tensor in outputs:
        span = span_of(tensor)
        if span is not None:
            left = without(left, span)
    return left


def write(storages: StorageTable, outputs: Sequence[torch.Tensor], *, unknown: bool = False) -> None:
    """Values have been written into tensors, all of their bytes; ``unknown``: values that are assumed."""
    written: dict[int, tuple[Stored, list[torch.Tensor]]] = {}
    for tensor in outputs:
        stored = storages.note(tensor) if unknown else storages.of(tensor)
        if stored is not None:
            written.setdefault(id(stored), (stored, []))[1].append(tensor)
    for stored, tensors in written.values():
        stored.stated = False
        if stored.hollow:
            _fill(stored, tensors)
        if unknown:
            stored.stand_in, stored.missing = 0.0, None
            continue
        if stored.missing is not None:
            for span in filter(None, map(span_of, tensors)):
                stored.missing = without(stored.missing, span)
        if not stored.missing if stored.missing is not None else not _left(tensors):
            stored.stand_in = stored.missing = None


def know(storages: StorageTable, tensor: torch.Tensor, values: torch.Tensor) -> None:
    """A tensor has these values, of its shape: the host knows what a GPU has computed beside others that are not known."""
    stored = storages.note(tensor)
    if not is_unknown(stored, tensor):
        return
    if stored.missing is None:
        stored.missing = ((0, storage_of(tensor).nbytes()),)
    write(storages, (tensor,))
    plain_of(tensor).data.copy_(values)


def _fill(stored: Stored, tensors: Sequence[torch.Tensor]) -> None:
    """A storage that had no values has those that have been written into some tensors, and zeros."""
    stored.hollow, stored.stand_in = False, 0.0
    storage, allocation = storage_of(tensors[0]), stored.allocation
    memory = borrowed_bytes(storage.data_ptr(), storage.nbytes())
    for begin, end in _left(tensors):
        memory[begin:end] = 0
    if allocation is not None and allocation.backing is None:
        stored.table.memory_store.back(allocation, memory)
