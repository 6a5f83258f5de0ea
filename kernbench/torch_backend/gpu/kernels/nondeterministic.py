"""Operators whose kernels on a GPU sum, or write, in an order that differs from run to run.

Where the program wants none of them (``torch.use_deterministic_algorithms(True)``), torch raises, or warns, when one is called.
It does in C++ that only a build with CUDA has: the names are those of its kernels, and the set is that of torch 2.11 (what has
a deterministic kernel besides, ``scatter_add`` or ``cumsum``, takes that one there and is not refused).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._prims_common import alert_not_deterministic

from kernbench.torch_backend.overloads import OpOverload
from kernbench.torch_backend.relies_on import Reliance

RELIES_ON = (
    Reliance("torch._prims_common.alert_not_deterministic", "it raises or warns, as the program has set it, in torch's words"),
)  # fmt: skip


def _always(kernel: str) -> Callable[[object, Any], str]:
    return lambda args, kwargs: kernel


def _given(args: Any, kwargs: Any, at: int, name: str) -> Any:
    return args[at] if at < len(args) else kwargs.get(name)


def _bincount(args: Any, kwargs: Any) -> str:
    return "" if _given(args, kwargs, 1, "weights") is None else "_bincount_cuda"


def _histogram(args: Any, kwargs: Any) -> str:
    return "_histc_cuda with floating point input" if args[0].dtype.is_floating_point else ""


def _reduced(args: Any, kwargs: Any) -> str:
    return "scatter_reduce_cuda_prod_" if _given(args, kwargs, 4, "reduce") == "prod" else ""


_MAX_OF_BAGS = 2


def _bags(args: Any, kwargs: Any) -> str:
    mode = _given(args, kwargs, 8, "mode")
    return "embedding_bag_backward_cuda_max" if mode == _MAX_OF_BAGS else ""


_KERNELS: dict[str, Callable[[object, Any], str]] = {
    "bincount": _bincount,
    "histc": _histogram,
    "put_": _always("put_"),
    "put": _always("put_"),
    "index_reduce": _always("index_reduce_cuda"),
    "index_reduce_": _always("index_reduce_cuda"),
    "scatter_reduce": _reduced,
    "scatter_reduce_": _reduced,
    "median.dim": _always("median CUDA with indices output"),
    "nanmedian.dim": _always("median CUDA with indices output"),
    "nll_loss2d_forward": _always("nll_loss2d_forward_out_cuda_template"),
    "nll_loss2d_backward": _always("nll_loss2d_backward_out_cuda_template"),
    "max_unpool2d": _always("max_unpooling2d_forward_out"),
    "max_unpool3d": _always("max_unpooling3d_forward_out"),
    "_embedding_bag_backward": _bags,
    "_ctc_loss_backward": _always("ctc_loss_backward_gpu"),
    "grid_sampler_2d_backward": _always("grid_sampler_2d_backward_cuda"),
    "grid_sampler_3d_backward": _always("grid_sampler_3d_backward_cuda"),
    "reflection_pad1d_backward": _always("reflection_pad1d_backward_out_cuda"),
    "reflection_pad3d_backward": _always("reflection_pad3d_backward_out_cuda"),
    "upsample_linear1d_backward": _always("upsample_linear1d_backward_out_cuda"),
    "upsample_bicubic2d_backward": _always("upsample_bicubic2d_backward_out_cuda"),
    "avg_pool3d_backward": _always("avg_pool3d_backward_cuda"),
    "_adaptive_avg_pool2d_backward": _always("adaptive_avg_pool2d_backward_cuda"),
    "_adaptive_avg_pool3d_backward": _always("adaptive_avg_pool3d_backward_cuda"),
    "adaptive_max_pool2d_backward": _always("adaptive_max_pool2d_backward_cuda"),
    "adaptive_max_pool3d_backward": _always("adaptive_max_pool3d_backward_cuda"),
    "fractional_max_pool2d_backward": _always("fractional_max_pool2d_backward_cuda"),
    "fractional_max_pool3d_backward": _always("fractional_max_pool3d_backward_cuda"),
    "max_pool3d_with_indices_backward": _always("max_pool3d_with_indices_backward_cuda"),
}
"""By operator, with the overload where one is unlike the others: its kernel with given arguments; empty: one that is not."""


def alert_of(func: OpOverload) -> Callable[[Any, Any], None] | None:
    """What raises or warns if an ``OpOverload`` is called where the program wants deterministic kernels; None: it has one."""
    name = func._opname
    kernel = _KERNELS.get(f"{name}.{func._overloadname}", _KERNELS.get(name))
    if kernel is None:
        return None

    def alert(args: Any, kwargs: Any) -> None:
        if torch.are_deterministic_algorithms_enabled():
            name = kernel(args, kwargs or {})
            if name:
                alert_not_deterministic(name)

    return alert
