"""Operators that torch has for GPUs alone, by their names in ``aten``: cuDNN's convolutions, norms and samplers, dropout with a
mask of bytes, statistics of batches over ranks.

Their values are those of the operators that torch composes for any device, which the CPU is given as kernels, and ``meta`` as
shapes. Layouts and orders of arguments are those of ``native_functions.yaml``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kernbench.torch_backend.relies_on import Reliance

_aten = torch.ops.aten
Ints = Sequence[int]


def _convolved(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> Tensor:
    return _aten.convolution(x, weight, bias, stride, padding, dilation, False, [0] * len(padding), groups)


def _convolution(
    x: Tensor, weight: Tensor, padding: Ints, stride: Ints, dilation: Ints, groups: int, *settings: bool
) -> Tensor:
    """cuDNN's own order of arguments; ``settings`` choose its algorithm."""
    return _convolved(x, weight, None, stride, padding, dilation, groups)


def _transposed_convolution(
    x: Tensor, weight: Tensor, padding: Ints, further: Ints, stride: Ints, dilation: Ints, groups: int, *settings: bool
) -> Tensor:
    return _aten.convolution(x, weight, None, stride, padding, dilation, True, further, groups)


def _convolution_relu(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> Tensor:
    return _convolved(x, weight, bias, stride, padding, dilation, groups).relu()


def _convolution_add_relu(
    x: Tensor, weight: Tensor, z: Tensor, alpha: float | None, bias: Tensor | None, stride: Ints, padding: Ints,
    dilation: Ints, groups: int,
) -> Tensor:  # fmt: skip
    """``relu(convolution + alpha z)``."""
    found = _convolved(x, weight, bias, stride, padding, dilation, groups)
    return found.add(z, alpha=1 if alpha is None else alpha).relu()


def _depthwise_convolution(
    x: Tensor, weight: Tensor, kernel_size: Ints, bias: Tensor | None, stride: Ints, padding: Ints, dilation: Ints
) -> Tensor:
    """A filter, or several, for each channel of the input."""
    return _convolved(x, weight, bias, stride, padding, dilation, x.size(1))


def _batch_norm(
    x: Tensor, weight: Tensor, bias: Tensor | None, mean: Tensor | None, variance: Tensor | None, training: bool,
    momentum: float, epsilon: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """What it gives, the statistics that its gradient needs (none in evaluation), and room, of which it needs none."""
    found, *kept = _aten.native_batch_norm(x, weight, bias, mean, variance, training, momentum, epsilon)
    return (found, kept[0], kept[1], x.new_empty(0, dtype=torch.uint8))


def _batch_norm_gradient(
    x: Tensor, gradient: Tensor, weight: Tensor, mean: Tensor | None, variance: Tensor | None, saved_mean: Tensor | None,
    saved_inverse: Tensor | None, epsilon: float, room: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    found: tuple[Tensor, Tensor, Tensor] = _aten.native_batch_norm_backward(
        gradient, x, weight, mean, variance, saved_mean, saved_inverse, True, epsilon, [True] * 3
    )
    return found


def _grid_sampler(x: Tensor, grid: Tensor) -> Tensor:
    """Bilinear, zeros outside, corners aligned."""
    return _aten.grid_sampler_2d(x, grid, 0, 0, True)


def _grid_sampler_gradient(x: Tensor, grid: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    found: tuple[Tensor, Tensor] = _aten.grid_sampler_2d_backward(gradient, x, grid, 0, 0, True, [True, True])
    return found


def _affine_grid(theta: Tensor, n: int, c: int, h: int, w: int) -> Tensor:
    """Corners aligned."""
    return _aten.affine_grid_generator(theta, [n, c, h, w], True)


def _affine_grid_gradient(gradient: Tensor, n: int, c: int, h: int, w: int) -> Tensor:
    return _aten.affine_grid_generator_backward(gradient, [n, c, h, w], True)


def _fused_dropout(x: Tensor, kept: float, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """``kept``: the probability to keep an element. The mask is of bytes."""
    mask = torch.empty_like(x, dtype=torch.uint8).bernoulli_(kept, generator=generator)
    return (x * mask).div_(kept), mask


def _masked_scale(x: Tensor, mask: Tensor, scale: float) -> Tensor:
    return (x * mask).mul_(scale)


def _gathered_statistics(
    x: Tensor, mean: Tensor, inverse: Tensor, running_mean: Tensor | None, running_variance: Tensor | None,
    momentum: float, epsilon: float, count: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Of ranks that have normalised as many elements each: ``mean`` and ``inverse`` are ``[ranks, channels]``."""
    counts = torch.full((mean.size(0),), float(count), dtype=mean.dtype, device=mean.device)
    found: tuple[Tensor, Tensor] = _aten.batch_norm_gather_stats_with_counts(
        x, mean, inverse, running_mean, running_variance, momentum, epsilon, counts
    )
    return found


def _of_no_cudnn(*args: Any) -> bool:
    """Labels are counted by torch's own kernels: cuDNN's give the same, in an order that is not theirs."""
    return False


_KERNELS: dict[str, Callable[..., Any]] = {
    "cudnn_convolution": _convolution,
    "cudnn_convolution_transpose": _transposed_convolution,
    "cudnn_convolution_relu": _convolution_relu,
    "cudnn_convolution_add_relu": _convolution_add_relu,
    "_conv_depthwise2d": _depthwise_convolution,
    "conv_depthwise3d": _depthwise_convolution,
    "cudnn_batch_norm": _batch_norm,
    "cudnn_batch_norm_backward": _batch_norm_gradient,
    "cudnn_grid_sampler": _grid_sampler,
    "cudnn_grid_sampler_backward": _grid_sampler_gradient,
    "cudnn_affine_grid_generator": _affine_grid,
    "cudnn_affine_grid_generator_backward": _affine_grid_gradient,
    "_fused_dropout": _fused_dropout,
    "_masked_scale": _masked_scale,
    "batch_norm_gather_stats": _gathered_statistics,
    "_use_cudnn_ctc_loss": _of_no_cudnn,
    "_use_cudnn_ctc_loss.Tensor": _of_no_cudnn,
}
"""By the operator's name, what it computes."""

RELIES_ON = (
    *(Reliance(f"torch.ops.aten.{name.partition('.')[0]}.{name.partition('.')[2] or 'default'}",
               "torch has it for GPUs alone", has=("_schema",))
      for name in _KERNELS),
    Reliance("torch._C._dispatch_has_kernel_for_dispatch_key", "which of them torch has shapes of",
             holds=lambda has_kernel: has_kernel("aten::add.Tensor", "CPU") and not has_kernel("aten::add.Tensor", "XLA")),
)  # fmt: skip


def register(library: Any) -> None:
    """Give the CPU their kernels; ``library``: of ``aten``, for the key ``CPU``."""
    for name, kernel in _KERNELS.items():
        library.impl(name, kernel)


def register_shapes(library: Any) -> None:
    """Say what those give that torch has no shapes of; ``library``: of ``aten``, for the key ``Meta``."""
    for name, kernel in _KERNELS.items():
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "Meta"):
            library.impl(name, kernel)
