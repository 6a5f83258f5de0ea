"""Nested tensors of C++ (``torch.nested``, layout ``torch.strided``), which have no shape: to be priced they stand as matrices.

Those of Python (layout ``torch.jagged``) consist of tensors that have one.
"""

from __future__ import annotations

from typing import Any

import torch

from kernbench.simulation.memory.tensor_queries import storage_of
from kernbench.torch_backend.gpu.tensors.placement import PLAIN


def is_nested(value: Any) -> bool:
    """Whether it is one."""
    return type(value) in PLAIN and value.is_nested


def is_view(result: object, of: object) -> bool:
    """Whether what an operation gives is in the memory of a tensor that it was given."""
    [made, *_] = result if isinstance(result, list | tuple) else (result,)
    return isinstance(of, torch.Tensor) and storage_of(made).data_ptr() == storage_of(of).data_ptr()


def as_rows(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors with a matrix in the place of each nested one: a row for each of its innermost ones."""
    return [_matrix_of(each) if is_nested(each) else each for each in tensors]


def _matrix_of(nested: torch.Tensor) -> torch.Tensor:
    try:
        width = max(nested.size(-1), 1)
    except RuntimeError:  # rows of several widths
        width = 1
    shape = nested.numel() // width, width
    return torch.empty(0, dtype=nested.dtype).set_(nested.untyped_storage(), 0, shape, (width, 1))
