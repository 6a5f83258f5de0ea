"""Tensors in address space that is only reserved."""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import torch

_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


def reserved_zeros(dtype: torch.dtype, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    """Zeros, of more bytes than the host would promise at once, as long as few of them are touched."""
    if 0 in size:
        return torch.empty_strided(size, stride, dtype=dtype)
    elements = 1 + sum((each - 1) * step for each, step in zip(size, stride, strict=True))
    room = mmap.mmap(-1, elements * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)
    return torch.frombuffer(room, dtype=torch.uint8).view(dtype).as_strided(size, stride)
