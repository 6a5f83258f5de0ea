"""Numbers in eight bits with their scales, and what layouts ask for."""

from __future__ import annotations

import torch

from .layout import (
    get_col_major_tma_aligned_tensor,
    get_k_alignment_for_contiguous_layout,
    get_m_alignment_for_contiguous_layout,
    get_mk_alignment_for_contiguous_layout,
    get_mn_major_tma_aligned_tensor,
    get_tma_aligned_size,
    set_mk_alignment_for_contiguous_layout,
)  # fmt: skip

__all__ = [
    "align", "ceil_div", "ceil_to_ue8m0", "get_col_major_tma_aligned_tensor", "get_k_alignment_for_contiguous_layout",
    "get_m_alignment_for_contiguous_layout", "get_mk_alignment_for_contiguous_layout", "get_mn_major_tma_aligned_tensor",
    "get_tma_aligned_size", "per_block_cast_to_fp8", "per_token_cast_to_fp8", "set_mk_alignment_for_contiguous_layout",
]  # fmt: skip

Tensor = torch.Tensor

_LARGEST = 448.0
"""Of e4m3."""


def ceil_div(x: int, y: int) -> int:
    """``x / y``, up."""
    return -(-x // y)


def align(x: int, y: int) -> int:
    """The least multiple of ``y`` that is not less than ``x``."""
    return ceil_div(x, y) * y


def ceil_to_ue8m0(x: Tensor) -> Tensor:
    """The least powers of two that are not less."""
    return torch.exp2(torch.ceil(torch.log2(x.abs().float())))


def _scales(largest: Tensor, use_ue8m0: bool) -> Tensor:
    scales = largest.float().clamp(min=1e-4) / _LARGEST
    return ceil_to_ue8m0(scales) if use_ue8m0 else scales


def per_token_cast_to_fp8(x: Tensor, use_ue8m0: bool, gran_k: int = 128) -> tuple[Tensor, Tensor]:
    """``[m, n]`` with a scale for each ``gran_k`` numbers of a row: ``[m, n / gran_k]``."""
    rows, width = x.shape
    parts = torch.nn.functional.pad(x, (0, -width % gran_k)).view(rows, -1, gran_k)
    scales = _scales(parts.abs().amax(-1), use_ue8m0)
    return (parts.float() / scales[..., None]).to(torch.float8_e4m3fn).view(rows, -1)[:, :width].contiguous(), scales


def per_block_cast_to_fp8(x: Tensor, use_ue8m0: bool, gran_k: int = 128) -> tuple[Tensor, Tensor]:
    """``[m, n]`` with a scale for each square of ``gran_k``: ``[m / gran_k, n / gran_k]``."""
    rows, width = x.shape
    whole = torch.nn.functional.pad(x, (0, -width % gran_k, 0, -rows % gran_k))
    parts = whole.view(whole.shape[0] // gran_k, gran_k, -1, gran_k)
    scales = _scales(parts.abs().amax((1, 3)), use_ue8m0)
    stored = (parts.float() / scales[:, None, :, None]).to(torch.float8_e4m3fn)
    return stored.view(whole.shape)[:rows, :width].contiguous(), scales
