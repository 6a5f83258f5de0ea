"""Batch norms whose parameters have 16 bits and whose running statistics have 32, as FSDP's mixed precision leaves them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import kernbench

WORDS = {torch.bfloat16: "BFloat16", torch.float16: "Half"}


def _normed(x: torch.Tensor, kind: torch.dtype, kept: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Result, running statistics, and gradients; parameters have the format ``kind``, statistics ``kept``."""
    channels = x.shape[1]
    x = x.clone().requires_grad_()  # keeps its order in memory
    weight, bias = (
        torch.linspace(first, 2, channels, device=x.device).to(kind).requires_grad_() for first in (0.5, -1)
    )
    mean, variance = (
        torch.zeros(channels, device=x.device, dtype=kept),
        torch.ones(channels, device=x.device, dtype=kept),
    )
    y = F.batch_norm(x, mean, variance, weight, bias, True)
    y.backward(torch.linspace(-1, 1, y.numel(), device=x.device).view(y.shape).to(y.dtype))
    grads = tuple(each.grad for each in (x, weight, bias))
    return y.detach(), mean, variance, *(each for each in grads if each is not None)


def _input(shape: tuple[int, ...], kind: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to("cuda").to(kind)


@pytest.mark.parametrize("kind", WORDS, ids=str)
@pytest.mark.parametrize("shape", [(8, 6), (4, 6, 5, 5)])
@pytest.mark.parametrize("data", [True, False], ids=["data", "no-data"])
def test_parameters_of_16_bits_beside_statistics_of_32(shape: tuple[int, ...], kind: torch.dtype, data: bool) -> None:
    with kernbench.simulated_gpu("dgx_h100", enable_data=data):
        x = _input(shape, kind)
        if len(shape) == 4:  # as convolutions leave it; the other kernel for gradients is below
            x = x.contiguous(memory_format=torch.channels_last)
        found = _normed(x, kind, torch.float32)
        assert [each.dtype for each in found] == [kind, torch.float32, torch.float32, kind, kind, kind]
        if data:
            for got, expected in zip(found, _normed(x.double(), torch.float64, torch.float64), strict=True):
                torch.testing.assert_close(got.double(), expected, rtol=1e-2, atol=2e-2)


@pytest.mark.parametrize("kind", WORDS, ids=str)
@pytest.mark.parametrize("data", [True, False], ids=["data", "no-data"])
def test_cudas_kernel_of_gradients_wants_one_format(kind: torch.dtype, data: bool) -> None:
    words = f"Expected running_mean to have type {WORDS[kind]} but got Float"
    with kernbench.simulated_gpu("dgx_h100", enable_data=data):
        with pytest.raises(RuntimeError, match=words):
            _normed(_input((4, 6, 5, 5), kind), kind, torch.float32)
        _normed(_input((4, 6, 5, 5), kind), torch.float32, torch.float32)
        _normed(_input((4, 6, 5, 5), kind), kind, kind)
