"""``fused_layer_norm_cuda``: norms with weights, and their gradients (apex's ``csrc/layer_norm_cuda.cpp``)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernbench.compiled_operators.transformer_engine import norms
from kernbench.compiled_operators.transformer_engine.kernels import operators
from kernbench.compiled_operators.transformer_engine.names import TORCH, DType
from kernbench.errors import KernbenchError

__all__ = ["NAMES", "operators"]

Tensor = torch.Tensor
_NUMBERS = {dtype: number for number, dtype in TORCH.items()}


def _rows(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    return tensor.contiguous().view(-1, torch.Size(shape).numel())


def _kept(memory_efficient: bool) -> None:
    if memory_efficient:
        raise KernbenchError(
            "the stand-in for fused_layer_norm_cuda has no gradients by the output (memory_efficient=True)"
        )


def forward_affine(input: Tensor, shape: Sequence[int], weight: Tensor, bias: Tensor, eps: float) -> list[Tensor]:
    """The norm of the last dimensions, which are ``shape``; means and inverse deviations of its rows, in float32."""
    made = DType(_NUMBERS[input.dtype])
    out, *kept = norms.layernorm_fwd(
        _rows(input, shape), weight.view(-1), bias.view(-1), eps, None, None, made, 0, False
    )
    return [out.view(input.shape), *kept]


def backward_affine(
    grad: Tensor, mean: Tensor, invvar: Tensor, input: Tensor, shape: Sequence[int], weight: Tensor, bias: Tensor,
    eps: float, memory_efficient: bool = False,
) -> list[Tensor]:  # fmt: skip
    """Gradients of the input, the weight and the bias."""
    _kept(memory_efficient)
    dx, dweight, dbias = norms.layernorm_bwd(
        _rows(grad, shape), _rows(input, shape), mean, invvar, weight.view(-1), 0, False
    )
    return [dx.view(input.shape), dweight.view(weight.shape), dbias.view(bias.shape)]


def rms_forward_affine(input: Tensor, shape: Sequence[int], weight: Tensor, eps: float) -> list[Tensor]:
    """The norm by the root of the mean square, and its inverse of each row."""
    made = DType(_NUMBERS[input.dtype])
    out, _, invvar = norms.rmsnorm_fwd(_rows(input, shape), weight.view(-1), eps, None, None, made, 0, False)
    return [out.view(input.shape), invvar]


def rms_backward_affine(
    grad: Tensor, invvar: Tensor, input: Tensor, shape: Sequence[int], weight: Tensor, eps: float,
    memory_efficient: bool = False,
) -> list[Tensor]:  # fmt: skip
    """Gradients of the input and the weight."""
    _kept(memory_efficient)
    dx, dweight = norms.rmsnorm_bwd(_rows(grad, shape), _rows(input, shape), invvar, weight.view(-1), 0, False)
    return [dx.view(input.shape), dweight.view(weight.shape)]


NAMES = {
    "forward_affine": forward_affine, "backward_affine": backward_affine, "rms_forward_affine": rms_forward_affine,
    "rms_backward_affine": rms_backward_affine,
}  # fmt: skip
