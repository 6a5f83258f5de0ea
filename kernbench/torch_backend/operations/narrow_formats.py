"""Formats that CUDA has kernels for and a CPU has none: computed in a wider one, and rounded once.

Complex numbers of 16 bits, 16-bit floats and booleans of the operators that are listed here: what ``dtypesIfCUDA`` of torch's
own samples of operators has, and ``dtypes`` has not.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import torch

from kernbench.simulation.memory.tensor_queries import listed_tensors
from kernbench.torch_backend.gpu.tensors.placement import block_of
from kernbench.torch_backend.operations.operators import TorchOperator

_COMPLEX, _HALF, _BRAIN, _BOOL = torch.complex32, torch.float16, torch.bfloat16, torch.bool
_WIDE = {_COMPLEX: torch.complex64, _HALF: torch.float32, _BRAIN: torch.float32, _BOOL: torch.uint8}
_REAL = {_COMPLEX: _HALF}

_TAKEN: dict[str, Collection[torch.dtype]] = {
    **dict.fromkeys(
        (
            "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "div", "exp", "log", "logaddexp", "pow", "sin",
            "sinh", "tan", "tanh", "rsqrt", "sqrt", "lerp", "angle", "sigmoid", "prod", "sum", "sigmoid_backward",
            "tanh_backward", "mul", "reciprocal", "mm", "bmm", "addmm", "baddbmm", "dot", "nansum", "linalg_vector_norm", "sgn",
            "cumsum", "cumprod", "trace", "convolution",
        ),
        (_COMPLEX,),
    ),
    "abs": (_BOOL,),
    "avg_pool3d": (_HALF, _BRAIN),
    "avg_pool3d_backward": (_HALF, _BRAIN),
    "_upsample_bilinear2d_aa": (_HALF, _BRAIN),
    "multi_margin_loss": (_HALF, _BRAIN),
    "multi_margin_loss_backward": (_HALF, _BRAIN),
    "multilabel_margin_loss_forward": (_HALF, _BRAIN),
    "multilabel_margin_loss_backward": (_HALF, _BRAIN),
    "rrelu_with_noise": (_HALF,),
    "rrelu_with_noise_backward": (_HALF,),
    "polygamma": (_HALF,),
    "round": (_HALF,),
}  # fmt: skip
"""By operator, without the underscore of those that write their first argument: formats that a GPU takes."""

_NO_KERNEL = re.compile(
    r"not implemented for|Unsupported dtype|doesn't support tensors of type|does not support complex"
)

NOTHING: object = object()
"""There is no wider format to compute it in."""


def again(operator: TorchOperator, args: Any, kwargs: Any, error: Exception) -> Any:
    """The result of a call for which the CPU has no kernel, computed in a wider format.

    :data:`NOTHING` if no GPU has one either.
    """
    formats = _TAKEN.get(operator.name.rstrip("_"))
    given = listed_tensors((*args, *kwargs.values()))
    if formats is None or not _NO_KERNEL.search(str(error)) or all(block_of(each) is None for each in given):
        return NOTHING
    narrow = next((each.dtype for each in given if each.dtype in formats), None)
    if operator.name == "nansum" and given[0].is_complex():
        return _sum_of_numbers(*args, **kwargs)
    if narrow is None:
        return NOTHING
    written = operator.written(args, kwargs)
    wide = {id(each): each.to(_WIDE.get(each.dtype, each.dtype)) for each in given}
    result = operator.call(*(_widened(each, wide) for each in args), **{
        name: _widened(value, wide) for name, value in kwargs.items()
    })  # fmt: skip
    for each in written:
        each.copy_(wide[id(each)])
    if operator.returns_written:
        return written[0] if len(written) == 1 else tuple(written)
    return _narrowed(result, narrow, kwargs.get("dtype"))


def _widened(value: Any, wide: dict[int, torch.Tensor]) -> Any:
    if isinstance(value, list | tuple):
        return type(value)([_widened(each, wide) for each in value])
    if isinstance(value, torch.dtype):
        return _WIDE.get(value, value)
    return wide[id(value)] if isinstance(value, torch.Tensor) else value


def _narrowed(result: Any, narrow: torch.dtype, wanted: torch.dtype | None) -> Any:
    if isinstance(result, list | tuple):
        return type(result)([_narrowed(each, narrow, wanted) for each in result])
    if not isinstance(result, torch.Tensor):
        return result
    if wanted is not None:
        return result.to(wanted)
    if result.dtype is torch.complex64:
        return result.to(_COMPLEX)
    if result.dtype is _WIDE[narrow] or (narrow in _REAL and result.dtype is torch.float32):
        return result.to(_REAL.get(narrow, narrow) if not result.is_complex() else narrow)
    return result


def _sum_of_numbers(values: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
    """``nansum`` of complex numbers, of which a CPU has none."""
    wide = values.to(_WIDE.get(values.dtype, values.dtype))
    wanted = kwargs.pop("dtype", None) or values.dtype
    return torch.ops.aten.sum.dim_IntList(torch.where(wide.isnan(), 0, wide), *(args or (None,)), **kwargs).to(wanted)
