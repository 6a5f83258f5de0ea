"""Operations on many whole numbers that are known (:mod:`.known_values`): which are computed, what stays known.

They are computed if they give no more elements than they are given: then known values are never more than the host has made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kernbench.simulation.memory.storages import StorageTable
from kernbench.simulation.memory.tensor_queries import made_tensors, storage_of
from kernbench.simulation.values import known_values
from kernbench.torch_backend.gpu.device.rank_device import RankDevice
from kernbench.torch_backend.hollow.shapes import Described
from kernbench.torch_backend.hollow.stand_ins import is_unknown, stored_of


def stay_whole(device: RankDevice, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether an operation on a GPU, or a copy to it, of tensors that have bytes is of whole numbers alone, and these are not
    weights that a module takes there."""
    return bool(tensors) and not _moves_weights(device) and known_values.are_whole(tensors)


def _moves_weights(device: RankDevice) -> bool:
    return device.doing.moving and device.doing.moving_module


def _elements(tensors: Sequence[torch.Tensor]) -> int:
    """Elements that some tensors have in memory, not counting those that they only repeat."""
    return sum([min(each.numel(), storage_of(each).nbytes() // each.element_size()) for each in tensors])


def gives_whole(made: Sequence[Described], tensors: Sequence[torch.Tensor]) -> bool:
    """Whether what is made of tensors is whole numbers, no more than they have."""
    if not known_values.are_whole(tensors):
        return False
    most = _elements(tensors)
    return all(each.dtype in known_values.WHOLE and each.numel <= most for each in made)


def keep_whole(device: RankDevice, result: Any, tensors: Sequence[torch.Tensor]) -> None:
    """What has been computed of tensors stays known on the GPU, if it is whole numbers, no more than they have."""
    storages = device.simulation.storages
    for each in made_tensors(result):
        if each.layout is not torch.strided or each.nbytes <= storages.most_bytes or _moves_weights(device):
            continue
        if known_values.are_whole(tensors) and each.numel() <= _elements(tensors):
            known_values.keep(storages, each)


def keep_resized(storages: StorageTable, tensors: Sequence[torch.Tensor]) -> None:
    """Tensors that have another size now have the whole numbers that they had, as torch's object collectives expect of an
    object's bytes."""
    for each in tensors:
        stored = stored_of(each)
        if stored is not None and not stored.hollow:
            known_values.keep(storages, each)


def fills_whole(storages: StorageTable, target: torch.Tensor, source: Any) -> bool:
    """Whether ``target``, which has no values because it is large, is to be given whole numbers, one for each of its own."""
    if (
        not isinstance(source, torch.Tensor)
        or source.numel() != target.numel()
        or not known_values.are_whole((target, source))
    ):
        return False
    stored = stored_of(source)
    return (stored is None or not stored.hollow) and known_values.can_hold(storages, (target,))


def filled(storages: StorageTable, target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """``target``, which has been given them."""
    known_values.write(storages, (target,), unknown=is_unknown(source))
    return target
