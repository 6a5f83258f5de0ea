"""Attention that a GPU computes in one kernel, and torch on a CPU in steps that keep the scores.

With dropout, a mask that wants a gradient, or values of another width than keys, ``F.scaled_dot_product_attention`` of CPU
tensors falls back to products and a softmax: memory of the square of the length, which a GPU's flash or memory-efficient
kernels do not take. On a simulated GPU it is the memory-efficient kernel's operator, with and without data; so is the
attention of a program that has switched flash off (``sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION)``). Where torch would take
cuDNN's, it is cuDNN's operator, with grouped queries too (ADR 0217, ADR 0246, :mod:`.attention_choice`). What a GPU computes in
steps too (three dimensions, grouped queries together with one of these, ``SDPBackend.MATH``) is left to torch.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_unary

from kernbench.torch_backend.gpu.kernels import attention_backends
from kernbench.torch_backend.gpu.kernels.attention_backends import AskedAttention, refuse
from kernbench.torch_backend.gpu.kernels.attention_choice import CUDNN as _CUDNN
from kernbench.torch_backend.gpu.kernels.attention_choice import bias_of, by_cudnn, fits, takes_cudnn
from kernbench.torch_backend.gpu.tensors.placement import PLAIN, block_of
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

_OPERATOR = "_scaled_dot_product_efficient_attention"
_FLASH = "_scaled_dot_product_flash_attention_for_cpu"

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
        f"torch.ops.aten.{_FLASH}", "it computes for a CPU what cuDNN's kernel does for a GPU",
        holds=lambda op: [each.name for each in op.default._schema.arguments][3:]
        == ["dropout_p", "is_causal", "attn_mask", "scale"],
    ),
    Reliance(
        f"torch.ops.aten.{_FLASH}_backward", "its gradient",
        holds=lambda op: [each.name for each in op.default._schema.arguments][4:]
        == ["out", "logsumexp", "dropout_p", "is_causal", "attn_mask", "scale"],
    ),
)  # fmt: skip

_PADDED = 32
"""The kernel keeps the logsumexp of queries up to a multiple of these."""


_TRACED = "_torchdynamo_inline"
"""The attribute of a function in whose place Dynamo traces another."""

compares: Callable[[], bool] = bool
"""Whether operands that are on several devices are refused where the program is now: not in what a kernel computes with."""

ring: Callable[..., object] | None = None
"""What is asked first, with the same arguments: attention over a ring, while a rank is in ``context_parallel``."""


def install(patches: Patches) -> None:
    """Replace ``F.scaled_dot_product_attention``."""
    stock = F.scaled_dot_product_attention

    @functools.wraps(stock)
    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        if ring is not None:
            found = ring(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
            if found is not None:
                return found
        if _attends_itself(attn_mask):
            how: dict[str, Any] = {
                "dropout_p": dropout_p,
                "is_causal": is_causal,
                "scale": scale,
                "enable_gqa": enable_gqa,
            }
            return handle_torch_function(attention, (attn_mask,), query, key, value, attn_mask, **how)
        _refuse_apart(query, key, value)
        if _is_plain_on_a_gpu(query, key, value):
            refuse(AskedAttention(query, key, value, attn_mask, enable_gqa, is_causal))
        if _is_jagged(query, key, value) and attn_mask is None:
            return _of_sequences(attention, (query, key, value), dropout_p, is_causal, scale, enable_gqa)
        on_gpu = block_of(query) is not None and compares()  # and not what an operation's values are computed by
        if on_gpu and takes_cudnn(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa):
            return by_cudnn(query, key, value, attn_mask, is_causal, scale)
        in_steps = (
            dropout_p > 0
            or not torch.backends.cuda.flash_sdp_enabled()
            or (attn_mask is not None and attn_mask.requires_grad)
            or value.shape[-1] != query.shape[-1]
        )
        if not in_steps or not 0 <= dropout_p <= 1 or not _has_a_kernel(query, key, value, attn_mask, is_causal):
            return stock(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        parts: tuple[Tensor, ...] = (query, key, value)
        if torch.is_autocast_enabled("cuda"):
            parts = tuple(each.to(torch.get_autocast_dtype("cuda")) for each in parts)
        bias = bias_of(attn_mask, parts[0], key)
        keep = torch.is_grad_enabled() and any(each.requires_grad for each in (*parts, bias) if each is not None)
        operator = getattr(torch.ops.aten, _OPERATOR).default
        return operator(*parts, bias, keep, dropout_p, is_causal, scale=scale)[0]

    attention_backends.install(patches)
    vars(attention)[_TRACED] = in_graphs
    patches.set(F, "scaled_dot_product_attention", attention)


def _attends_itself(mask: Tensor | None) -> bool:
    """Whether a mask says how there is attention with it, as ``torch.nn.attention.bias.CausalBias`` does."""
    return isinstance(mask, Tensor) and type(mask) not in PLAIN and has_torch_function_unary(mask)


def _is_plain_on_a_gpu(*operands: Any) -> bool:
    return all(type(each) in PLAIN and block_of(each) is not None for each in operands) and compares()


_stock = F.scaled_dot_product_attention


def in_graphs(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """What is in Dynamo's graphs: torch's own function, or cuDNN's operator."""
    if takes_cudnn(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa):
        return by_cudnn(query, key, value, attn_mask, is_causal, scale)
    return _stock(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


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


def _is_jagged(*tensors: object) -> bool:
    """Whether these are sequences of several lengths on a GPU, each of heads, positions and their parts."""
    return all(
        isinstance(each, Tensor)
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


def go_around(attention: Callable[..., object] | None) -> None:
    """Ask ``attention`` first (:data:`ring`), which Dynamo does not trace; None: no function, and Dynamo traces torch's own."""
    global ring
    ring = attention
    found = vars(F.scaled_dot_product_attention)
    found.pop(_TRACED, None)
    if attention is None and "__wrapped__" in found:
        found[_TRACED] = in_graphs


def _has_a_kernel(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> bool:
    """Whether a GPU's memory-efficient kernel takes these."""
    return (
        query.dim() == key.dim() == value.dim() == 4
        and query.shape[1] == key.shape[1] == value.shape[1]
        and fits(query, key, value, mask)
        and not (causal and mask is not None)
        and torch.backends.cuda.mem_efficient_sdp_enabled()
        and block_of(query) is not None
    )


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    keep: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
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
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    seed: Tensor,
    offset: Tensor,
    dropout_p: float,
    wanted: Any,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, Any, Any, Any]:
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


def _scores(query: Tensor, key: Tensor, bias: Tensor | None, is_causal: bool, scale: float | None) -> Tensor:
    found: Tensor = query.float() @ key.float().mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if bias is not None:
        found = found + bias.float()
    if is_causal:
        found = found.masked_fill(torch.ones(found.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    return found


def _kept(scores: Tensor, dropout_p: float, seed: Tensor) -> Any:
    """What each share is multiplied by: nothing where it is dropped."""
    if not dropout_p:
        return 1.0
    drawn = torch.rand(scores.shape, generator=torch.Generator().manual_seed(int(seed)))
    return (drawn >= dropout_p).float() / (1 - dropout_p)


def cudnn_forward(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, keep: bool, dropout_p: float = 0.0, is_causal: bool = False,
    return_debug_mask: bool = False, *, scale: float | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """cuDNN's operator on CPU tensors ``[batch, heads, tokens, width]``; keys and values may have fewer heads."""
    keys, values = _repeated(query, key, value)
    out = torch.empty_like(query.transpose(1, 2)[..., : value.shape[-1]]).transpose(1, 2)
    if value.shape[-1] == query.shape[-1]:
        flash = getattr(torch.ops.aten, _FLASH).default
        found, kept = flash(query, keys, values, 0.0, is_causal, attn_mask=bias, scale=scale)
    else:
        scores = _scores(query, keys, bias, is_causal, scale)
        found, kept = scores.softmax(-1) @ values.float(), scores.logsumexp(-1)
    out.copy_(found)
    kept = kept.contiguous().unsqueeze(-1) if keep else kept.new_empty(0)
    seed, none = torch.zeros((), dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
    tokens = query.shape[2], key.shape[2]
    return out, kept, none, none.clone(), *tokens, seed, seed.clone(), none.clone()


def cudnn_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    seed: Tensor,
    offset: Tensor,
    bias: Tensor | None,
    firsts_q: Tensor | None,
    firsts_k: Tensor | None,
    most_q: Any,
    most_k: Any,
    dropout_p: float,
    is_causal: bool,
    *,
    scale: float | None = None,
) -> tuple[Any, Any, Any]:
    """Its gradient: of query, key and value."""
    keys, values = _repeated(query, key, value)
    kept, bias = logsumexp.squeeze(-1), None if bias is None or not bias.numel() else bias
    if value.shape[-1] == query.shape[-1]:
        flash = getattr(torch.ops.aten, f"{_FLASH}_backward").default
        made = flash(grad, query, keys, values, out, kept, 0.0, is_causal, attn_mask=bias, scale=scale)
    else:
        wanted = (True, True, True, False)
        made = backward(grad, query, keys, values, bias, out, kept, seed, offset, 0.0, wanted, is_causal, scale=scale)[
            :3
        ]
    repeats = query.shape[1] // key.shape[1]
    grouped = (each.float().unflatten(1, (-1, repeats)).sum(2) if repeats > 1 else each for each in made[1:])
    found = tuple(torch.empty_like(each) for each in (query, key, value))
    for to, one in zip(found, (made[0], *grouped), strict=True):
        to.copy_(one)
    return found  # type: ignore[return-value]


def _repeated(query: Tensor, *shared: Any) -> list[Any]:
    """Keys and values with a head for each of the queries'."""
    repeats = query.shape[1] // shared[0].shape[1]
    return [each.repeat_interleave(repeats, 1) if repeats > 1 else each for each in shared]


KERNELS: dict[str, Callable[..., object]] = {
    f"aten::{_OPERATOR}": forward,
    f"aten::{_OPERATOR}_backward": backward,
    f"aten::{_CUDNN}": cudnn_forward,
    f"aten::{_CUDNN}_backward": cudnn_backward,
}
