"""Floats cast to whole numbers of 32 and 64 bits: a GPU gives the nearest number there is, this CPU the least one.

``cvt.rzi`` of the PTX instruction set saturates. Of what is no number it makes 0 where neither side has 64 bits, else the least
number (PTX ISA, "cvt", and as told of at pytorch 154724, 154726 and 180159). A cast is made where its source is. What 8 and 16
bits get is left as the CPU has it: torch promises nothing, and compilers differ (pytorch 191025).
"""

from __future__ import annotations

from typing import Any, TypeGuard

import torch

from kernbench.torch_backend.gpu.tensors.placement import block_of
from kernbench.torch_backend.relies_on import Reliance

_WHOLE = frozenset((torch.int32, torch.int64))

_to_copy, _copy = torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default

RELIES_ON = (
    Reliance("torch.ops.aten._to_copy.default", "a cast, whose type is named", has=("_op",),
             holds=lambda op: any(each.name == "dtype" and each.kwarg_only for each in op._schema.arguments)),
    Reliance("torch.ops.aten.copy_.default", "what is written comes first, and its source then", has=("_op",),
             holds=lambda op: [each.name for each in op._schema.arguments[:2]] == ["self", "src"]),
)  # fmt: skip


def _saturate(result: torch.Tensor, source: torch.Tensor) -> None:
    """Correct what the CPU's cast has given for numbers that are too large, and for those that are none."""
    known = torch.iinfo(result.dtype)
    wide = source if source.dtype in (torch.float32, torch.float64) else source.float()
    over, none = wide >= 2.0 ** (known.bits - 1), wide.isnan()
    if not (over | none).any():
        return
    of_none = known.min if known.bits == 64 or source.dtype is torch.float64 else 0
    result.masked_fill_(over.broadcast_to(result.shape), known.max)
    result.masked_fill_(none.broadcast_to(result.shape), of_none)


def _is_cast_by_gpu(source: torch.Tensor | complex, dtype: torch.dtype | None) -> TypeGuard[torch.Tensor]:
    """A number (``tensor.copy_(3)``) is the host's, and cast there."""
    return (
        dtype in _WHOLE
        and isinstance(source, torch.Tensor)
        and source.is_floating_point()
        and block_of(source) is not None
    )


def _cast(source: torch.Tensor | complex, *, dtype: torch.dtype | None = None, **kwargs: Any) -> Any:
    result = _to_copy._op(source, dtype=dtype, **kwargs)
    if _is_cast_by_gpu(source, dtype):
        _saturate(result, source)
    return result


def _copied(into: torch.Tensor, source: torch.Tensor | complex, non_blocking: bool = False) -> Any:
    result = _copy._op(into, source, non_blocking)
    if _is_cast_by_gpu(source, into.dtype):
        _saturate(into, source)
    return result


KERNELS = {_to_copy.name(): _cast, _copy.name(): _copied}
