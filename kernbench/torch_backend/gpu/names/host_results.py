"""Functions of torch whose C++ makes their result where it thinks the operands are: to it, a GPU's are on the host."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernbench.torch_backend.gpu.tensors.placement import block_of, place
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

RELIES_ON = (
    Reliance("torch._C._nn.pad", "padding of every mode is this", looked_up_by=("torch.nn.functional.pad",)),
    Reliance("torch.linalg.matrix_rank", "it counts into a tensor of its own"),
)


def install(patches: Patches) -> None:
    """Have their results on the GPU."""
    patches.set(torch._C._nn, "pad", _pads(torch._C._nn.pad))
    patches.set(torch.linalg, "matrix_rank", _beside(torch.linalg.matrix_rank))


def _pads(stock: Callable[..., object]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def padded(input: torch.Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> object:
        if mode != "circular" or block_of(input) is None:
            return stock(input, pad, mode, value)
        stock(torch.empty_like(input, device="meta"), pad, mode, value)  # raises what is wrong
        return _around(input, pad)

    return padded


def _around(tensor: torch.Tensor, pad: Sequence[int]) -> torch.Tensor:
    """Circular padding, as copies of the parts: ``pad`` gives two numbers for each dimension, the last one first."""
    for at in range(len(pad) // 2):
        before, after, dim = pad[2 * at], pad[2 * at + 1], tensor.dim() - 1 - at
        size = tensor.shape[dim]
        kept = tensor.narrow(dim, max(-before, 0), size + min(before, 0) + min(after, 0))
        parts = [
            *([tensor.narrow(dim, size - before + min(after, 0), before)] if before > 0 else []),
            kept,
            *([tensor.narrow(dim, max(-before, 0), after)] if after > 0 else []),
        ]
        tensor = torch.cat(parts, dim)
    return tensor


def _beside(stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def result(tensor: torch.Tensor, *args: object, **kwargs: object) -> Any:
        made = stock(tensor, *args, **kwargs)
        block = block_of(tensor)
        if block is not None and block_of(made) is None:
            place(made, block.memory)
        return made

    return result
