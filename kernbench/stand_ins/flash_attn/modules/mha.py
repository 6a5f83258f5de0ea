"""The layers of ``flash_attn.modules.mha``, for training: without caches of keys and values."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from kernbench.stand_ins.attention.definition import Tensor, Window

from ..flash_attn_interface import (
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
)
from ..layers.rotary import RotaryEmbedding

_ALL = (-1, -1)


def get_alibi_slopes(nheads: int) -> list[float]:
    """A geometric sequence; for a number of heads that is no power of two, with some of the next one's. Press et al. 2022."""

    def of_a_power(n: int) -> list[float]:
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start ** (i + 1) for i in range(n)]

    if math.log2(nheads).is_integer():
        return of_a_power(nheads)
    power = 2 ** math.floor(math.log2(nheads))
    return of_a_power(power) + get_alibi_slopes(2 * power)[0::2][: nheads - power]


class _Attention(nn.Module):
    def __init__(
        self, causal: bool = False, softmax_scale: float | None = None, attention_dropout: float = 0.0,
        window_size: Window = _ALL, alibi_slopes: Tensor | None = None, deterministic: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.causal, self.softmax_scale, self.window_size = causal, softmax_scale, window_size
        self.drop = nn.Dropout(attention_dropout)
        self.register_buffer("alibi_slopes", alibi_slopes, persistent=False)
        self.deterministic = deterministic

    def _settings(self, causal: bool | None) -> dict[str, Any]:
        return {
            "dropout_p": self.drop.p if self.training else 0.0, "softmax_scale": self.softmax_scale,
            "causal": self.causal if causal is None else causal, "window_size": self.window_size,
            "alibi_slopes": self.alibi_slopes,
        }  # fmt: skip


class FlashSelfAttention(_Attention):
    """Attention of ``[batch, length, 3, heads, size]``, or ``[all, 3, heads, size]`` of sequences."""

    def forward(
        self, qkv: Tensor, causal: bool | None = None, cu_seqlens: Tensor | None = None, max_seqlen: int | None = None
    ) -> Any:
        """``[..., heads, size]``."""
        if cu_seqlens is None:
            return flash_attn_qkvpacked_func(qkv, **self._settings(causal))
        return flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, max_seqlen or 0, **self._settings(causal))


class FlashCrossAttention(_Attention):
    """Attention of queries over ``[batch, keys, 2, heads, size]``, or ``[all, 2, heads, size]`` of sequences."""

    def forward(
        self, q: Tensor, kv: Tensor, causal: bool | None = None, cu_seqlens: Tensor | None = None,
        max_seqlen: int | None = None, cu_seqlens_k: Tensor | None = None, max_seqlen_k: int | None = None,
    ) -> Any:  # fmt: skip
        """``[..., heads, size]``."""
        if cu_seqlens is None:
            return flash_attn_kvpacked_func(q, kv, **self._settings(causal))
        return flash_attn_varlen_kvpacked_func(
            q, kv, cu_seqlens, cu_seqlens_k, max_seqlen, max_seqlen_k, **self._settings(causal)
        )


