"""Where tensors are that ``torch.save`` and pickle write: a tensor of a simulated GPU is of ``cuda:N`` in the file, too.

torch asks for the location of each storage that it writes, and puts what it reads at that of the file, or where
``map_location`` says. What is read onto a GPU is in the host's memory first, and copied from there.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import torch

from kernbench.torch_backend.gpu.device.devices import current_device
from kernbench.torch_backend.gpu.tensors.placement import block_of_storage, place_storage
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

MODULE = "torch.serialization"

RELIES_ON = (
    Reliance(
        f"{MODULE}.location_tag", "`torch.save` asks where a storage is", parameters=("storage",),
        looked_up_by=(f"{MODULE}._save", f"{MODULE}._legacy_save"),
    ),
    Reliance(
        f"{MODULE}.default_restore_location", "`torch.load` puts a storage where it was, or is to be",
        looked_up_by=(f"{MODULE}._get_restore_location",), parameters=("storage", "location"),
    ),
    Reliance(f"{MODULE}.validate_cuda_device", "the number of a location's GPU, or torch's error", parameters=("location",)),
)  # fmt: skip

_CUDA = re.compile(r"cuda(:\d+)?")


def install(patches: Patches) -> None:
    """Write, and read, where storages are."""
    serialization: Any = torch.serialization
    patches.set(serialization, "location_tag", _tags(serialization.location_tag))
    patches.set(serialization, "default_restore_location", _restores(serialization.default_restore_location))


def _tags(stock: Any) -> Any:
    @functools.wraps(stock)
    def location_tag(storage: torch.UntypedStorage) -> str:
        block, mine = block_of_storage(storage), current_device()
        if mine is None or block is None:
            return str(stock(storage))
        return f"cuda:{mine.index_of(block.memory.sip)}"

    return location_tag


def _restores(stock: Any) -> Any:
    @functools.wraps(stock)
    def default_restore_location(storage: torch.UntypedStorage, location: str) -> Any:
        mine = current_device()
        if mine is None or not _CUDA.fullmatch(location):
            return stock(storage, location)
        mine.host.uses_gpu = True
        index = torch.serialization.validate_cuda_device(location)
        place_storage(storage, mine.memory_at(index))
        mine.copy_from_host(storage.nbytes())
        return storage

    return default_restore_location
