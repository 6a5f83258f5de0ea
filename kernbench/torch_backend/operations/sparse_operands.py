"""Sparse tensors as operands: time and FLOPs go by the elements that they have, not by their sizes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from kernbench.cost.op_estimates import is_matrix_operation
from kernbench.torch_backend.gpu.tensors.placement import components_of

_STRIDED = torch.strided
_ADDED = {"add_": "index_add_", "sub_": "index_add_", "add": "index_add", "sub": "index_add"}
"""What a sum of a dense tensor and a sparse one is like: elements are added where they belong."""
_PRODUCTS = ("_sparse_mm", "_sparse_addmm", "_sparse_sparse_matmul", "sparse_sampled_addmm")


def as_components(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors with indices and values in the place of each sparse one."""
    return [part for each in tensors for part in components_of(each) or (each,)]


def multiplies_sparse(name: str) -> bool:
    """Whether an operator with sparse operands is a product."""
    return is_matrix_operation(name) or name in _PRODUCTS


def like_dense(name: str, inputs: Sequence[torch.Tensor]) -> str:
    """The operator of dense tensors that one with sparse operands takes as long as."""
    if multiplies_sparse(name):
        return "_sparse_mm"
    return _ADDED.get(name, name) if inputs and inputs[0].layout is _STRIDED else name


def sparse_flops(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> int:
    """Of a product whose operands have been taken apart: two for each value and column of the result."""
    follows = itertools.pairwise(inputs)  # values behind their indices
    values = next((each.numel() for places, each in follows if places.dtype is torch.int64), 0)
    columns = outputs[0].shape[-1] if outputs and outputs[0].dim() > 1 else 1
    return 2 * values * columns
