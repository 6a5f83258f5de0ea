"""Sparse tensors in a simulation without data: their indices and values are hollow tensors, as many as were given.

What is not known is taken to be as many elements as can be: no two indices are equal (``coalesce``), no value is zero
(``to_sparse``). A result is sparse if all operands with dimensions are, or if it is a product by element; it has the elements
of the first, of a sum of sparse tensors those of all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernbench.errors import KernbenchError
from kernbench.simulation.memory.tensor_queries import listed_tensors
from kernbench.torch_backend.gpu.tensors.placement import components_of, is_sparse
from kernbench.torch_backend.hollow.shapes import Described, described
from kernbench.torch_backend.relies_on import Reliance

Tensor = torch.Tensor
Fresh = Callable[[Described], Tensor]

RELIES_ON = (
    Reliance("torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors.default",
             "it makes a sparse tensor of indices and values, and looks at neither", has=("_schema",)),
)  # fmt: skip

_BY_ELEMENT = ("mul", "mul_", "div", "div_")
_TOGETHER = ("add", "add_", "sub", "sub_")
_BAGS = "_embedding_bag_backward"
NO_EQUAL_INDICES = "sparse tensors without data have no two equal indices and no zeros among their values"


def makes_sparse(name: str, args: Any) -> bool:
    """Whether an operator makes a sparse tensor of dense ones."""
    return name == "_to_sparse" or (name == _BAGS and bool(args[9]))


def answered(name: str, func: Any, args: Any, kwargs: Any, fresh: Fresh) -> Any:
    """What an operator that writes to nothing gives of operands that are not known, of which one is sparse, or that makes one.

    Args:
        fresh: makes a hollow tensor.

    Raises KernbenchError where that depends on values.
    """
    given = [each for each in listed_tensors((*args, *kwargs.values())) if each.dim()]
    sparse = [each for each in given if is_sparse(each)]
    odd = next((each.layout for each in sparse if each.layout is not torch.sparse_coo), None)
    if odd is not None or name == "_sparse_sparse_matmul":
        raise KernbenchError(
            f"{name}: what it gives of sparse tensors{f' of layout {odd}' if odd else ''} depends on their values, and there "
            "is no data: use torch.sparse_coo with an operator that keeps its elements, or run with data"
        )
    if name == "_to_sparse":
        return _made(args[0].shape, args[0].dim(), args[0].numel(), args[0].dtype, (), fresh, coalesced=True)
    if name == _BAGS:  # gradient, indices, ..., rows of the table at 6
        gradient, indices = args[:2]
        width = gradient.shape[-1]
        return _made((args[6], width), 1, indices.numel(), gradient.dtype, (width,), fresh, coalesced=False)
    if name in ("_to_dense", "to_dense"):
        return fresh(_packed(args[0].shape, kwargs.get("dtype") or args[0].dtype))
    if name == "sparse_mask":
        return _like(args[1], args[1]._nnz(), args[0].dtype, fresh)
    if name == "_coalesce":
        return _like(args[0], args[0]._nnz(), args[0].dtype, fresh, coalesced=True)
    what = described(func, _strided(args), _strided(kwargs))
    first = sparse[0]
    if (
        type(what) is Described
        and what.size == tuple(first.shape)
        and (len(sparse) == len(given) or name in _BY_ELEMENT)
    ):
        elements = sum(each._nnz() for each in sparse) if name in _TOGETHER else first._nnz()
        return _like(first, elements, what.dtype, fresh, coalesced=first.is_coalesced() and name not in _TOGETHER)
    return _each(what, fresh)


def _each(what: Any, fresh: Fresh) -> Any:
    if type(what) is Described:
        return fresh(what)
    return type(what)(_each(each, fresh) for each in what) if isinstance(what, list | tuple) else what


def _strided(value: Any) -> Any:
    """Arguments as a meta kernel of dense tensors takes them."""
    if isinstance(value, Tensor):
        return torch.empty(value.shape, dtype=value.dtype, device="meta") if is_sparse(value) else value
    if isinstance(value, list | tuple):
        return type(value)(map(_strided, value))
    return {name: _strided(each) for name, each in value.items()} if isinstance(value, dict) else value


def _packed(size: Any, dtype: torch.dtype) -> Described:
    shape = tuple(map(int, size))
    return Described(shape, tuple(torch.empty(shape, device="meta").stride()), dtype)


def _like(tensor: Tensor, elements: int, dtype: torch.dtype, fresh: Fresh, *, coalesced: bool | None = None) -> Tensor:
    """A sparse tensor of so many elements that lies as another one does."""
    _, values = components_of(tensor)
    known = tensor.is_coalesced() if coalesced is None else coalesced
    return _made(tensor.shape, tensor.sparse_dim(), elements, dtype, values.shape[1:], fresh, coalesced=known)


def _made(
    size: Any, sparse_dim: int, elements: int, dtype: torch.dtype, rest: Any, fresh: Fresh, *, coalesced: bool
) -> Tensor:
    indices = fresh(_packed((sparse_dim, elements), torch.int64))
    values = fresh(_packed((elements, *rest), dtype))
    made: Tensor = torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors(
        sparse_dim, len(rest), list(size), indices, values, dtype=dtype, layout=torch.sparse_coo, is_coalesced=coalesced
    )
    return made
