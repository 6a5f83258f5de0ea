"""Operators that the CPU tensors standing for a GPU's, or simulated groups, have no kernel for, or one with other sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kernbench.torch_backend.gpu.kernels import (
    flash_operators,
    functional_collectives,
    fused_attention,
    scaled_products,
    whole_casts,
    whole_division,
    wide_products,
    wide_softmax,
)
from kernbench.torch_backend.overloads import OpOverload
from kernbench.torch_backend.relies_on import Reliance

RELIES_ON = (
    Reliance("torch.ops.aten._native_batch_norm_legit_no_training.default", "weight and bias follow the input", has=("_op",)),
    *(
        Reliance(f"torch.ops.aten.{name}{back}.default._op", "the first operand's format is that of the result")
        for name in ("max_pool3d_with_indices", "avg_pool3d", "grid_sampler_2d", "reflection_pad2d", "replication_pad2d")
        for back in ("", "_backward")
    ),
    Reliance("torch.ops.aten.native_batch_norm_backward.default._op", "gradient, input and weight come first"),
    *(
        Reliance(f"torch.ops.aten.{name}.default._op", "weight, indices and offsets come first, results and numbers of bags")
        for name in ("_embedding_bag", "_embedding_bag_forward_only")
    ),
)  # fmt: skip


def _histc(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """``histc`` counts whole numbers on a GPU. Up to 2**53 they are the same as doubles."""
    if tensor.dtype.is_floating_point:
        return torch.histc(tensor, *args, **kwargs)
    return torch.histc(tensor.double(), *args, **kwargs).to(tensor.dtype)


def _trace(tensor: torch.Tensor) -> torch.Tensor:
    """``trace`` counts booleans on a GPU."""
    return torch.trace(tensor.long() if tensor.dtype is torch.bool else tensor)


def _batch_norm(call: Any) -> Any:
    """Norms over the batch take parameters and statistics of two formats, and of 16 bits with an input of 32, on a GPU."""

    def compute(input: torch.Tensor, *rest: Any, **kwargs: Any) -> Any:
        if _is_uniform(input, rest[:4]):
            return call(input, *rest, **kwargs)
        wide = [None if each is None else each.float() for each in rest[:4]]
        result = call(input, *wide, *rest[4:], **kwargs)
        for kept, computed in zip(rest[2:4], wide[2:], strict=True):
            if kept is not None:
                kept.copy_(computed)
        return result

    return compute


def _is_uniform(input: torch.Tensor, others: Sequence[Any]) -> bool:
    """Whether a CPU takes parameters and statistics of these formats: the input's, or with one of 16 bits 32."""
    formats = {each.dtype for each in others if each is not None}
    return len(formats) <= 1 and (formats <= {input.dtype} or input.dtype is not torch.float32)


def _batch_norm_backward(call: Any) -> Any:
    def compute(grad: torch.Tensor, input: torch.Tensor, weight: Any, *rest: Any) -> Any:
        if weight is None or _is_uniform(input, (weight, *rest[:2])):
            return call(grad, input, weight, *rest)
        wide = [None if each is None else each.float() for each in rest[:2]]
        of_input, *others = call(grad, input, weight.float(), *wide, *rest[2:])
        return of_input, *(None if each is None else each.to(weight.dtype) for each in others)

    return compute


def _bags_from_the_first(call: Any) -> Any:
    """Bags of embeddings begin with the first index on a GPU, whatever ``offsets[0]`` says, at which a CPU stops.

    Gradients go by the numbers of bags, which a CPU leaves out where it can have them from the offsets.
    """

    def compute(weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, *rest: Any, **kwargs: Any) -> Any:
        if not len(offsets) or not int(offsets[0]):
            return call(weight, indices, offsets, *rest, **kwargs)
        offsets = offsets.clone()
        offsets[0] = 0
        found, bags, *others = call(weight, indices, offsets, *rest, **kwargs)
        if not len(bags):
            places = torch.arange(len(indices), dtype=offsets.dtype)
            bags = torch.searchsorted(offsets, places, right=True) - 1
        return found, bags.to(offsets.dtype), *others

    return compute


def _narrow(call: Any) -> Any:
    """What a GPU computes in 16 bits and a CPU may not: in 32, and rounded."""

    def compute(*args: Any, **kwargs: Any) -> Any:
        first = args[0]
        if first.dtype not in (torch.float16, torch.bfloat16):
            return call(*args, **kwargs)
        found = call(*(_float(each) for each in args), **kwargs)
        if isinstance(found, torch.Tensor):
            return found.to(first.dtype)
        return tuple(each.to(first.dtype) if each is not None and each.is_floating_point() else each for each in found)

    return compute


def _float(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


_IMAGES = (
    "max_pool3d_with_indices avg_pool3d _adaptive_avg_pool3d grid_sampler_2d grid_sampler_3d reflection_pad1d reflection_pad2d "
    "replication_pad1d replication_pad2d replication_pad3d"
)
"""Operators on images, with gradients, that CPUs need not have in 16 bits."""

_aten = torch.ops.aten
_KERNELS: dict[str, object] = {
    **{
        func.name(): _batch_norm(func._op)
        for func in (_aten.native_batch_norm.default, _aten._native_batch_norm_legit_no_training.default)
    },
    "aten::native_batch_norm_backward": _batch_norm_backward(_aten.native_batch_norm_backward.default._op),
    **{
        func.name(): _narrow(func._op)
        for name in _IMAGES.split()
        for func in (getattr(_aten, name).default, getattr(_aten, f"{name}_backward").default)
    },
    **{
        func.name(): _bags_from_the_first(func._op)
        for func in (_aten._embedding_bag.default, _aten._embedding_bag_forward_only.default)
    },
    "aten::histc": _histc,
    "aten::trace": _trace,
    **flash_operators.KERNELS,
    **fused_attention.KERNELS,
    **functional_collectives.KERNELS,
    **scaled_products.KERNELS,
    **whole_casts.KERNELS,
    **whole_division.KERNELS,
    **wide_products.KERNELS,
    **wide_softmax.KERNELS,
}


def kernel_of(func: OpOverload) -> Any:
    """What computes an ``OpOverload``: its own kernel, unless it has none for this."""
    return _KERNELS.get(func.name(), func._op)
