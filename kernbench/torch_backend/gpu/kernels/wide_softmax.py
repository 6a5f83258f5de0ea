"""A softmax of ``float16`` that gives ``float32``, and its gradient, which is ``float16`` again: each is one kernel on a GPU.

torch's kernels for the CPU refuse what those for CUDA take (``half_to_float``; an ``input_dtype`` that the gradient that comes
back has not). A tensor of 32 bits of the input's size never exists on a GPU, neither forward nor backward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernbench.torch_backend.relies_on import Reliance

FORWARD = ("_softmax", "_log_softmax")
"""Operators whose third argument is whether the result has 32 bits."""
_GRADIENTS = ("_softmax_backward_data", "_log_softmax_backward_data")


def _ends_with(last: str) -> Callable[[Any], bool]:
    return lambda op: op._schema.arguments[-1].name == last


RELIES_ON = tuple(
    Reliance(
        f"torch.ops.aten.{name}.default",
        "its last argument says that dtypes differ",
        has=("_op",),
        holds=_ends_with(last),
    )
    for names, last in ((FORWARD, "half_to_float"), (_GRADIENTS, "input_dtype"))
    for name in names
)


def _forward(stock: Any) -> Callable[..., Any]:
    def softmax(tensor: torch.Tensor, dim: int, half_to_float: bool, **kwargs: object) -> Any:
        return stock(tensor.float() if half_to_float else tensor, dim, False, **kwargs)

    return softmax


def _gradient(stock: Any) -> Callable[..., Any]:
    def gradient(grad: torch.Tensor, output: torch.Tensor, dim: int, input_dtype: torch.dtype, **kwargs: object) -> Any:
        if input_dtype is grad.dtype:
            return stock(grad, output, dim, input_dtype, **kwargs)
        return stock(grad, output, dim, grad.dtype, **kwargs).to(input_dtype)

    return gradient


KERNELS: dict[str, Callable[..., object]] = {
    **{f"aten::{name}": _forward(getattr(torch.ops.aten, name).default._op) for name in FORWARD},
    **{f"aten::{name}": _gradient(getattr(torch.ops.aten, name).default._op) for name in _GRADIENTS},
}
