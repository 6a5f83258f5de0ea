"""Norms of the last dimensions, forward and backward one kernel each."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch

Tensor = torch.Tensor
Shape = int | Sequence[int] | torch.Size


def _kernels() -> Any:
    return importlib.import_module("apex._kernels")


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        width: int,
        eps: float,
        centered: bool,
        dtype: torch.dtype,
    ) -> Tensor:
        """Of the last elements of ``x``, as many as ``width``, whose weights are in a row; it keeps ``x`` and
        statistics of rows."""
        kernels = _kernels()
        rows, otype = x.contiguous().view(-1, width), kernels.formats[dtype]
        if centered:
            out, mean, scale = kernels.layernorm_fwd(rows, weight, bias, eps, None, None, otype, 0, False)
        else:
            out, mean, scale = kernels.rmsnorm_fwd(rows, weight, eps, None, None, otype, 0, False)
        ctx.save_for_backward(*(each for each in (rows, weight, scale, mean) if each is not None))
        ctx.with_bias = bias is not None
        result: Tensor = out.view(x.shape)
        return result

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> Any:
        """Gradients of the input, the weight and the bias."""
        kernels = _kernels()
        rows, weight, scale, *mean = ctx.saved_tensors
        grad = given[0].contiguous().view(rows.shape)
        if mean:
            dx, dweight, dbias = kernels.layernorm_bwd(grad, rows, *mean, scale, weight, 0, False)
        else:
            dx, dweight = kernels.rmsnorm_bwd(grad, rows, scale, weight, 0, False)
            dbias = None
        return dx.view(given[0].shape), dweight, dbias if ctx.with_bias else None, None, None, None, None


def _width(shape: Shape) -> int:
    return shape if isinstance(shape, int) else torch.Size(shape).numel()


class FusedLayerNormAffineFunction(torch.autograd.Function):
    """Layer norm as an autograd function; ``memory_efficient`` changes nothing here."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor,
        bias: Tensor,
        normalized_shape: Shape,
        eps: float,
        memory_efficient: bool = False,
    ) -> Tensor:
        """See :func:`fused_layer_norm_affine`."""
        ctx.shape = weight.shape
        return _Norm.forward(
            ctx, input, weight.view(-1), bias.view(-1), _width(normalized_shape), eps, True, input.dtype
        )

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> Any:
        """Gradients of the input, the weight and the bias."""
        dx, dweight, dbias, *_ = _Norm.backward(ctx, *given)
        return dx, dweight.view(ctx.shape), dbias.view(ctx.shape), None, None, None


class FusedRMSNormAffineFunction(torch.autograd.Function):
    """RMS norm as an autograd function; ``memory_efficient`` changes nothing here."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor,
        normalized_shape: Shape,
        eps: float,
        memory_efficient: bool = False,
    ) -> Tensor:
        """See :func:`fused_rms_norm_affine`."""
        ctx.shape = weight.shape
        return _Norm.forward(ctx, input, weight.view(-1), None, _width(normalized_shape), eps, False, input.dtype)

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> Any:
        """Gradients of the input and the weight."""
        dx, dweight, *_ = _Norm.backward(ctx, *given)
        return dx, dweight.view(ctx.shape), None, None, None


def _normed(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, shape: Shape, eps: float, centered: bool, mixed: bool = False
) -> Tensor:
    width = _width(shape)
    dtype = weight.dtype if mixed and weight is not None else x.dtype
    weight = torch.ones(width, dtype=x.dtype, device=x.device) if weight is None else weight.view(-1)
    out: Tensor = _Norm.apply(x, weight, None if bias is None else bias.view(-1), width, eps, centered, dtype)
    return out


def fused_layer_norm_affine(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    normalized_shape: Shape,
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> Tensor:
    """``(x - mean) / deviation * weight + bias``; ``memory_efficient`` changes nothing here."""
    return _normed(input, weight, bias, normalized_shape, eps, True)


def fused_layer_norm(
    input: Tensor, normalized_shape: Shape, eps: float = 1e-6, memory_efficient: bool = False
) -> Tensor:
    """The same without weight and bias."""
    return _normed(input, None, None, normalized_shape, eps, True)


def mixed_dtype_fused_layer_norm_affine(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    normalized_shape: Shape,
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> Tensor:
    """The result has the weight's format."""
    return _normed(input, weight, bias, normalized_shape, eps, True, mixed=True)


def fused_rms_norm_affine(
    input: Tensor, weight: Tensor, normalized_shape: Shape, eps: float = 1e-6, memory_efficient: bool = False
) -> Tensor:
    """``x / root of its mean square * weight``."""
    return _normed(input, weight, None, normalized_shape, eps, False)


def fused_rms_norm(input: Tensor, normalized_shape: Shape, eps: float = 1e-6, memory_efficient: bool = False) -> Tensor:
    """The same without weight."""
    return _normed(input, None, None, normalized_shape, eps, False)


def mixed_dtype_fused_rms_norm_affine(
    input: Tensor, weight: Tensor, normalized_shape: Shape, eps: float = 1e-6, memory_efficient: bool = False
) -> Tensor:
    """The result has the weight's format."""
    return _normed(input, weight, None, normalized_shape, eps, False, mixed=True)


class _NormModule(torch.nn.Module):
    centered = True
    mixed = False

    def __init__(
        self,
        normalized_shape: Shape,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        memory_efficient: bool = False,
    ) -> None:
        super().__init__()
        self.weight: torch.nn.Parameter | None
        self.bias: torch.nn.Parameter | None
        self.normalized_shape = torch.Size(
            (normalized_shape,) if isinstance(normalized_shape, int) else normalized_shape
        )
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self.memory_efficient = memory_efficient
        empty = torch.nn.Parameter(torch.empty(self.normalized_shape)) if elementwise_affine else None
        self.register_parameter("weight", empty)
        if self.centered:
            empty = torch.nn.Parameter(torch.empty(self.normalized_shape)) if elementwise_affine else None
            self.register_parameter("bias", empty)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Ones, and zeros."""
        if self.weight is not None:
            torch.nn.init.ones_(self.weight)
        if self.centered and self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        """The norm of the last dimensions."""
        bias = self.bias if self.centered else None
        return _normed(input, self.weight, bias, self.normalized_shape, self.eps, self.centered, self.mixed)

    def extra_repr(self) -> str:
        """See torch."""
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class FusedLayerNorm(_NormModule):
    """Layer norm."""


class FusedRMSNorm(_NormModule):
    """RMS norm."""

    centered = False


class MixedFusedLayerNorm(_NormModule):
    """Layer norm whose result has the weight's format."""

    mixed = True


class MixedFusedRMSNorm(_NormModule):
    """RMS norm whose result has the weight's format."""

    centered = False
    mixed = True
