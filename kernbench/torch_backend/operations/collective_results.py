"""Where the results of functional collectives are: the operation calls a group, and C++ allocates what it gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernbench.simulation.values.known_values import is_unknown
from kernbench.torch_backend.gpu.device.rank_device import RankDevice
from kernbench.torch_backend.gpu.tensors.placement import PLAIN, block_of, place


def call_collective(device: RankDevice, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """A functional collective: C++ allocates what it gives, which is where what it was given is."""
    given = [each for value in args for each in (value if isinstance(value, list | tuple) else (value,))]
    blocks = (block_of(each) for each in given if isinstance(each, torch.Tensor))
    block = next(filter(None, blocks), None) if device.host.uses_gpu else None
    doing = device.doing
    before = doing.collective_memory, doing.collective_unknown
    doing.collective_unknown = _are_unknown(device, given)
    if block is not None:
        doing.collective_memory = block.memory
    try:
        result = call(*args, **kwargs)
    finally:
        doing.collective_memory, doing.collective_unknown = before
    if block is not None:
        for each in result if isinstance(result, list | tuple) else (result,):
            place(each, block.memory)
    return result


def _are_unknown(device: RankDevice, given: list[Any]) -> bool:
    """Whether the values of a tensor among these were not computed from known ones."""
    storages = device.simulation.storages
    if device.simulation.engine.enable_data:
        return False
    noted = ((storages.of(each), each) for each in given if type(each) in PLAIN and each.layout is torch.strided)
    return any(stored is not None and is_unknown(stored, each) for stored, each in noted)
