"""``tensor.data = other`` while a library still reads, or writes, the memory that the tensor had.

Such a library keeps the tensor until its work is waited for, and not the memory: that is free without another owner. Megatron
makes memory of activations free so. Where the order of events is watched.
"""

from __future__ import annotations

from typing import Any

import torch

from kernbench.simulation.memory.tensor_queries import storage_of
from kernbench.simulation.order.shadow_memory import lose_memory
from kernbench.torch_backend.gpu.device.devices import current_device
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

_OWN_REFERENCES = 2  # to a storage: of the tensor, and of its Python object


def _counts_references(count: Any) -> bool:
    tensor = torch.zeros(1)
    storage = tensor.untyped_storage()  # kept: the count of a storage that is gone is whatever lies there
    alone = count(storage._cdata)
    view = tensor.view(1)
    return bool(alone == _OWN_REFERENCES and count(storage._cdata) == alone + 1 and view is not tensor)


def _is_descriptor(data: object) -> bool:
    return hasattr(data, "__get__") and hasattr(data, "__set__")


RELIES_ON = (
    Reliance("torch.Tensor.data", "it is read and set by a descriptor", holds=_is_descriptor),
    Reliance("torch._C._storage_Use_Count", "it tells whether a tensor's memory has another owner", holds=_counts_references),
)  # fmt: skip

_data: Any = torch.Tensor.data


def _set_data(tensor: torch.Tensor, other: torch.Tensor) -> None:
    mine = current_device()
    if mine is not None and mine.host.order is not None and mine.host.capture is None and not mine.host.unrecorded:
        try:
            storage = storage_of(tensor)
        except (NotImplementedError, RuntimeError):  # it has none
            pass
        else:
            references = torch._C._storage_Use_Count(storage._cdata) - _OWN_REFERENCES
            lose_memory(mine.host.order, mine.host.stream, storage, references)
    _data.__set__(tensor, other)


def install(patches: Patches) -> None:
    """Let torch tell of tensors that get other memory."""
    patches.set(torch.Tensor, "data", property(_data.__get__, _set_data))
