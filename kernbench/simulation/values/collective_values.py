"""What a matched collective does to values where none are computed: it moves those that are known, and says what is assumed.

Where all that the members bring has bytes (host tensors, what is small, known whole numbers), and what they get can hold them,
the collective moves them as it always does, and what any member assumed is assumed of all that it gives. Otherwise nothing
moves.

A member's process knows its own tensors alone: it says what it brings (:class:`Brought`), all that is brought gives one
:class:`Effect`, and each member notes that with its own tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from kernbench.collective_kinds import KINDS
from kernbench.simulation.memory.storages import SMALL_BYTES, StorageTable
from kernbench.simulation.memory.tensor_queries import plain
from kernbench.simulation.values.assumptions import fill
from kernbench.simulation.values.collective_cells import Cells, wholes
from kernbench.simulation.values.known_values import can_hold, is_unknown, write


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
        has_bytes: whether the bytes of its inputs are values, known or assumed, and its outputs can hold some.
        unknown: whether values of its inputs are assumed.
        stand_in: of the first of its inputs of which anything is noted.
        effect: what the collective has done, for a member whose tensors are elsewhere.
    """

    has_bytes: bool
    unknown: bool
    stand_in: float | None
    effect: Effect | None = None


def that_matter(op: str, root: int | None, rank: int, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Of a rank's inputs of a collective those whose values go anywhere: where the root gives all there is, the root's."""
    return () if root not in (None, rank) and KINDS[op].root == "gives" else inputs


def brought_by(storages: StorageTable, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> Brought:
    """What a member brings: ``inputs`` that matter, and room for ``outputs``."""
    inputs, outputs = wholes(inputs), wholes(outputs)
    noted = [(stored, tensor) for tensor in inputs if (stored := storages.of(tensor)) is not None]
    return Brought(
        has_bytes=not any(stored.hollow for stored, _ in noted) and can_hold(storages, outputs),
        unknown=any(is_unknown(stored, tensor) for stored, tensor in noted),
        stand_in=noted[0][0].stand_in if noted else None,
    )


def note_copies(storages: StorageTable, inputs: Sequence[torch.Tensor]) -> None:
    """C++ has copied what is not known into these tensors, unless something is noted of them. Large ones have no values."""
    for tensor in wholes(inputs):
        if storages.of(tensor) is None and tensor.nbytes <= storages.most_bytes:
            storages.note(tensor).stand_in = 0.0


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
        write(storages, wholes(outputs), unknown=effect.unknown)
    else:
        _note_assumed(storages, inputs, outputs, effect.stand_in)


def _note_assumed(
    storages: StorageTable, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], value: float | None
) -> None:
    given = {id(tensor) for tensor in wholes(inputs)}
    nbytes = outputs.nbytes if type(outputs) is Cells else 0  # what is large is large in each cell
    for tensor in wholes(outputs):
        stored = storages.note(tensor)
        stored.stated, stored.missing = False, None
        stored.hollow |= (nbytes or tensor.nbytes) > SMALL_BYTES
        if stored.hollow:
            stored.stand_in = value
            continue
        if id(tensor) not in given:
            fill(plain(tensor).data, value)
        stored.stand_in = 0.0
