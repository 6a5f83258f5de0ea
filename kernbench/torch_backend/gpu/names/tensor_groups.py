"""Groups of tensors by device, as optimizers and the clipping of gradients form them: in C++, to which a GPU's are the CPU's.

What is done with a group may depend on its device: ``clip_grad_norm_`` moves its factor there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from kernbench.torch_backend.gpu.device.devices import current_device
from kernbench.torch_backend.gpu.names.tensor_methods import device_of
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

_NAME = "_group_tensors_by_device_and_dtype"

RELIES_ON = (
    Reliance(f"torch._C.{_NAME}", "it gives lists, and places in the lists that it was given, by device and dtype",
             looked_up_by=(f"torch.utils._foreach_utils.{_NAME}",),
             holds=lambda group: group([[torch.ones(1)]], True) == {
                 (torch.device("cpu"), torch.float32): ([[torch.ones(1)]], [0])
             }),
)  # fmt: skip


def install(patches: Patches) -> None:
    """Replace the function of C++."""
    patches.set(torch._C, _NAME, _by_gpu(getattr(torch._C, _NAME)))


def _by_gpu(stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def group(lists: Any, with_indices: bool = False) -> Any:
        if current_device() is None:
            return stock(lists, with_indices)
        found: dict[Any, tuple[list[list[Any]], list[int]]] = {}
        for (_, dtype), (columns, indices) in stock(lists, True).items():
            homes = [device_of(each) for each in columns[0]]
            for home in dict.fromkeys(homes):
                mine = [at for at, each in enumerate(homes) if each == home]
                parts = [[column[at] for at in mine] if column else [] for column in columns]
                found[home, dtype] = parts, [indices[at] for at in mine] if with_indices else []
        return found

    return group
