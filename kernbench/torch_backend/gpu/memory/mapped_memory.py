"""Pinned memory of the host as a GPU addresses it (unified virtual addressing): a tensor of the GPU over the same bytes.

It takes none of the GPU's memory, and what kernels and operators read and write there goes over the host link. The host and the
GPU see each other's values as on hardware: what the GPU has written, when the host has waited for it.
"""

from __future__ import annotations

from typing import Any

import torch

from kernbench.errors import KernbenchError
from kernbench.simulation.memory.storages import NOTE, Mapped
from kernbench.simulation.memory.tensor_queries import plain_of, storage_of
from kernbench.torch_backend.gpu.device.devices import current_device
from kernbench.torch_backend.gpu.tensors.pinning import is_pinned
from kernbench.torch_backend.gpu.tensors.placement import block_of, put, values_of
from kernbench.torch_backend.relies_on import Reliance

RELIES_ON = (
    Reliance("torch._C.TensorBase.untyped_storage", "its Python object, with attributes, lives as long as the storage"),
)


def view_on_gpu(tensor: torch.Tensor) -> torch.Tensor:
    """The GPU's view of a tensor in pinned memory: same shape and strides, on the current device.

    Raises:
        KernbenchError: there is no simulated GPU here.
        RuntimeError: the tensor is on a GPU, or not pinned.
    """
    device = current_device()
    if device is None:
        raise KernbenchError("a GPU's view of host memory is for ranks: there is no simulated GPU here")
    if block_of(tensor) is not None or not is_pinned(tensor):
        raise RuntimeError("a GPU's view of host memory is of tensors in pinned memory of the host")
    tensor = plain_of(tensor).detach()
    storage: Any = storage_of(tensor)
    flat = torch.empty(0, dtype=torch.uint8).set_(storage)
    view = torch.from_numpy(values_of(flat))
    there: Any = storage_of(view)
    note = getattr(storage, NOTE, None)
    if isinstance(note, Mapped):
        setattr(there, NOTE, note.block)
    else:
        put(there, 0, device.memory, shared=True)
        block = getattr(there, NOTE)
        block.mapped = True
        if note is not None:
            block.take_over(note)
        setattr(storage, NOTE, Mapped(block))
    return view.view(tensor.dtype).as_strided(tensor.size(), torch.Tensor.stride(tensor), tensor.storage_offset())
