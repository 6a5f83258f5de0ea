"""Memory that was never written shows: what ``empty`` and its kin give is filled before the program sees it."""

from __future__ import annotations

from typing import Any

import torch

from kernbench.simulation.memory.tensor_queries import poison, storage_of
from kernbench.simulation.ranks.listeners import Listener
from kernbench.torch_backend.operations.calls import OperatorCall

_EVERY_BYTE = {"0xAA": 0xAA}


def fill_fresh(tensor: torch.Tensor, fill: str) -> None:
    """Fill a tensor's memory, which was never written; with nothing if ``fill`` is ``"off"``."""
    if fill in _EVERY_BYTE:
        storage: Any = storage_of(tensor)
        storage.fill_(_EVERY_BYTE[fill])
    elif fill != "off":
        poison(tensor)


class Filling(Listener):
    """Fills fresh memory with ``"nan"`` (the largest number of integers) or with ``"0xAA"`` in every byte."""

    def __init__(self, fill: str) -> None:
        self._fill = fill

    def computed(self, call: OperatorCall) -> None:
        """See :class:`Listener`."""
        result = call.result
        if call.operator.allocates and isinstance(result, torch.Tensor) and not result.is_meta:
            fill_fresh(result, self._fill)
