"""Attention that a GPU computes in one kernel, and torch on a CPU in steps that keep the scores.

With dropout, a mask that wants a gradient, or values of another width than keys, ``F.scaled_dot_product_attention`` of CPU
tensors falls back to products and a softmax: memory of the square of the length, which a GPU's flash or memory-efficient
kernels do not take. On a simulated GPU it is the memory-efficient kernel's operator, with and without data; so is the
attention of a program that has switched flash off (``sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION)``). Where cuDNN is all that is
left (``SDPBackend.CUDNN_ATTENTION``), it is cuDNN's operator, with grouped queries too (ADR 0217). What a GPU computes in
steps too (three dimensions, grouped queries together with one of these, ``SDPBackend.MATH``) is left to torch.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from kernbench.torch_backend.gpu.kernels.attention_backends import AskedAttention, refuse
from kernbench.torch_backend.gpu.tensors.placement import PLAIN, block_of
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

_OPERATOR = "_scaled_dot_product_efficient_attention"
_CUDNN = "_scaled_dot_product_cudnn_attention"

RELIES_ON = (
    Reliance("torch.nn.functional.scaled_dot_product_attention", "programs and torch's layers attend by it"),
    Reliance(
        f"torch.ops.aten.{_OPERATOR}", "autograd and meta kernels know it; it gives the output and the logsumexp first",
        holds=lambda op: [each.name for each in op.default._schema.arguments][3:7]
        == ["attn_bias", "compute_log_sumexp", "dropout_p", "is_causal"],
    ),
    Reliance(
        f"torch.ops.aten.{_OPERATOR}_backward", "its gradient",
        holds=lambda op: [each.name for each in op.default._schema.arguments][5:12]
        == ["out", "logsumexp", "philox_seed", "philox_offset", "dropout_p", "grad_input_mask", "is_causal"],
    ),
    Reliance(
        f"torch.ops.aten.{_CUDNN}", "autograd and meta kernels know it; it gives the output and the logsumexp first",
        holds=lambda op: [each.name for each in op.default._schema.arguments][3:7]
        == ["attn_bias", "compute_log_sumexp", "dropout_p", "is_causal"],
    ),
    Reliance(
        f"torch.ops.aten.{_CUDNN}_backward", "its gradient",
        holds=lambda op: [each.name for each in op.default._schema.arguments][4:9]
        == ["out", "logsumexp", "philox_seed", "philox_offset", "attn_bias"],
    ),
)  # fmt: skip

_PADDED = 32
"""The kernel keeps the logsumexp of queries up to a multiple of these."""


_TRACED = "_torchdynamo_inline"
"""The attribute of a function in whose place Dynamo traces another."""

compares: Callable[[], bool] = bool
"""Whether operands that are on several devices are refused where the program is now: not in what a kernel computes with."""

ring: Callable[..., Any] | None = None
"""What is asked first, with the same arguments: attention over a ring, while a rank is in ``context_parallel``."""


def install(patches: Patches) -> None:
    """Replace ``F.scaled_dot_product_attention``."""
    stock = F.scaled_dot_product_attention

    @functools.wraps(stock)
    def attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
        scale: float | None = None, enable_gqa: bool = False,
    ) -> Any:  # fmt: skip
        if ring is not None:
            found = ring(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
            if found is not None:
                return found
        _refuse_apart(query, key, value)
        if _is_plain_on_a_gpu(query, key, value):
            refuse(AskedAttention(query, key, value, attn_mask, enable_gqa))
        if _is_jagged(query, key, value) and attn_mask is None:
            return _of_sequences(attention, (query, key, value), dropout_p, is_causal, scale, enable_gqa)
        if _is_cudnn(query, key, value, attn_mask, dropout_p):
            added = None if attn_mask is None else _bias(attn_mask, query, key)
            return getattr(torch.ops.aten, _CUDNN).default(
                query, key, value, added, torch.is_grad_enabled(), 0.0, is_causal, scale=scale
            )[0]
        in_steps = (
            dropout_p > 0
            or not torch.backends.cuda.flash_sdp_enabled()
            or (attn_mask is not None and attn_mask.requires_grad)
            or value.shape[-1] != query.shape[-1]
        )
        if not in_steps or not _has_a_kernel(query, key, value, attn_mask, is_causal):
            return stock(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        parts = (query, key, value)
        if torch.is_autocast_enabled("cpu"):
            parts = tuple(each.to(torch.get_autocast_dtype("cpu")) for each in parts)
        bias = None if attn_mask is None else _bias(attn_mask, parts[0], key)
        keep = torch.is_grad_enabled() and any(each.requires_grad for each in (*parts, bias) if each is not None)
        operator = getattr(torch.ops.aten, _OPERATOR).default
        return operator(*parts, bias, keep, dropout_p, is_causal, scale=scale)[0]

    vars(attention)[_TRACED] = stock
    patches.set(F, "scaled_dot_product_attention", attention)


def _bias(mask: Any, query: Any, key: Any) -> Any:
    """What a mask adds to the scores."""
    bias = torch.where(mask, 0.0, -math.inf) if mask.dtype is torch.bool else mask
    return bias.to(query.dtype).expand(*query.shape[:3], key.shape[2])


def _is_plain_on_a_gpu(*operands: Any) -> bool:
    return all(type(each) in PLAIN and block_of(each) is not None for each in operands) and compares()


def _refuse_apart(*operands: Any) -> None:
    """Raise RuntimeError in torch's words if they are on several devices. What a kernel computes with is not looked at."""
    if not compares():
        return
    homes = [block and block.memory for block in map(block_of, operands)]
    if homes.count(homes[0]) < len(homes):
        query, key, value = (each.device for each in operands)
        raise RuntimeError(
            f"Expected query, key, and value to have the same device type, but got query.device: {query} key.device: {key} and "
            f"value.device: {value} instead."
        )


