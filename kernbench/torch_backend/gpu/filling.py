"""Recorders that fill memory which nobody has written, so that whoever reads it sees that."""

from __future__ import annotations

from typing import Any

import torch

from kernbench.simulation.tensors import poison, storage_of
from kernbench.torch_backend.gpu.rank_device import RankDevice
from kernbench.torch_backend.gpu.recording import Recorded, Recorder

_EVERY_BYTE = {"0xAA": 0xAA}


def fill_fresh(tensor: torch.Tensor, fill: str) -> None:
    """Fill memory that nobody has written, that of a tensor; with nothing if ``fill`` is ``"off"``."""
    if fill in _EVERY_BYTE:
        storage: Any = storage_of(tensor)
        storage.fill_(_EVERY_BYTE[fill])
    elif fill != "off":
        poison(tensor)


class _Fills:
    """A recorder that fills what ``empty`` and its kin give, before anybody sees it."""

    fill: str

    def _computed(self, device: RankDevice, operation: Recorded, func: Any, args: Any, kwargs: Any) -> Any:
        result = super()._computed(device, operation, func, args, kwargs)  # type: ignore[misc]
        if operation.allocates and isinstance(result, torch.Tensor) and not result.is_meta:
            fill_fresh(result, self.fill)
        return result


def filling(recorder: type[Recorder], fill: str) -> type[Recorder]:
    """A recorder that fills besides, with ``"nan"`` (the largest number of integers) or with ``"0xAA"`` in every byte."""
    return type(f"Filling{recorder.__name__}", (_Fills, recorder), {"fill": fill})