class CrossAttention(nn.Module):
    """The same in plain torch, with a mask of keys."""

    def __init__(
        self, causal: bool = False, softmax_scale: float | None = None, attention_dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.causal, self.softmax_scale = causal, softmax_scale
        self.drop = nn.Dropout(attention_dropout)

    def forward(
        self, q: Tensor, kv: Tensor, causal: bool | None = None, key_padding_mask: Tensor | None = None
    ) -> Tensor:
        """``key_padding_mask``: true where there is a key, ``[batch, keys]``."""
        k, v = kv.unbind(2)
        groups = q.shape[2] // k.shape[2]
        if groups > 1:
            k, v = (each.repeat_interleave(groups, dim=2) for each in (k, v))
        scale = q.shape[-1] ** -0.5 if self.softmax_scale is None else self.softmax_scale
        scores = torch.einsum("bthd,bshd->bhts", q, k * scale)
        if key_padding_mask is not None:
            scores = scores + torch.zeros_like(key_padding_mask, dtype=scores.dtype).masked_fill(
                ~key_padding_mask, -10000.0
            ).unsqueeze(1).unsqueeze(1)
        if self.causal if causal is None else causal:
            queries, keys = q.shape[1], k.shape[1]
            later = torch.ones(queries, keys, dtype=torch.bool, device=q.device).triu(keys - queries + 1)
            scores = scores.masked_fill(later, -10000.0)
        weights = torch.softmax(scores, dim=-1, dtype=v.dtype)
        return torch.einsum("bhts,bshd->bthd", self.drop(weights), v)


class PackedAttention(CrossAttention):
    """The same of ``[batch, length, 3, heads, size]``."""

    def forward(  # type: ignore[override]
        self, qkv: Tensor, causal: bool | None = None, key_padding_mask: Tensor | None = None
    ) -> Tensor:
        """``[batch, length, heads, size]``."""
        return super().forward(qkv[:, :, 0], qkv[:, :, 1:], causal, key_padding_mask)


SelfAttention = PackedAttention


class MHA(nn.Module):
    """Projections, rotary embedding, attention and the projection behind it; queries may have more heads than keys.

    Raises NotImplementedError for what serves inference, and for depthwise convolutions.
    """

    def __init__(
        self, embed_dim: int, num_heads: int, num_heads_kv: int | None = None, cross_attn: bool = False,
        qkv_proj_bias: bool = True, out_proj_bias: bool = True, dropout: float = 0.0, softmax_scale: float | None = None,
        causal: bool = False, layer_idx: int | None = None, dwconv: bool = False, rotary_emb_dim: int = 0,
        rotary_emb_base: float = 10000.0, rotary_emb_scale_base: float | None = None,
        rotary_emb_interleaved: bool = False, use_alibi: bool = False, window_size: Window = _ALL,
        fused_bias_fc: bool = False, use_flash_attn: bool = False, return_residual: bool = False,
        checkpointing: bool = False, device: Any = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if dwconv:
            raise NotImplementedError("the stand-in for flash_attn.modules.mha.MHA has no dwconv")
        of_keys = num_heads if num_heads_kv is None else num_heads_kv
        assert num_heads % of_keys == 0, "num_heads must be divisible by num_heads_kv"
        assert embed_dim % num_heads == 0, "embed_dim must be divisible by num_heads"
        self.embed_dim, self.num_heads, self.num_heads_kv = embed_dim, num_heads, of_keys
        self.head_dim = embed_dim // num_heads
        self.cross_attn, self.causal, self.layer_idx = cross_attn, causal, layer_idx
        self.rotary_emb_dim, self.return_residual, self.checkpointing = rotary_emb_dim, return_residual, checkpointing
        self.use_flash_attn = use_flash_attn
        slopes = torch.tensor(get_alibi_slopes(num_heads), device=device) if use_alibi else None
        settings: dict[str, Any] = {"causal": causal, "softmax_scale": softmax_scale, "attention_dropout": dropout}
        if use_flash_attn:
            settings.update(alibi_slopes=slopes, window_size=window_size)
        elif use_alibi or window_size != _ALL:
            raise AssertionError("ALiBi and local attention code path requires flash_attn")
        own, cross = (FlashSelfAttention, FlashCrossAttention) if use_flash_attn else (SelfAttention, CrossAttention)
        self.inner_attn, self.inner_cross_attn = own(**settings), cross(**settings)
        if rotary_emb_dim:
            assert not cross_attn, "MHA with rotary embedding does not support cross-attention yet"
            self.rotary_emb = RotaryEmbedding(
                rotary_emb_dim, rotary_emb_base, rotary_emb_interleaved, rotary_emb_scale_base, device=device
            )
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        kv_dim = 2 * self.head_dim * of_keys
        if cross_attn:
            self.Wq = nn.Linear(embed_dim, embed_dim, bias=qkv_proj_bias, **made)
            self.Wkv = nn.Linear(embed_dim, kv_dim, bias=qkv_proj_bias, **made)
        else:
            self.Wqkv = nn.Linear(embed_dim, embed_dim + kv_dim, bias=qkv_proj_bias, **made)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=out_proj_bias, **made)

    def forward(
        self, x: Tensor, x_kv: Tensor | None = None, key_padding_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None, max_seqlen: int | None = None, mixer_subset: object = None,
        inference_params: object = None, **kwargs: object,
    ) -> Any:  # fmt: skip
        """``x``: ``[batch, length, size]``, or ``[all, size]`` of sequences that end at ``cu_seqlens``."""
        for name, value in (("mixer_subset", mixer_subset), ("inference_params", inference_params)):
            if value is not None:
                raise NotImplementedError(f"the stand-in for flash_attn.modules.mha.MHA has no {name}")
        told: dict[str, Any] = (
            {"cu_seqlens": cu_seqlens, "max_seqlen": max_seqlen, **kwargs} if self.use_flash_attn
            else {"key_padding_mask": key_padding_mask, **kwargs}
        )  # fmt: skip
        heads, of_keys = self.num_heads, self.num_heads_kv
        if self.cross_attn:
            q = self.Wq(x).unflatten(-1, (heads, self.head_dim))
            kv = self.Wkv(x if x_kv is None else x_kv).unflatten(-1, (2, of_keys, self.head_dim))
            found = self._inner(self.inner_cross_attn, q, kv, **told)
        elif heads == of_keys:
            qkv = self.Wqkv(x).unflatten(-1, (3, heads, self.head_dim))
            if self.rotary_emb_dim:
                qkv = self.rotary_emb(qkv, max_seqlen=max_seqlen)
            found = self._inner(self.inner_attn, qkv, **told)
        else:
            both = self.Wqkv(x)
            q = both[..., : self.embed_dim].unflatten(-1, (heads, self.head_dim))
            kv = both[..., self.embed_dim :].unflatten(-1, (2, of_keys, self.head_dim))
            if self.rotary_emb_dim:
                q, kv = self.rotary_emb(q, kv, max_seqlen=max_seqlen)
            if self.use_flash_attn:
                told.update(cu_seqlens_k=cu_seqlens, max_seqlen_k=max_seqlen)
            found = self._inner(self.inner_cross_attn, q, kv, **told)
        out = self.out_proj(found.flatten(-2))
        return (out, x) if self.return_residual else out

    def _inner(self, layer: nn.Module, *operands: Tensor, **told: Any) -> Any:
        if not self.checkpointing:
            return layer(*operands, **told)
        return checkpoint(layer, *operands, use_reentrant=False, **told)
