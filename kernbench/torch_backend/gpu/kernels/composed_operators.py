"""Operators that are one kernel for CPU tensors, and that torch composes of others on a GPU: the fast paths of
``nn.MultiheadAttention`` and ``nn.TransformerEncoderLayer`` (aten/src/ATen/native/transformers/cuda/attention.cu and
transformers/transformer.cpp of torch 2.13).

The recorder opens them, so that each of what they consist of is seen, priced and placed. Nested tensors, which have no shapes
that Python may ask for, are one operator nevertheless, and named as one without a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from kernbench.torch_backend.relies_on import Reliance

_ATTENTION, _LAYER = "_native_multi_head_attention", "_transformer_encoder_layer_fwd"


def _begins(*names: str) -> Callable[[Any], bool]:
    return lambda op: [each.name for each in op.default._schema.arguments][: len(names)] == list(names)


RELIES_ON = (
    Reliance(f"torch.ops.aten.{_ATTENTION}", "`nn.MultiheadAttention` calls it where no gradient is wanted", holds=_begins(
        "query", "key", "value", "embed_dim", "num_head", "qkv_weight", "qkv_bias", "proj_weight", "proj_bias", "mask",
        "need_weights", "average_attn_weights", "mask_type",
    )),
    Reliance(f"torch.ops.aten.{_LAYER}", "`nn.TransformerEncoderLayer` calls it where no gradient is wanted", holds=_begins(
        "src", "embed_dim", "num_heads", "qkv_weight", "qkv_bias", "proj_weight", "proj_bias", "use_gelu", "norm_first", "eps",
        "norm_weight_1", "norm_bias_1", "norm_weight_2", "norm_bias_2", "ffn_weight_1", "ffn_bias_1", "ffn_weight_2",
        "ffn_bias_2", "mask", "mask_type",
    )),
    Reliance("torch.ops.aten._transform_bias_rescale_qkv.default", "heads apart, queries scaled", has=("_schema",)),
    Reliance("torch.ops.aten._masked_softmax.default", "a softmax that leaves places out", has=("_schema",)),
    Reliance("torch.ops.aten._addmm_activation.default", "a product, a row and an activation", has=("_schema",)),
)  # fmt: skip

_PIECE = 8  # elements, of which the width of a head must be a multiple for a fused kernel


def _attended(
    query: Tensor, key: Tensor, value: Tensor, embed_dim: int, num_head: int, qkv_weight: Tensor, qkv_bias: Tensor,
    proj_weight: Tensor, proj_bias: Tensor, mask: Tensor | None = None, need_weights: bool = True,
    average_attn_weights: bool = True, mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Projections, attention of heads, projection: fused where one sequence attends to itself and nothing else is asked for."""
    batch, length, _ = query.shape
    width = embed_dim // num_head
    alone = query is key and key is value
    if alone and mask is None and not need_weights and width % _PIECE == 0:
        parts = F.linear(query, qkv_weight, qkv_bias).chunk(3, -1)
        q, k, v = (each.view(batch, -1, num_head, width).transpose(1, 2) for each in parts)
        found = F.scaled_dot_product_attention(q, k, v)
        return F.linear(found.transpose(1, 2).reshape(batch, -1, embed_dim), proj_weight, proj_bias), None
    aten = torch.ops.aten
    if alone:
        projected = F.linear(query, qkv_weight)
    else:
        rows = qkv_weight.chunk(3)
        projected = torch.cat([F.linear(x, w) for x, w in zip((query, key, value), rows, strict=True)], dim=2)
    q, k, v = aten._transform_bias_rescale_qkv(projected, qkv_bias, num_head)
    flat = [each.reshape(batch * num_head, -1, width) for each in (q, k, v)]
    shares = torch.bmm(flat[0], flat[1].transpose(1, 2)).view(batch, num_head, length, -1)
    if mask is None:
        shares = shares.softmax(-1)
    else:
        shares = aten._masked_softmax(shares, mask.to(torch.bool), 3, mask_type)
    found = torch.bmm(shares.view(batch * num_head, length, -1), flat[2]).view(batch, num_head, length, width)
    result = F.linear(found.transpose(1, 2).reshape(batch, length, embed_dim), proj_weight, proj_bias)
    if not need_weights:
        return result, None
    return result, shares.sum(1) / num_head if average_attn_weights else shares


def _layer(
    src: Tensor, embed_dim: int, num_heads: int, qkv_weight: Tensor, qkv_bias: Tensor, proj_weight: Tensor,
    proj_bias: Tensor, use_gelu: bool, norm_first: bool, eps: float, norm_weight_1: Tensor, norm_bias_1: Tensor,
    norm_weight_2: Tensor, norm_bias_2: Tensor, ffn_weight_1: Tensor, ffn_bias_1: Tensor, ffn_weight_2: Tensor,
    ffn_bias_2: Tensor, mask: Tensor | None = None, mask_type: int | None = None,
) -> Tensor:  # fmt: skip
    """Attention and two products beside what they are added to, with a norm before or after each."""

    def first(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def second(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    x = first(src) if norm_first else src
    attend = getattr(torch.ops.aten, _ATTENTION).default
    y = attend(
        x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, False, True, mask_type
    )[0]
    y = y.add_(src)
    if not norm_first:
        y = first(y)
    x = second(y) if norm_first else y
    flat = x.reshape(prod(x.shape[:-1]), embed_dim)
    z = torch.ops.aten._addmm_activation.default(ffn_bias_1, flat, ffn_weight_1.t(), use_gelu=use_gelu)
    z = torch.addmm(ffn_bias_2, z, ffn_weight_2.t()).view(x.shape).add_(y)
    return z if norm_first else second(z)


COMPOSED: Mapping[str, Callable[..., object]] = {f"aten::{_ATTENTION}": _attended, f"aten::{_LAYER}": _layer}
"""What a GPU composes an operator of, by its name."""
