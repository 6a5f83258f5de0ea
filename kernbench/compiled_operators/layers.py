"""What layers of a transformer compute between products, in float32: norms, gated activations, rotations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional as F

Tensor = torch.Tensor

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu, "gelu": F.gelu, "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu2": lambda x: F.relu(x).square(),
}  # fmt: skip
"""Activations by the names that engines give them."""


def rms_normed(x: Tensor, weight: Tensor | None, epsilon: float, plus: float = 0.0) -> Tensor:
    """``x`` over the root of the mean of its squares, times ``weight + plus``."""
    x = x.float()
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon)
    return x if weight is None else x * (weight.float() + plus)


def gated(activation: str, x: Tensor) -> Tensor:
    """The first half of the last dimension through an activation, times the second."""
    first, second = x.float().chunk(2, -1)
    return ACTIVATIONS[activation](first) * second


def rotated(x: Tensor, cos: Tensor, sin: Tensor, *, halves: bool) -> Tensor:
    """Elements of heads in pairs, each turned by its angle: the two halves of the last dimension, or neighbours in it."""
    pairs = x.unflatten(-1, (2, -1) if halves else (-1, 2)).float()
    first, second = pairs.unbind(-2 if halves else -1)
    turned = (first * cos - second * sin, second * cos + first * sin)
    return torch.stack(turned, -2 if halves else -1).flatten(-2)
