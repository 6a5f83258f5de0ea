"""``torch.autocast("cuda")``: what it computes in 32 bits.

It is one of CPU tensors here (:mod:`.torch_functions`), and a CPU's autocast leaves most of what a GPU's
computes in ``float32`` as it is: norms, softmax, losses, powers, exponentials, sums. Those are given to it, for tensors on
simulated GPUs, as torch's documentation lists them ("Autocast Op Reference", CUDA ops that autocast to float32).

A softmax is of 32 bits only if it is not told a dtype, as ``F.cross_entropy`` tells its own that of the logits: then it is the
loss of its result that is of 32 bits. Of ``float16`` it is one kernel that gives 32 bits
(:mod:`.wide_softmax`), of ``bfloat16`` a cast comes before it (torch 2.13, ATen/autocast_mode.h and
ATen/native/SoftMax.cpp).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from kernbench.torch_backend.gpu.tensors.placement import PLAIN, block_of, is_on_gpu, place_result
from kernbench.torch_backend.overloads import OpOverload
from kernbench.torch_backend.relies_on import Reliance

_IN_32_BITS = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh", "tan",
    "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm", "native_layer_norm", "group_norm",
    "cosine_similarity", "poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d", "hinge_embedding_loss",
    "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss", "margin_ranking_loss", "multilabel_margin_loss",
    "soft_margin_loss", "triplet_margin_loss", "multi_margin_loss", "binary_cross_entropy_with_logits", "dist", "pdist",
    "cdist", "renorm", "logsumexp", "prod", "prod.dim_int", "cumprod", "cumsum", "sum", "sum.dim_IntList",
    "linalg_vector_norm", "norm.Scalar", "norm.ScalarOpt_dim",
)  # fmt: skip
_WIDENING = {"softmax.int": "_softmax", "log_softmax.int": "_log_softmax"}
"""Operators that take a dtype, and the kernel that each has for float16."""
_IMAGES = (
    "max_pool3d", "avg_pool3d", "adaptive_avg_pool3d", "max_unpool2d", "max_unpool3d", "reflection_pad1d", "reflection_pad2d",
    "replication_pad1d", "replication_pad2d", "replication_pad3d",
)  # fmt: skip
_AS_IT_IS = ("cross_entropy_loss", *_IMAGES)
"""Operators that a CPU's autocast computes in 32 bits as a whole, and a GPU's as they come, or by what they consist of."""
_NARROW = (torch.float16, torch.bfloat16)
_KEY = "AutocastCPU"

RELIES_ON = (
    Reliance("torch._C", "a kernel of autocast goes on below it, and is given where there is none", has=(
        "_ExcludeDispatchKeyGuard", "DispatchKey", "DispatchKeySet", "_dispatch_has_kernel_for_dispatch_key",
    )),
    Reliance("torch.ops.aten", "operators that a GPU's autocast computes in 32 bits, or leaves",
             has=tuple(sorted({name.partition(".")[0] for name in (*_IN_32_BITS, *_WIDENING, *_AS_IT_IS)}))),
)  # fmt: skip


def register(library: Any) -> None:
    """Give a CPU's autocast what it lacks of a GPU's; ``library``: of ``aten``, for the key ``AutocastCPU``."""
    for name in (*_IN_32_BITS, *_WIDENING):
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", _KEY):
            inside = _overload(_WIDENING[name]) if name in _WIDENING else None
            library.impl(name, _in_32_bits(_overload(name), inside))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*other operators may also be overridden")
        for name in _AS_IT_IS:
            library.impl(name, _as_it_is(_overload(name)), allow_override=True)


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _in_32_bits(overload: Any, inside: Any) -> Callable[..., Any]:
    def compute(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)):
            given = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)]
            if not any(map(is_on_gpu, given)):
                return overload(*args, **kwargs)
            if inside is not None:
                return _softmax(overload, inside, *args, **kwargs)
            args = tuple(_wide(each) for each in args)
            kwargs = {name: _wide(each) for name, each in kwargs.items()}
            return overload(*args, **kwargs)

    return compute


def _as_it_is(overload: OpOverload) -> Callable[..., Any]:
    def compute(*args: object, **kwargs: object) -> Any:
        on_a_gpu = any(map(is_on_gpu, args))
        if on_a_gpu and overload._can_decompose():
            return overload.decompose(*args, **kwargs)
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)):
            if on_a_gpu:
                return overload(*args, **kwargs)
            return overload(*map(_wide, args), **{name: _wide(each) for name, each in kwargs.items()})

    return compute


def _softmax(
    overload: OpOverload, inside: Any, tensor: torch.Tensor, dim: int, dtype: torch.dtype | None = None
) -> torch.Tensor:
    found: torch.Tensor
    if dtype is not None:
        found = overload(tensor, dim, dtype)
    elif tensor.dtype is torch.float16 and type(tensor) in PLAIN and block_of(tensor) is not None:
        found = inside(tensor, dim, True)
    else:
        found = overload(_wide(tensor), dim)
    return found


def _wide(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.dtype not in _NARROW:
        return value
    wide = value.float()
    block = block_of(value)
    if block is not None:
        place_result(wide, block.memory)  # also where nothing is recorded
    return wide
