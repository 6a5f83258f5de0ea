"""What cases are made with: random tensors of the GPU, and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Call = Callable[[], Any]
Case = tuple[str, str, Callable[[], Call]]
"""Group, name, and what makes the inputs and gives the call."""

BF16, FP16, FP32, FP8 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn
SHORT = {BF16: "bf16", FP16: "fp16", FP32: "fp32"}
DIRECTIONS = ("forward", "backward")


def random(*shape: int, dtype: torch.dtype = BF16, grad: bool = False) -> Tensor:
    """Normally distributed numbers, ``shape``."""
    return torch.randn(*shape, device="cuda").to(dtype).requires_grad_(grad)


def indices(below: int, count: int) -> Tensor:
    """Whole numbers, ``[count]``."""
    return torch.randint(0, below, (count,), device="cuda")


def channels_last(x: Tensor, *, grad: bool) -> Tensor:
    """A leaf with the values of ``x``, channels last in memory."""
    return x.to(memory_format=torch.channels_last).detach().requires_grad_(grad)


def in_direction(direction: str, forward: Callable[..., Tensor], *inputs: Tensor) -> Call:
    """The call forward, or that of its gradient alone, which keeps the graph; inputs that are to have one want it."""
    if direction == "forward":
        return lambda: forward(*(each.detach() for each in inputs))
    result = forward(*inputs)
    gradient, wanted = torch.randn_like(result), [each for each in inputs if each.requires_grad]
    return lambda: torch.autograd.grad(result, wanted, gradient, retain_graph=True)


def gradients(call: Callable[..., Any], inputs: dict[str, Tensor], direction: str) -> Call:
    """The call without gradients, or the gradient alone of all inputs or of one."""
    if direction == "forward":
        with torch.no_grad():
            call()
        return torch.no_grad()(call)
    wanted = list(inputs.values()) if direction == "backward" else [inputs[direction]]
    for each in wanted:
        each.requires_grad_()
    result = call()
    gradient = torch.randn_like(result)
    return lambda: torch.autograd.grad(result, wanted, gradient, retain_graph=True)
