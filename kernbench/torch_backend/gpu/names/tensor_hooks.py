"""``Tensor.register_hook``: in a backward pass a hook of a tensor is called before the node that the tensor has come from, on
the node's stream (:mod:`kernbench.torch_backend.gpu.device.backward_streams`)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from kernbench.torch_backend.gpu.device.devices import current_device
from kernbench.torch_backend.gpu.names.asked_classes import AskingMethod
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

Hook = Callable[[torch.Tensor], Any]

_stock_register = torch.Tensor.register_hook

RELIES_ON = (
    Reliance("torch.Tensor.register_hook", "programs hang hooks on tensors by it", parameters=("self", "hook")),
)  # fmt: skip


def _on_its_stream(hook: Hook) -> Hook:
    @functools.wraps(hook)
    def call(gradient: torch.Tensor) -> Any:
        mine = current_device()
        if mine is not None and mine.doing.backward is not None:
            mine.doing.backward.arrive()
        return hook(gradient)

    return call


def _register_hook(self: Any, hook: Hook) -> Any:
    return _stock_register(self, _on_its_stream(hook))


def install(patches: Patches) -> None:
    """Have hooks called there."""
    ours = functools.update_wrapper(_register_hook, _stock_register)
    patches.set(torch.Tensor, "register_hook", AskingMethod(ours, _stock_register))