def _is_jagged(*tensors: Any) -> bool:
    """Whether these are sequences of several lengths on a GPU, each of heads, positions and their parts."""
    return all(
        isinstance(each, torch.Tensor)
        and each.layout is torch.jagged
        and each.dim() == 4
        and isinstance(each.size(2), torch.SymInt)
        and block_of(each) is not None
        for each in tensors
    )


def _of_sequences(
    attention: Callable[..., Any], parts: tuple[Any, ...], dropout_p: float, is_causal: bool, scale: float | None,
    enable_gqa: bool,
) -> Any:  # fmt: skip
    """Attention of jagged tensors, a call for each sequence: C++ would ask whether a GPU has a kernel for them all."""
    how: dict[str, Any] = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
    outs = [
        attention(*(part.unsqueeze(0) for part in sequence), **how)[0].transpose(0, 1)
        for sequence in zip(*(part.unbind() for part in parts), strict=True)
    ]
    return torch.nested.nested_tensor_from_jagged(torch.cat(outs), parts[0].offsets()).transpose(1, 2)


def go_around(attention: Callable[..., Any] | None) -> None:
    """Ask ``attention`` first (:data:`ring`), which Dynamo does not trace; None: no function, and Dynamo traces torch's own."""
    global ring
    ring = attention
    found = vars(F.scaled_dot_product_attention)
    found.pop(_TRACED, None)
    if attention is None and "__wrapped__" in found:
        found[_TRACED] = found["__wrapped__"]


def _is_cudnn(query: Any, key: Any, value: Any, mask: Any, dropout_p: float) -> bool:
    """Whether cuDNN is the one fused kernel that the program allows, and takes these."""
    return (
        torch.backends.cuda.cudnn_sdp_enabled()
        and not torch.backends.cuda.flash_sdp_enabled()
        and not torch.backends.cuda.mem_efficient_sdp_enabled()
        and (mask is None or not mask.requires_grad)
        and not dropout_p
        and query.dim() == 4
        and query.shape[1] % key.shape[1] == 0
        and query.dtype in (torch.float16, torch.bfloat16)
        and block_of(query) is not None
    )


def _has_a_kernel(query: Any, key: Any, value: Any, mask: Any, causal: bool) -> bool:
    """Whether a GPU's memory-efficient kernel takes these."""
    return (
        query.dim() == key.dim() == value.dim() == 4
        and query.shape[1] == key.shape[1] == value.shape[1]
        and not (causal and mask is not None)
        and torch.backends.cuda.mem_efficient_sdp_enabled()
        and block_of(query) is not None
    )


