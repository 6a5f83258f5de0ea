"""What layouts ask for."""

from __future__ import annotations

import torch

Tensor = torch.Tensor

_ALIGNMENT = [128]


def get_mk_alignment_for_contiguous_layout() -> int:
    """Rows that a group's are filled up to."""
    return _ALIGNMENT[0]


def set_mk_alignment_for_contiguous_layout(new_value: int) -> None:
    """See :func:`get_mk_alignment_for_contiguous_layout`."""
    _ALIGNMENT[0] = new_value


get_m_alignment_for_contiguous_layout = get_k_alignment_for_contiguous_layout = get_mk_alignment_for_contiguous_layout


def get_tma_aligned_size(x: int, element_size: int) -> int:
    """Elements up to a multiple of 16 bytes."""
    step = 16 // element_size
    return -(-x // step) * step


def get_mn_major_tma_aligned_tensor(sf: Tensor) -> Tensor:
    """Scales as they are: kernels here take any layout."""
    return sf


get_col_major_tma_aligned_tensor = get_mn_major_tma_aligned_tensor
