"""Which kernel torch takes for ``F.scaled_dot_product_attention`` on a GPU, as far as it is cuDNN's.

torch goes through its kernels in an order of priority and takes the first that is switched on and has what is asked for
(aten/src/ATen/native/transformers/cuda/sdp_utils.cpp of torch 2.13). The order is flash, memory-efficient, in steps, cuDNN; on
Hopper and Blackwell cuDNN is first, unless the environment says ``TORCH_CUDNN_SDPA_DEPRIORITIZED=1``. A program changes it by
``sdpa_kernel(..., set_priority=True)``, and switches kernels off by ``sdpa_kernel`` and by ``enable_cudnn_sdp`` of
``torch.backends.cuda``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.backends import cuda
from torch.nn.attention import SDPBackend

from kernbench.torch_backend.relies_on import Reliance

CUDNN = "_scaled_dot_product_cudnn_attention"
"""torch's operator for it."""

DEPRIORITIZED = "TORCH_CUDNN_SDPA_DEPRIORITIZED"
"""The variable of the environment by which cuDNN is not preferred."""

_BACKEND: object = SDPBackend
_FLASH, _EFFICIENT, _MATH, _CUDNN = (
    int(getattr(_BACKEND, name)) for name in ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH", "CUDNN_ATTENTION")
)
"""torch's numbers of its kernels."""

_NARROW = (torch.float16, torch.bfloat16)
_C: Any = torch._C

RELIES_ON = (
    Reliance("torch._C", "the order of priority of attention's kernels is read and written by these", has=(
        "_get_sdp_priority_order", "_set_sdp_priority_order",
    )),
    Reliance(
        f"torch.ops.aten.{CUDNN}", "autograd and meta kernels know it; it gives the output and the logsumexp first",
        holds=lambda op: [each.name for each in op.default._schema.arguments][3:7]
        == ["attn_bias", "compute_log_sumexp", "dropout_p", "is_causal"],
    ),
    Reliance(
        f"torch.ops.aten.{CUDNN}_backward", "its gradient",
        holds=lambda op: [each.name for each in op.default._schema.arguments][4:9]
        == ["out", "logsumexp", "philox_seed", "philox_offset", "attn_bias"],
    ),
)  # fmt: skip


def first_order(capability: tuple[int, int], variables: Mapping[str, str], order: Sequence[int]) -> list[int]:
    """The order of priority that torch begins with on a GPU of this compute capability.

    Args:
        capability: major and minor.
        variables: of the environment.
        order: that torch has where there is no GPU.
    """
    others = [each for each in order if each != _CUDNN]
    preferred = capability[0] in (9, 10) and variables.get(DEPRIORITIZED) != "1"
    return [_CUDNN, *others] if preferred else list(order)


def takes_cudnn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    enable_gqa: bool,
) -> bool:
    """Whether torch takes cuDNN's kernel for these, which are on a GPU."""
    before = allowed_before()
    if before is None or not _has_cudnn(query, key, value, mask, dropout_p, enable_gqa):
        return False
    # those in steps, and the memory-efficient ones, have all that cuDNN's has
    return not before or (before == (_FLASH,) and not _has_flash(query, key, value, mask, is_causal))


def allowed_before() -> tuple[int, ...] | None:
    """The kernels that are switched on and come before cuDNN's; None where that is switched off, or nothing may differ."""
    switched = {
        _FLASH: cuda.flash_sdp_enabled, _EFFICIENT: cuda.mem_efficient_sdp_enabled, _MATH: cuda.math_sdp_enabled,
    }  # fmt: skip
    exact = torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled()
    order = _C._get_sdp_priority_order()
    if exact or _CUDNN not in order or not cuda.cudnn_sdp_enabled():
        return None
    return tuple(each for each in order[: order.index(_CUDNN)] if each in switched and switched[each]())


def by_cudnn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
) -> Any:
    """The attention, by cuDNN's operator."""
    parts = [each.to(_multiplied(each)) for each in (query, key, value)]
    keep = torch.is_grad_enabled() and any(each.requires_grad for each in parts)
    operator = getattr(torch.ops.aten, CUDNN).default
    return operator(*parts, bias_of(mask, parts[0], key), keep, 0.0, is_causal, scale=scale)[0]


def bias_of(mask: Tensor | None, query: Tensor, key: Tensor) -> Any:
    """What a mask adds to the scores, ``[batch, heads, queries, keys]``; None without one."""
    if mask is None:
        return None
    if mask.dtype is torch.bool:
        mask = torch.where(mask, 0.0, -math.inf)
    return mask.to(query.dtype).expand(*query.shape[:3], key.shape[2])


def _multiplied(tensor: Tensor) -> torch.dtype:
    """The format in which an operand is multiplied: autocast's where it is on."""
    if torch.is_autocast_enabled("cuda") and tensor.is_floating_point():
        return torch.get_autocast_dtype("cuda")
    dtype: torch.dtype = tensor.dtype
    return dtype


def fits(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    """Whether operands of four dimensions are what fused kernels take: of one batch, and with a mask of a format that may be
    added. Others are composed of products, which spread them, or refused, as the CPU's are."""
    return (
        query.shape[0] == key.shape[0] == value.shape[0]
        and query.shape[3] == key.shape[3]
        and key.shape[2] == value.shape[2]
        and (mask is None or mask.dtype in (torch.bool, torch.float32) or _multiplied(mask) is _multiplied(query))
    )


def _has_cudnn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    enable_gqa: bool,
) -> bool:
    """Whether cuDNN has a kernel for these: of heads of up to 128, or 192 with values of 128. With dropout it has one for some
    probabilities, which is not modelled: the next kernel is taken."""
    if not query.dim() == key.dim() == value.dim() == 4 or dropout_p:
        return False
    if not _multiplied(query) == _multiplied(key) == _multiplied(value):
        return False
    if mask is not None and mask.requires_grad:
        return False
    if not fits(query, key, value, mask):
        return False
    heads, width, wide = query.shape[1], query.shape[3], value.shape[3]
    return (
        _multiplied(query) in _NARROW
        and key.shape[1] == value.shape[1]
        and (heads == key.shape[1] or (enable_gqa and heads % key.shape[1] == 0))
        and ((width <= 128 and wide <= 128) or (width == 192 and wide == 128))
        and width % 8 == wide % 8 == 0
        and key.shape[2] not in (0, 1)
        and query.numel() > 0
    )


def _has_flash(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool) -> bool:
    """Whether FlashAttention has a kernel for what cuDNN has one for."""
    return mask is None and query.shape[3] == value.shape[3] and not (is_causal and query.shape[2] != key.shape[2])
