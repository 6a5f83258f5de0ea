"""What CUDA's kernels that sum over symmetric memory take: two formats, at addresses and of sizes in whole words of 32 bits
(``torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemoryOps.cu``). The rest is refused in their words.
"""

from __future__ import annotations

import torch

from kernbench.torch_backend.gpu.kernels.refused_types import LETTERS

_FORMATS = (torch.float32, torch.bfloat16)
_WORD = 4


def require_summable(name: str, tensor: torch.Tensor, kernel: str = "") -> None:
    """Raise what torch raises of a tensor that the ``kernel`` (default: that of the same name) behind an operation refuses."""
    if not tensor.numel():
        return
    size = tensor.element_size()
    least = max(_WORD, size)
    for what, nbytes in (("ptr + offset", tensor.storage_offset() * size), ("size", tensor.numel() * size)):
        if nbytes % least:
            raise RuntimeError(
                f"{name}<{LETTERS[tensor.dtype]}>: input {what} must be at least {least}-byte aligned: it is {nbytes} bytes"
            )
    if tensor.dtype not in _FORMATS:
        raise NotImplementedError(f"\"{kernel or name}\" not implemented for '{LETTERS[tensor.dtype]}'")
