"""What a matched collective does to values where none are computed: it moves those that are known, and says what is assumed.

Where all tensors of all members have bytes (host tensors and what is small) the collective moves them as it always does, and
what any member assumed is assumed of all that it gives. Otherwise nothing moves.

A member's process knows its own tensors alone: it says what it brings (:class:`Brought`), all that is brought gives one
:class:`Effect`, and each member notes that with its own tensors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from kernbench.simulation.assumptions import fill
from kernbench.simulation.storages import SMALL_BYTES, StorageTable, Stored
from kernbench.simulation.tensors import plain, storage_of


class Effect(NamedTuple):
    """What a collective has done to values.

    Attributes:
        moved: whether it has moved them.
        unknown: if it has, whether anything that was brought is assumed.
        stand_in: else, what the outputs' elements are taken to be on average; None: nothing is known of them.
    """

    moved: bool
    unknown: bool = False
    stand_in: float | None = None


@dataclass(slots=True)
class Brought:
    """What is known of the tensors of one member's call.

    Attributes:
        has_bytes: whether the bytes of all of them are values, known or assumed.
        unknown: whether values of its inputs are assumed.
        stand_in: of the first of its inputs of which anything is noted.
        effect: what the collective has done, for a member whose tensors are elsewhere.
    """

    has_bytes: bool
    unknown: bool
    stand_in: float | None
    effect: Effect | None = None


def _noted(storages: StorageTable, tensors: Sequence[torch.Tensor]) -> Iterator[Stored]:
    for tensor in tensors:
        stored = storages.of(tensor)
        if stored is not None:
            yield stored


def brought_by(storages: StorageTable, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> Brought:
    """What a member brings."""
    first = next(_noted(storages, inputs), None)
    return Brought(
        has_bytes=not any(stored.hollow for stored in _noted(storages, (*inputs, *outputs))),
        unknown=any(stored.unknown for stored in _noted(storages, inputs)),
        stand_in=None if first is None else first.stand_in,
    )


def all_have_bytes(members: Sequence[Brought]) -> bool:
    """Whether the collective can move its values."""
    return all(member.has_bytes for member in members)


def not_moved(members: Sequence[Brought], *, reduces: bool) -> Effect:
    """What becomes of the outputs where nothing moves."""
    return Effect(False, stand_in=None if reduces else members[0].stand_in)


def note(
    storages: StorageTable, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], effect: Effect
) -> None:
    """Note with a member's tensors what the collective has done to them."""
    if effect.moved:
        _note_moved(storages, outputs, unknown=effect.unknown)
    else:
        _note_assumed(storages, inputs, outputs, effect.stand_in)


def _note_moved(storages: StorageTable, outputs: Sequence[torch.Tensor], *, unknown: bool) -> None:
    written: Counter[int] = Counter()
    for tensor in outputs:
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


def _note_assumed(
    storages: StorageTable, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], value: float | None
) -> None:
    given = {id(tensor) for tensor in inputs}
    for tensor in outputs:
        stored = storages.note(tensor)
        stored.stated = False
        stored.hollow |= tensor.nbytes > SMALL_BYTES
        if stored.hollow:
            stored.stand_in = value
            continue
        if id(tensor) not in given:
            fill(plain(tensor).data, value)
        stored.stand_in = 0.0
