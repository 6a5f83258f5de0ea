"""Which kernels of a GPU take an attention, and why the others do not: asked where the program allows fused ones alone.

The rules are those of ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`` of github.com/pytorch/pytorch, as a GPU states
them; so are the words (torch 2.11).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from kernbench.torch_backend.gpu.kernels.refused_types import IN_C, LETTERS
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance, fit


class AskedAttention(NamedTuple):
    """An attention that is asked for."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    grouped: bool
    causal: bool = False

    @property
    def operands(self) -> tuple[torch.Tensor, ...]:
        """Query, key and value."""
        return self.query, self.key, self.value

    def written(self, what: str, each: Callable[[torch.Tensor], Any]) -> str:
        """One number of each operand, as torch lists them."""
        first, second, third = (
            f"{name}{what}: {each(tensor)}"
            for name, tensor in zip(("Query", "Key", "Value"), self.operands, strict=True)
        )
        return f"{first}, {second}, {third}"


def _dimensions(of: AskedAttention) -> str:
    if all(each.dim() == 4 for each in of.operands):
        return ""
    return (
        "All fused kernels requires query, key and value to be 4 dimensional, but got "
        f"{of.written(' dim', torch.Tensor.dim)} instead."
    )


def _formats(of: AskedAttention, *allowed: torch.dtype) -> str:
    if all(each.dtype in allowed for each in of.operands):
        return ""
    query, key, value = (IN_C.get(each.dtype, str(each.dtype)) for each in of.operands)
    return (
        f"Expected query, key and value to all be of dtype: {{{', '.join(LETTERS[each] for each in allowed)}}}. Got Query "
        f"dtype: {query}, Key dtype: {key}, and Value dtype: {value} instead."
    )


def _heads(of: AskedAttention, grouped: bool) -> str:
    query, key, value = of.operands
    alike = query.shape[0] == key.shape[0] == value.shape[0] and key.shape[1] == value.shape[1]
    if alike and (query.shape[1] == key.shape[1] or (grouped and of.grouped and query.shape[1] % key.shape[1] == 0)):
        return ""
    sizes = ", ".join(
        f"{name} sizes(): {list(each.shape)}" for name, each in zip(("Query", "Key", "Value"), of.operands, strict=True)
    )
    return f"Both fused kernels require query, key and value to have the same batch_size and num_heads. {sizes}"


def _square(of: AskedAttention) -> str:
    queries, keys = of.query.shape[-2], of.key.shape[-2]
    if not of.causal or queries == keys:
        return ""
    return (
        f"Flash attention does not support the is_causal flag when seqlen_q != seqlen_k. Got seqlen_q: {queries} seqlen_k: "
        f"{keys}. If you would like to use causal attention with non-square masks, please see CausalAttnMask."
    )


def _flash(of: AskedAttention) -> str:
    if not torch.backends.cuda.flash_sdp_enabled():
        return "Flash attention has been runtime disabled."
    widths = {each.shape[-1] for each in of.operands}
    return (
        _dimensions(of)
        or ("" if of.mask is None else "Flash Attention does not support non-null attn_mask.")
        or (
            ""
            if len(widths) == 1 and max(widths) <= 256
            else "Flash attention requires q,k,v to have the same last dimension and to be less than or equal to 256. Got "
            f"{of.written('.size(-1)', lambda each: each.shape[-1])} instead."
        )
        or _heads(of, grouped=True)
        or _square(of)
        or _formats(of, torch.float16, torch.bfloat16)
    )


def _efficient(of: AskedAttention) -> str:
    if not torch.backends.cuda.mem_efficient_sdp_enabled():
        return "Memory Efficient attention has been runtime disabled."
    step = 16 // of.query.element_size()
    return (
        _formats(of, torch.float16, torch.float32, torch.bfloat16)
        or _dimensions(of)
        or (
            ""
            if all(each.shape[-1] % step == 0 for each in of.operands)
            else f"Mem efficient attention requires last dimension of inputs to be divisible by {step}. Got "
            f"{of.written('.size(-1)', lambda each: each.shape[-1])} instead."
        )
        or _heads(of, grouped=False)
    )


def _cudnn(of: AskedAttention) -> str:
    if not torch.backends.cuda.cudnn_sdp_enabled():
        return "cuDNN attention has been runtime disabled."
    widths = [each.shape[-1] for each in of.operands]
    return (
        _dimensions(of)
        or _formats(of, torch.float16, torch.bfloat16)
        or ("head_dim should be a multiple of 8" if any(width % 8 for width in widths) else "")
        or ("head_dim should be no more than 256" if max(widths) > 256 else "")
        or _heads(of, grouped=True)
    )


_BACKENDS: tuple[tuple[str, Callable[[AskedAttention], str]], ...] = (
    ("Memory efficient", _efficient), ("Flash attention", _flash), ("cuDNN attention", _cudnn),
)  # fmt: skip


def refuse(of: AskedAttention) -> None:
    """Raise RuntimeError, after warnings that say why, if the program allows no kernel that takes an attention."""
    if torch.backends.cuda.math_sdp_enabled():
        return
    reasons = [(name, why(of)) for name, why in _BACKENDS]
    if all(reason for _, reason in reasons):
        for name, reason in reasons:
            warnings.warn(f"{name} kernel not used because:", UserWarning, stacklevel=4)
            warnings.warn(reason, UserWarning, stacklevel=4)
        raise RuntimeError("No available kernel. Aborting execution.")


def _answers(why: Callable[[AskedAttention], str]) -> Callable[[Any, bool], bool]:
    """``torch._C._can_use_...``: whether a kernel takes the attention of ``SDPAParams``; ``debug``: warn if it does not."""

    def can_use(params: Any, debug: bool = False) -> bool:
        asked = AskedAttention(
            params.query, params.key, params.value, params.attn_mask, params.enable_gqa, params.is_causal
        )
        reason = why(asked) if asked.query.device.type == "cuda" else "no GPU"
        if reason and debug:
            warnings.warn(reason, UserWarning, stacklevel=3)
        return not reason

    return can_use


def _is_there() -> bool:
    """Whether torch was built with FlashAttention: builds for CUDA are."""
    return True


CAN_USE: dict[str, Callable[..., bool]] = {
    "_can_use_flash_attention": _answers(_flash),
    "_can_use_mem_efficient_attention": _answers(_efficient),
    "_can_use_cudnn_attention": _answers(_cudnn),
    "_is_flash_attention_available": _is_there,
}
"""Attributes of ``torch._C`` that ``torch.backends.cuda`` calls."""

RELIES_ON = (
    Reliance("torch._C", "what asks for a kernel of attention is answered here", has=tuple(CAN_USE)),
    Reliance("torch.backends.cuda", "what it calls in C++ takes here what it gives", holds=fit(CAN_USE)),
    Reliance(
        "torch.backends.cuda.SDPAParams", "it has what it was made of",
        has=("query", "key", "value", "attn_mask", "enable_gqa", "is_causal"),
    ),
)  # fmt: skip


def install(patches: Patches) -> None:
    """Let torch ask what a simulated GPU has."""
    for name, function in CAN_USE.items():
        patches.set(torch._C, name, function)
