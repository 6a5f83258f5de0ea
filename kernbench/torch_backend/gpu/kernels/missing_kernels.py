"""Operators that the CPU tensors standing for a GPU's, or simulated groups, have no kernel for, or one with other sums."""

from __future__ import annotations

from typing import Any

import torch

from kernbench.torch_backend.gpu.kernels import functional_collectives, fused_attention, wide_products, wide_softmax


def _histc(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """``histc`` counts whole numbers on a GPU. Up to 2**53 they are the same as doubles."""
    if tensor.dtype.is_floating_point:
        return torch.histc(tensor, *args, **kwargs)
    return torch.histc(tensor.double(), *args, **kwargs).to(tensor.dtype)


def _trace(tensor: torch.Tensor) -> torch.Tensor:
    """``trace`` counts booleans on a GPU."""
    return torch.trace(tensor.long() if tensor.dtype is torch.bool else tensor)


_KERNELS: dict[str, Any] = {
    "aten::histc": _histc,
    "aten::trace": _trace,
    **fused_attention.KERNELS,
    **functional_collectives.KERNELS,
    **wide_products.KERNELS,
    **wide_softmax.KERNELS,
}


def kernel_of(func: Any) -> Any:
    """What computes an ``OpOverload``: its own kernel, unless it has none for this."""
    return _KERNELS.get(func.name(), func._op)
