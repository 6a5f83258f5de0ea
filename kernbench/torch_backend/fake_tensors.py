"""Fake tensors, with which DTensor finds the shapes of results, of ranks that share a process.

What an operation gives is kept for the process, by the operation and its arguments; a tensor made on ``cuda`` is on the current
GPU. Here the current GPU belongs to what is looked up by: else the ranks would find each other's.

``Tensor.copy_`` asks for a CUDA runtime before it dispatches, its operation does not.

Relies on: ``_DispatchCacheKey`` of that module being made of one tuple.
"""

from __future__ import annotations

from typing import Any

import torch

from kernbench.torch_backend.devices import current_index
from kernbench.torch_backend.patches import Patches

MODULE = "torch._subclasses.fake_tensor"


def install(patches: Patches, module: Any) -> None:
    """Add the current GPU to the keys, and let copies dispatch."""
    stock = module._DispatchCacheKey.__init__

    def init(self: Any, values: tuple[Any, ...]) -> None:
        stock(self, (*values, current_index()))

    def copy_(self: Any, src: Any, non_blocking: bool = False) -> Any:
        return torch.ops.aten.copy_.default(self, src, non_blocking)

    patches.set(module._DispatchCacheKey, "__init__", init)
    patches.set(module.FakeTensor, "copy_", copy_)
