"""What a matched collective does to values where none are computed: it moves those that are known, and says what is assumed.

Where all tensors of all members have bytes (host tensors and what is small) the collective moves them as it always does, and
what any member assumed is assumed of all that it gives. Otherwise nothing moves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import torch

from kernbench.simulation.assumptions import fill
from kernbench.simulation.groups import Arrival
from kernbench.simulation.storages import SMALL_BYTES, StorageTable, Stored
from kernbench.simulation.tensors import plain, storage_of


def _noted(storages: StorageTable, tensors: Sequence[torch.Tensor]) -> Iterator[Stored]:
    for tensor in tensors:
        stored = storages.of(tensor)
        if stored is not None:
            yield stored


def all_have_bytes(storages: StorageTable, arrivals: Sequence[Arrival]) -> bool:
    """Whether the collective can move its values."""
    return not any(
        stored.hollow for arrival in arrivals for stored in _noted(storages, (*arrival.inputs, *arrival.outputs))
    )


def anything_unknown(storages: StorageTable, arrivals: Sequence[Arrival]) -> bool:
    """Whether a member brings values that are assumed."""
    return any(stored.unknown for arrival in arrivals for stored in _noted(storages, arrival.inputs))


def moved(storages: StorageTable, arrivals: Sequence[Arrival], *, unknown: bool) -> None:
    """Note what is known of the outputs after the values have moved."""
    for arrival in arrivals:
        written: Counter[int] = Counter()
        for tensor in arrival.outputs:
            stored = storages.note(tensor) if unknown else storages.of(tensor)
            if stored is None:
                continue
            stored.stated = False
            if unknown:
                stored.stand_in = 0.0
                continue
            storage = storage_of(tensor)
            written[id(stored)] += tensor.nbytes  # outputs may be rows of one tensor, one per member
            if written[id(stored)] >= storage.nbytes():
                stored.stand_in = None


def assumed(storages: StorageTable, arrivals: Sequence[Arrival], *, reduces: bool) -> None:
    """Note what is assumed of the outputs of a collective that has moved nothing."""
    first = next(iter(_noted(storages, arrivals[0].inputs)), None)
    value = None if reduces or first is None else first.stand_in
    for arrival in arrivals:
        given = {id(tensor) for tensor in arrival.inputs}
        for tensor in arrival.outputs:
            stored = storages.note(tensor)
            stored.stated = False
            stored.hollow |= tensor.nbytes > SMALL_BYTES
            if stored.hollow:
                stored.stand_in = value
                continue
            if id(tensor) not in given:
                fill(plain(tensor).data, value)
            stored.stand_in = 0.0
