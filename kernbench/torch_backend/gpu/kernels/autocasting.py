"""``torch.autocast("cuda")``: what it computes in 32 bits.

It is one of CPU tensors here (:mod:`.torch_functions`), and a CPU's autocast leaves most of what a GPU's
computes in ``float32`` as it is: norms, softmax, losses, powers, exponentials, sums. Those are given to it, for tensors on
simulated GPUs, as torch's documentation lists them ("Autocast Op Reference", CUDA ops that autocast to float32).

A softmax of 16 bits that gives 32 is one kernel on a GPU: its cast is no operation.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from kernbench.simulation.active_simulation import current_simulation
from kernbench.simulation.memory.tensor_queries import tells_of_looks
from kernbench.torch_backend.gpu.tensors.placement import block_of, place_result
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
_CAST_INSIDE = ("softmax.int", "log_softmax.int")
_NARROW = (torch.float16, torch.bfloat16)
_KEY = "AutocastCPU"

RELIES_ON = (
    Reliance("torch._C", "a kernel of autocast goes on below it, and is given where there is none", has=(
        "_ExcludeDispatchKeyGuard", "DispatchKey", "DispatchKeySet", "_dispatch_has_kernel_for_dispatch_key",
    )),
    Reliance("torch.ops.aten", "operators that a GPU's autocast computes in 32 bits",
             has=tuple(sorted({name.partition(".")[0] for name in (*_IN_32_BITS, *_CAST_INSIDE)}))),
)  # fmt: skip


def register(library: Any) -> None:
    """Give a CPU's autocast what it lacks of a GPU's; ``library``: of ``aten``, for the key ``AutocastCPU``."""
    for name in (*_IN_32_BITS, *_CAST_INSIDE):
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", _KEY):
            library.impl(name, _in_32_bits(_overload(name), inside=name in _CAST_INSIDE))


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _in_32_bits(overload: Any, inside: bool) -> Callable[..., Any]:
    def compute(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)):
            given = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)]
            if not any(_on_a_gpu(each) for each in given):
                return overload(*args, **kwargs)
            simulation = current_simulation()
            hidden = simulation.hosts.current().as_one() if inside and simulation is not None else nullcontext()
            with hidden:
                args = tuple(_wide(each) for each in args)
                kwargs = {name: _wide(each) for name, each in kwargs.items()}
            return overload(*args, **kwargs)

    return compute


def _on_a_gpu(tensor: torch.Tensor) -> bool:
    return block_of(tensor) is not None or tells_of_looks(tensor)


def _wide(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.dtype not in _NARROW:
        return value
    wide = value.float()
    block = block_of(value)
    if block is not None:
        place_result(wide, block.memory)  # also where nothing is recorded
    return wide
