"""Without data, results are laid out as they are with data."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import kernbench

Strides = list[tuple[int, ...]]


def strides(layer: Any, shape: tuple[int, ...], of_input: Any, of_weight: Any, *, data: bool) -> Strides:
    """Strides of what a convolution gives, and of the gradients of its input and weight."""
    found: Strides = []

    def worker(rank: int) -> None:
        convolution = layer(shape[1], 6, 3, padding=1).cuda().to(memory_format=of_weight)
        x = torch.ones(shape, device="cuda").to(memory_format=of_input).requires_grad_()
        y = convolution(x)
        (gradient,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
        (of_its_weight,) = torch.autograd.grad(y.sum(), convolution.weight)
        found.extend(each.stride() for each in (y, gradient, of_its_weight))

    with kernbench.simulate("dgx_h100", enable_data=data, world_size=1) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
    return found


@pytest.mark.parametrize("of_input", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("of_weight", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("layer", [nn.Conv2d, nn.ConvTranspose2d])
def test_of_convolutions(layer: Any, of_weight: Any, of_input: Any) -> None:
    given: tuple[Any, ...] = layer, (2, 64, 64, 64), of_input, of_weight
    assert strides(*given, data=False) == strides(*given, data=True)
