"""The kernels of ``SyncBatchNorm``, which torch has for GPUs only, for the CPU tensors that stand for a GPU's.

Shapes: input ``[N, C, ...]``, everything per channel ``[C]``. Formulas: Ioffe & Szegedy 2015, with the sums over the channel
that ``torch.nn.modules._functions.SyncBatchNorm`` gathers.
"""

from __future__ import annotations

from typing import Any

import torch

from kernbench.torch_backend.relies_on import Reliance

Tensor = torch.Tensor


def _reduced(tensor: Tensor) -> list[int]:
    return [dim for dim in range(tensor.dim()) if dim != 1]


def _per_channel(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape([1, -1] + [1] * (like.dim() - 2))


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def batch_norm_stats(input: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and inverse standard deviation of each channel."""
    wide = _wide(input)
    mean = wide.mean(_reduced(wide))
    return mean, (wide.var(_reduced(wide), correction=0) + eps).rsqrt()


def batch_norm_gather_stats_with_counts(
    input: Tensor, mean: Tensor, invstd: Tensor, running_mean: Tensor | None, running_var: Tensor | None,
    momentum: float, eps: float, counts: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Statistics of all members' inputs, from each member's (``[members, C]``); updates the running ones."""
    weights = counts.to(mean.dtype).reshape(-1, 1)
    total = weights.sum()
    overall = (mean * weights).sum(0) / total
    variance = ((invstd**-2 - eps + (mean - overall) ** 2) * weights).sum(0) / total
    if running_mean is not None:
        running_mean.mul_(1 - momentum).add_(overall.to(running_mean.dtype), alpha=momentum)
    if running_var is not None:
        unbiased = variance * total / (total - 1)
        running_var.mul_(1 - momentum).add_((unbiased * momentum).to(running_var.dtype))
    return overall, (variance + eps).rsqrt()


def batch_norm_elemt(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor, eps: float
) -> Tensor:
    """The normalised, scaled and shifted input."""
    out = (_wide(input) - _per_channel(mean, input)) * _per_channel(invstd, input)
    if weight is not None:
        out = out * _per_channel(weight, input)
    if bias is not None:
        out = out + _per_channel(bias, input)
    return out.to(input.dtype)


def batch_norm_backward_reduce(
    grad_out: Tensor, input: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor | None, input_g: bool, weight_g: bool,
    bias_g: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Sums per channel: dy, dy (x - mean), and the gradients of weight and bias."""
    grad = _wide(grad_out)
    sum_dy = grad.sum(_reduced(grad))
    sum_dy_xmu = (grad * (_wide(input) - _per_channel(mean, input))).sum(_reduced(grad))
    kind = sum_dy.dtype if weight is None else weight.dtype
    return sum_dy, sum_dy_xmu, (sum_dy_xmu * invstd).to(kind), sum_dy.to(kind, copy=True)


def batch_norm_backward_elemt(
    grad_out: Tensor, input: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor | None, sum_dy: Tensor,
    sum_dy_xmu: Tensor, count: Tensor,
) -> Tensor:  # fmt: skip
    """The gradient of the input, from the sums over all members."""
    total = count.sum()
    centred = _wide(input) - _per_channel(mean, input)
    grad = _wide(grad_out) - _per_channel(sum_dy / total, input)
    grad = grad - centred * _per_channel(invstd**2 * sum_dy_xmu / total, input)
    scale = invstd if weight is None else invstd * weight
    return (grad * _per_channel(scale, input)).to(input.dtype)


KERNELS = (
    batch_norm_stats,
    batch_norm_gather_stats_with_counts,
    batch_norm_elemt,
    batch_norm_backward_reduce,
    batch_norm_backward_elemt,
)


def _is_called(function: Any) -> bool:
    called = {*function.forward.__code__.co_names, *function.backward.__code__.co_names}
    return all(kernel.__name__ in called for kernel in KERNELS)


def _has_no_kernels(aten: object) -> bool:
    has_kernel: Any = torch._C._dispatch_has_kernel_for_dispatch_key
    return not any(has_kernel(f"aten::{kernel.__name__}", "CPU") for kernel in KERNELS)


RELIES_ON = (
    Reliance("torch._C._dispatch_has_kernel_for_dispatch_key", "it tells whether there is a kernel"),
    Reliance(
        "torch.ops.aten", "a build for CPUs has no kernels of these", has=tuple(kernel.__name__ for kernel in KERNELS),
        holds=_has_no_kernels,
    ),
    Reliance("torch.nn.modules._functions.SyncBatchNorm", "a layer's forward and backward pass call them", holds=_is_called),
)  # fmt: skip


def register(library: Any) -> None:
    """Give torch the kernels, for as long as ``library`` (of ``aten``) lives."""
    for kernel in KERNELS:
        library.impl(kernel.__name__, kernel, "CPU")
