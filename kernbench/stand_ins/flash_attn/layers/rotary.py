"""The functions of ``flash_attn.layers.rotary``, and its layer. Su et al. 2021; with ``scale_base``, Sun et al. 2022 (xPos)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..ops.triton.rotary import apply_rotary

Tensor = torch.Tensor


def rotate_half(x: Tensor, interleaved: bool = False) -> Tensor:
    """Each pair ``(a, b)`` becomes ``(-b, a)``."""
    if interleaved:
        return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), -1)


def apply_rotary_emb_torch(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """The definition in plain torch, in the format of ``x``."""
    rotated = 2 * cos.shape[-1]
    cos, sin = (
        (each.repeat_interleave(2, -1) if interleaved else torch.cat((each, each), -1))[..., None, :]
        for each in (cos, sin)
    )  # fmt: skip
    turned = x[..., :rotated]
    return torch.cat((turned * cos + rotate_half(turned, interleaved) * sin, x[..., rotated:]), -1)


def apply_rotary_emb(
    x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, inplace: bool = False,
    seqlen_offsets: int | Tensor = 0, cu_seqlens: Tensor | None = None, max_seqlen: int | None = None,
) -> Tensor:  # fmt: skip
    """``x`` ``[batch, length, heads, size]``, or ``[all, heads, size]`` with ``cu_seqlens``, turned by its positions."""
    return apply_rotary(x, cos, sin, seqlen_offsets, cu_seqlens, max_seqlen, interleaved, inplace)


apply_rotary_emb_func = apply_rotary_emb


def apply_rotary_emb_qkv_(
    qkv: Tensor, cos: Tensor, sin: Tensor, cos_k: Tensor | None = None, sin_k: Tensor | None = None,
    interleaved: bool = False, seqlen_offsets: int | Tensor = 0, num_heads_q: int | None = None,
) -> Tensor:  # fmt: skip
    """Queries and keys are turned in place.

    Args:
        qkv: ``[batch, length, 3, heads, size]``, or, with ``num_heads_q``, ``[batch, length, all heads, size]``: those of the
            queries, then as many of keys as of values.
    """
    if qkv.dim() == 5:
        q, k = qkv[:, :, 0], qkv[:, :, 1]
    else:
        assert num_heads_q is not None, "num_heads_q is wanted where heads lie one after the other"
        q, k = qkv[:, :, :num_heads_q], qkv[:, :, num_heads_q : (num_heads_q + qkv.shape[2]) // 2]
    apply_rotary_emb(q, cos, sin, interleaved, True, seqlen_offsets)
    apply_rotary_emb(
        k, cos if cos_k is None else cos_k, sin if sin_k is None else sin_k, interleaved, True, seqlen_offsets
    )
    return qkv


def apply_rotary_emb_kv_(
    kv: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, seqlen_offsets: int | Tensor = 0
) -> Tensor:
    """The keys of ``[batch, length, 2, heads, size]`` are turned in place."""
    apply_rotary_emb(kv[:, :, 0], cos, sin, interleaved, True, seqlen_offsets)
    return kv


class RotaryEmbedding(nn.Module):
    """The layer, with its tables."""

    inv_freq: Tensor
    scale: Tensor | None

    def __init__(
        self, dim: int, base: float = 10000.0, interleaved: bool = False, scale_base: float | None = None,
        pos_idx_in_fp32: bool = True, device: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.dim, self.base, self.interleaved, self.scale_base = dim, float(base), interleaved, scale_base
        self.pos_idx_in_fp32 = pos_idx_in_fp32
        self.register_buffer("inv_freq", self._compute_inv_freq(device), persistent=False)
        steps = torch.arange(0, dim, 2, device=device, dtype=torch.float32)
        scale = None if scale_base is None else (steps + 0.4 * dim) / (1.4 * dim)
        self.register_buffer("scale", scale, persistent=False)
        self._seq_len_cached = 0
        self._cos_cached: Tensor | None = None
        self._sin_cached: Tensor | None = None
        self._cos_k_cached: Tensor | None = None
        self._sin_k_cached: Tensor | None = None

    def _compute_inv_freq(self, device: Any = None) -> Tensor:
        steps = torch.arange(0, self.dim, 2, device=device, dtype=torch.float32)
        return 1.0 / self.base ** (steps / self.dim)

    def _update_cos_sin_cache(self, seqlen: int, device: Any = None, dtype: torch.dtype | None = None) -> None:
        cached = self._cos_cached
        if (
            cached is not None and seqlen <= self._seq_len_cached and (cached.device, cached.dtype) == (device, dtype)
            and not (self.training and cached.is_inference())
        ):  # fmt: skip
            return
        self._seq_len_cached = seqlen
        exact = self.pos_idx_in_fp32
        inverse = self.inv_freq if self.inv_freq.dtype == torch.float32 or not exact else self._compute_inv_freq(device)
        at = torch.arange(seqlen, device=device, dtype=torch.float32 if exact else self.inv_freq.dtype)
        angles = torch.outer(at, inverse)
        cos, sin = angles.cos(), angles.sin()
        if self.scale is not None and self.scale_base is not None:
            power = (at - seqlen // 2) / self.scale_base
            scale = self.scale.to(device=power.device) ** power[:, None]
            self._cos_k_cached, self._sin_k_cached = (cos / scale).to(dtype), (sin / scale).to(dtype)
            cos, sin = cos * scale, sin * scale
        self._cos_cached, self._sin_cached = cos.to(dtype), sin.to(dtype)

    def forward(
        self, qkv: Tensor, kv: Tensor | None = None, seqlen_offset: int | Tensor = 0, max_seqlen: int | None = None,
        num_heads_q: int | None = None,
    ) -> Any:  # fmt: skip
        """``qkv`` turned in place; with ``kv``, queries ``[batch, length, heads, size]`` and both."""
        length = max_seqlen
        if length is None and isinstance(seqlen_offset, int):
            length = qkv.shape[1] + seqlen_offset
        if length is not None:
            self._update_cos_sin_cache(length, qkv.device, qkv.dtype)
        cos, sin = self._cos_cached, self._sin_cached
        assert cos is not None, "max_seqlen is wanted where offsets are a tensor"
        assert sin is not None
        if kv is None:
            return apply_rotary_emb_qkv_(
                qkv, cos, sin, self._cos_k_cached, self._sin_k_cached, self.interleaved, seqlen_offset, num_heads_q
            )
        q = apply_rotary_emb(qkv, cos, sin, self.interleaved, True, seqlen_offset)
        of_keys = (cos, sin) if self._cos_k_cached is None else (self._cos_k_cached, self._sin_k_cached)
        return q, apply_rotary_emb_kv_(kv, *of_keys, self.interleaved, seqlen_offset)  # type: ignore[arg-type]
