"""On which GPU the gradient of a program's own function is computed: that of the gradients which come back to it.

On hardware each GPU has a thread of autograd's, whose current device it is, whatever the caller's is: what a ``backward`` makes
on ``cuda`` is beside its gradients. Here the caller's thread runs it, and the rank drives that GPU meanwhile.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from kernbench.torch_backend.gpu.device.devices import current_device
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

_NAMES = [name for name in ("apply", "apply_boxed") if name in vars(BackwardCFunction)]

RELIES_ON = (
    Reliance(
        "torch.autograd.function.BackwardCFunction", "the engine calls it for the gradient of a program's function",
        has=("apply",),
    ),
)  # fmt: skip


def _first_on_gpu(gradients: Any) -> torch.device | None:
    for each in gradients:
        if isinstance(each, torch.Tensor):
            device = each.device
            if device.type == "cuda":
                return device
        elif isinstance(each, list):  # gradients that are handed over together
            return _first_on_gpu(each)
    return None


def _beside_its_gradients(stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def apply(node: object, *gradients: Any) -> Any:
        mine, there = current_device(), _first_on_gpu(gradients)
        if mine is None or there is None:
            return stock(node, *gradients)
        with mine.host.driving(mine.sip(there)):
            return stock(node, *gradients)

    return apply


def install(patches: Patches) -> None:
    """Have them computed there."""
    for name in _NAMES:
        patches.set(BackwardCFunction, name, _beside_its_gradients(getattr(BackwardCFunction, name)))
