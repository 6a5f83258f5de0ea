"""Products with weights that only a GPU packs: four bits to an element, and two of every four elements kept.

How a GPU lays such a weight out is its own business, and programs hand it on as it is. Shapes, formats and sizes here are
those of torch's kernels; within a packed weight elements lie in their plain order, but for CUTLASS' two of four, whose layout
torch's own Python knows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.sparse import _semi_structured_conversions as conversions

from kernbench.torch_backend.kernel_registrations import replace_kernels
from kernbench.torch_backend.relies_on import Reliance

_SIXTEENTHS = {torch.int8: 10, torch.float8_e4m3fn: 10, torch.float16: 9, torch.bfloat16: 9, torch.float32: 9}
"""How large cuSPARSELt's compressed matrix is, values and where they were, in sixteenths of the dense one, by format."""

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"none": lambda x: x, "relu": F.relu, "silu": F.silu}


# -- four bits ---------------------------------------------------------------------------------------------------------


def pack_four_bits(weight: Tensor, tiles: int) -> Tensor:
    """``weight``: ``[N, K / 2]`` of bytes, the first of two elements in the upper half. Gives
    ``[N / 8, K / (16 tiles), 32, tiles / 2]`` of int32. Raises RuntimeError for other sizes."""
    if weight.dim() != 2 or weight.dtype is not torch.uint8:
        raise RuntimeError("expect in to be 2D tensor of uint8")
    if tiles not in (2, 4, 8):
        raise RuntimeError(f"innerKTiles is 2, 4 or 8, not {tiles}")
    n, k = weight.size(0), 2 * weight.size(1)
    if n % 8 or k % (16 * tiles):
        raise RuntimeError(f"a weight of {n} x {k} is no whole number of tiles of 8 x {16 * tiles}")
    return weight.contiguous().view(torch.int32).view(n // 8, k // (16 * tiles), 32, tiles // 2).clone()


def multiply_four_bits(x: Tensor, packed: Tensor, group: int, scales_and_zeros: Tensor) -> Tensor:
    """``x [M, K]`` and ``N`` rows of four bits: ``(element - 8) scale + zero`` in the format of ``x``, scale and zero
    (``[K / group, N, 2]``) for each ``group`` elements of a row. Gives ``[M, N]``."""
    n, k = 8 * packed.size(0), x.size(1)
    pairs = packed.contiguous().view(torch.uint8).view(n, k // 2)
    elements = torch.stack((pairs >> 4, pairs & 15), dim=-1).view(n, k).to(x.dtype) - 8
    scale, zero = (each.t().repeat_interleave(group, dim=1) for each in scales_and_zeros.unbind(-1))
    return _accumulated(x, (elements * scale + zero).t()).to(x.dtype)


# -- two of four -------------------------------------------------------------------------------------------------------


def compress(dense: Tensor) -> Tensor:
    """``dense [M, K]``, of which two of every four elements of a row are zeros: what is left, and where it was, in one row.

    Of a group with more than two others the first two are kept. Raises RuntimeError for other formats and sizes."""
    if dense.dtype not in _SIXTEENTHS or dense.dim() != 2 or dense.size(1) % 4:
        raise RuntimeError(
            f"_cslt_compress takes a matrix of whole groups of 4, not {dense.dtype} of {list(dense.shape)}"
        )
    made = dense.new_zeros(dense.numel() * _SIXTEENTHS[dense.dtype] // 16)
    if made.is_meta:
        return made
    groups = dense.contiguous().view(-1, 4)
    present = groups.to(torch.float32) != 0
    at = present.to(torch.int8).sort(dim=1, descending=True, stable=True).indices[:, :2].sort(dim=1).values
    bits = (at[:, 0] | at[:, 1] << 2).to(torch.uint8).view(-1, 2)
    values = groups.view(_WHOLE[dense.element_size()]).gather(1, at).flatten()
    made[: values.numel()] = values.view(dense.dtype)
    made[values.numel() :].view(torch.uint8)[: len(bits)] = bits[:, 0] | bits[:, 1] << 4
    return made


_WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32}
"""Integers as wide as an element: what every format can be moved as."""


def _elements(compressed: Tensor) -> int:
    """How many the dense matrix has."""
    return compressed.numel() * 16 // _SIXTEENTHS[compressed.dtype]


def _expand(compressed: Tensor, k: int) -> Tensor:
    """The dense matrix ``[M, k]`` again."""
    size = _elements(compressed)
    whole = _WHOLE[compressed.element_size()]
    pairs = compressed[size // 2 :].view(torch.uint8)[: size // 8]
    bits = torch.stack((pairs & 15, pairs >> 4), dim=1).flatten().long()
    dense = torch.zeros(size // 4, 4, dtype=whole)
    dense.scatter_(1, torch.stack((bits & 3, bits >> 2), dim=1), compressed[: size // 2].view(whole).view(-1, 2))
    return dense.view(compressed.dtype).view(size // k, k)


def multiply_compressed(
    compressed: Tensor, dense: Tensor, bias: Tensor | None = None, alpha: Tensor | None = None,
    out_dtype: torch.dtype | None = None, transpose_result: bool = False, *choices: int,
) -> Tensor:  # fmt: skip
    """``alpha A B + bias``, ``bias`` one for each row of ``A``; ``choices`` choose cuSPARSELt's algorithm."""
    dtype = out_dtype or compressed.dtype
    found = _accumulated(_expand(compressed, dense.size(0)), dense)
    if alpha is not None:
        found = found * alpha
    if bias is not None:
        found = found + bias[:, None]
    found = found.to(dtype)
    return found.t().contiguous() if transpose_result else found


def _shape_of_product(
    compressed: Tensor, dense: Tensor, bias: Tensor | None = None, alpha: Tensor | None = None,
    out_dtype: torch.dtype | None = None, transpose_result: bool = False, *choices: int,
) -> Tensor:  # fmt: skip
    k, n = dense.shape
    m = _elements(compressed) // k
    return dense.new_empty((n, m) if transpose_result else (m, n), dtype=out_dtype or compressed.dtype)


def chosen_algorithm(*args: Any) -> int:
    """The first of cuSPARSELt's: here all take the same time."""
    return 0


def multiply_sparse(left: Tensor, places: Tensor, right: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """CUTLASS': ``left [M, K / 2]`` and where its elements were, times ``right [K, N]``."""
    dense = conversions.sparse_semi_structured_to_dense_cutlass(left, places)
    return _accumulated(dense, right).to(out_dtype or _format_of_sums(left))


def multiply_sparse_and_add(
    bias: Tensor, left: Tensor, places: Tensor, right: Tensor, *, alpha: float = 1, beta: float = 1,
    out_dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    """``alpha left right + beta bias``, ``bias [M]``."""
    dense = conversions.sparse_semi_structured_to_dense_cutlass(left, places)
    found = alpha * _accumulated(dense, right) + beta * bias[:, None]
    return found.to(out_dtype or _format_of_sums(left))


def linear_of_sparse(
    x: Tensor, weight: Tensor, places: Tensor, *, bias: Tensor | None = None, activation: str | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    """``x [..., K]`` and a weight ``[N, K / 2]``. Raises RuntimeError for another activation than ``none``, ``relu`` and
    ``silu``."""
    if (activation or "none") not in _ACTIVATIONS:
        raise RuntimeError(f"_sparse_semi_structured_linear: Activation must be one of {list(_ACTIVATIONS)}")
    found = _accumulated(x, conversions.sparse_semi_structured_to_dense_cutlass(weight, places).t())
    if bias is not None:
        found = found + bias
    return _ACTIVATIONS[activation or "none"](found).to(out_dtype or x.dtype)


def _accumulated(left: Tensor, right: Tensor) -> Tensor:
    """Their product as tensor cores add it up: in int32, or fp32."""
    wide = torch.int32 if left.dtype is torch.int8 else torch.float32
    return left.to(wide) @ right.to(wide)


def _format_of_sums(left: Tensor) -> torch.dtype:
    return torch.int32 if left.dtype is torch.int8 else left.dtype


_KERNELS: dict[str, Callable[..., Any]] = {
    "_convert_weight_to_int4pack": pack_four_bits,
    "_weight_int4pack_mm": multiply_four_bits,
    "_cslt_compress": compress,
    "_cslt_sparse_mm": multiply_compressed,
    "_cslt_sparse_mm_search": chosen_algorithm,
    "_sparse_semi_structured_mm": multiply_sparse,
    "_sparse_semi_structured_addmm": multiply_sparse_and_add,
    "_sparse_semi_structured_linear": linear_of_sparse,
}
"""By the operator's name, what it computes."""

RELIES_ON = (
    *(Reliance(f"torch.ops.aten.{name}.default", "torch has it for GPUs alone", has=("_schema",)) for name in _KERNELS),
    Reliance("torch.sparse._semi_structured_conversions.sparse_semi_structured_to_dense_cutlass", "CUTLASS' layout",
             parameters=("sparse", "meta_reordered")),
)  # fmt: skip


def register(library: Any) -> None:
    """Give the CPU their kernels; ``library``: of ``aten``, for the key ``CPU``."""
    for name, kernel in _KERNELS.items():
        library.impl(name, kernel)


def register_shapes(library: Any) -> None:
    """Say what those give that torch has no shapes of; ``library``: of ``aten``, for the key ``Meta``."""
    library.impl("_cslt_compress", compress)
    library.impl("_cslt_sparse_mm_search", chosen_algorithm)
    replace_kernels(library, {"_cslt_sparse_mm": _shape_of_product})  # torch's takes the row for a matrix