def forward(
    query: Any, key: Any, value: Any, bias: Any, keep: bool, dropout_p: float = 0.0, is_causal: bool = False, *,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """The operator on CPU tensors ``[batch, heads, tokens, width]``: output, logsumexp, and what the dropout was drawn from."""
    seed = torch.randint(1 << 62, ()) if dropout_p else torch.zeros((), dtype=torch.int64)
    scores = _scores(query, key, bias, is_causal, scale)
    logsumexp = scores.logsumexp(-1)
    shares = (scores - logsumexp.unsqueeze(-1)).exp().nan_to_num(0.0) * _kept(scores, dropout_p, seed)
    tokens = query.shape[2]
    kept = (
        F.pad(logsumexp, (0, -tokens % _PADDED), value=math.inf) if keep else logsumexp.new_empty((*query.shape[:2], 0))
    )
    out = (shares @ value.float()).to(query.dtype).transpose(1, 2).contiguous().transpose(1, 2)
    return out, kept, seed, torch.zeros((), dtype=torch.int64)


def backward(
    grad: Any, query: Any, key: Any, value: Any, bias: Any, out: Any, logsumexp: Any, seed: Any, offset: Any, dropout_p: float,
    wanted: Any, is_causal: bool = False, *, scale: float | None = None,
) -> tuple[Any, Any, Any, Any]:  # fmt: skip
    """Its gradient: of query, key, value and bias. Dao et al., FlashAttention, algorithm 4, without the blocks."""
    grad, wide = grad.float(), (query.float(), key.float(), value.float())
    scores = _scores(query, key, bias, is_causal, scale)
    shares = (scores - logsumexp[..., : query.shape[2], None]).exp().nan_to_num(0.0)
    kept = _kept(scores, dropout_p, seed)
    of_shares = grad @ wide[2].mT * kept
    of_scores = shares * (of_shares - (grad * out.float()).sum(-1, keepdim=True))
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    found = (of_scores @ wide[1] * factor, of_scores.mT @ wide[0] * factor, (shares * kept).mT @ grad)
    made = [each.to(query.dtype).transpose(1, 2).contiguous().transpose(1, 2) for each in found]
    return *made, of_scores.to(query.dtype) if wanted[3] else None


def _scores(query: Any, key: Any, bias: Any, is_causal: bool, scale: float | None) -> torch.Tensor:
    found: torch.Tensor = query.float() @ key.float().mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if bias is not None:
        found = found + bias.float()
    if is_causal:
        found = found.masked_fill(torch.ones(found.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    return found


def _kept(scores: torch.Tensor, dropout_p: float, seed: torch.Tensor) -> Any:
    """What each share is multiplied by: nothing where it is dropped."""
    if not dropout_p:
        return 1.0
    drawn = torch.rand(scores.shape, generator=torch.Generator().manual_seed(int(seed)))
    return (drawn >= dropout_p).float() / (1 - dropout_p)


def cudnn_forward(
    query: Any, key: Any, value: Any, bias: Any, keep: bool, dropout_p: float = 0.0, is_causal: bool = False,
    return_debug_mask: bool = False, *, scale: float | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """cuDNN's operator on CPU tensors ``[batch, heads, tokens, width]``; keys and values may have fewer heads."""
    repeats = query.shape[1] // key.shape[1]
    scores = _scores(query, key.repeat_interleave(repeats, 1), bias, is_causal, scale)
    shares = scores.softmax(-1)
    out = torch.empty_like(query.transpose(1, 2)[..., : value.shape[-1]]).transpose(1, 2)
    out.copy_(shares @ value.float().repeat_interleave(repeats, 1))
    none = torch.zeros((), dtype=torch.int64)
    kept = scores.logsumexp(-1, keepdim=True)
    return out, kept, none, none.clone(), query.shape[2], key.shape[2], none.clone(), none.clone(), none.clone()


def cudnn_backward(
    grad: Any, query: Any, key: Any, value: Any, out: Any, logsumexp: Any, seed: Any, offset: Any, bias: Any, firsts_q: Any,
    firsts_k: Any, most_q: Any, most_k: Any, dropout_p: float, is_causal: bool, *, scale: float | None = None,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """Its gradient: of query, key and value."""
    repeats = query.shape[1] // key.shape[1]
    keys, values = (each.repeat_interleave(repeats, 1) for each in (key, value))
    wanted, kept = (True, True, True, False), logsumexp.squeeze(-1)
    of_query, of_key, of_value, _ = backward(
        grad, query, keys, values, bias, out, kept, seed, offset, 0.0, wanted, is_causal, scale=scale
    )
    grouped = (each.float().unflatten(1, (-1, repeats)).sum(2) for each in (of_key, of_value))
    found = tuple(torch.empty_like(each) for each in (query, key, value))
    for to, made in zip(found, (of_query, *grouped), strict=True):
        to.copy_(made)
    return found  # type: ignore[return-value]


KERNELS: dict[str, Callable[..., Any]] = {
    f"aten::{_OPERATOR}": forward,
    f"aten::{_OPERATOR}_backward": backward,
    f"aten::{_CUDNN}": cudnn_forward,
    f"aten::{_CUDNN}_backward": cudnn_backward,
}
