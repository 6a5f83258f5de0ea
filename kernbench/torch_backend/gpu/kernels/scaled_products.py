"""Products in eight bits that CUDA refuses and a CPU does not: refused here, too, in CUDA's words; and those with a scale for
each block of an operand, which CUDA has and a CPU has not.

Facts are those of ``aten/src/ATen/native/cuda/ScaledBlas.cpp`` of github.com/pytorch/pytorch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch

from kernbench.torch_backend.gpu.kernels.block_scales import (
    ALONG,
    BLOCK,
    FINE,
    SQUARE,
    kind_of,
    spread,
    up,
    values_of,
)
from kernbench.torch_backend.gpu.tensors.placement import block_of
from kernbench.torch_backend.relies_on import Reliance

RELIES_ON = (
    Reliance(
        "torch.ops.aten._scaled_mm.default", "products whose scales tell by their shapes what they are of",
        has=("_schema", "_op"),
        holds=lambda product: [each.name for each in product._schema.arguments][:7] == [
            "self", "mat2", "scale_a", "scale_b", "bias", "scale_result", "out_dtype",
        ],
    ),
    Reliance(
        "torch.ops.aten._scaled_mm_v2.default", "products with scales of any kind", has=("_schema", "_op"),
        holds=lambda product: [each.name for each in product._schema.arguments][:10] == [
            "self", "mat2", "scale_a", "recipe_a", "swizzle_a", "scale_b", "recipe_b", "swizzle_b", "bias", "out_dtype",
        ],
    ),
)  # fmt: skip

_SCALES_AT = 3  # the place of the second operand's scale among the arguments of `_scaled_mm`
_PADDED = 4  # blocks along the sum of those, of which there is a multiple
_WITH_BLOCKS = 90  # the compute capability that has products with scales of 128 elements
_WITH_FINE = 100  # the first that has those with scales of 16 and 32
_EIGHT = (torch.float8_e4m3fn, torch.float8_e5m2)
_STEP = 16  # elements that the sizes of operands are multiples of
_FEWEST_ROWS = 16  # of whole numbers in eight bits, and one more
_LAST_FIXED = 90  # compute capability up to which the engine takes operands in one layout only


def _scaled(arch: int, a: torch.Tensor, b: torch.Tensor) -> str:
    """Why ``a [M, K] @ b [K, N]`` with scales is refused on a GPU of compute capability ``arch``; empty if it is not."""
    if arch < 89:
        return (
            "torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or 8.9, or ROCm MI300+"
        )
    if a.dtype not in _EIGHT or b.dtype not in _EIGHT or a.dim() != 2 or b.dim() != 2:
        return ""
    if a.shape[1] % _STEP:
        return f"Expected trailing dimension of mat1 to be divisible by 16 but got mat1 shape: ({a.shape[0]}x{a.shape[1]})."
    if b.shape[0] % _STEP or b.shape[1] % _STEP:
        return f"mat2 shape ({b.shape[0]}x{b.shape[1]}) must be divisible by 16"
    if a.dtype == b.dtype == torch.float8_e5m2:
        return "Multiplication of two Float8_e5m2 matrices is not supported"
    if arch <= _LAST_FIXED and (not _by_rows(a) or not _by_rows(b.t())):
        return "Only multiplication of row-major and column-major matrices is supported by cuBLASLt"
    return ""


def _by_rows(matrix: torch.Tensor) -> bool:
    return matrix.numel() == 0 or (matrix.stride(1) == 1 and matrix.stride(0) >= matrix.shape[1])


def _require_blocks(arch: int, kinds: Collection[int | None]) -> None:
    """Raise what CUDA raises of a product with scales of blocks on a GPU of compute capability ``arch`` that has none such."""
    if not {ALONG, SQUARE}.isdisjoint(kinds) and arch != _WITH_BLOCKS:
        raise NotImplementedError("DeepSeek style (1x128, 128x128) scaling only supported in CUDA for SM90")
    if not FINE.keys().isdisjoint(kinds) and arch < _WITH_FINE:
        raise RuntimeError(
            "CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasLtMatmulAlgoGetHeuristic`: scales of 16 or 32 "
            f"elements need compute capability {_WITH_FINE / 10}, and this GPU has {arch / 10}"
        )


def _by_blocks(arch: int, args: Any) -> None:
    """Raise what CUDA raises of a product with scales of blocks, ``_scaled_mm_v2(*args)``, if it refuses it."""
    a, b, (scale_a, *_), (kind_a, *_), _, (scale_b, *_), (kind_b, *_), *_ = args
    _require_blocks(arch, (kind_a, kind_b))
    if not {kind_a, kind_b} <= {ALONG, SQUARE}:
        return
    if kind_a == kind_b == SQUARE:
        raise ValueError("Invalid scaling configuration: both operands have scales of blocks of 128 x 128")
    for name, scale, side, kind in (("a", scale_a, a.shape[0], kind_a), ("b", scale_b, b.shape[1], kind_b)):
        blocks = -(-a.shape[1] // BLOCK)
        rows, columns = (side, blocks) if kind == ALONG else (up(blocks, _PADDED), -(-side // BLOCK))
        if tuple(scale.shape) != (rows, columns) or scale.dtype is not torch.float32:
            raise ValueError(f"scale_{name} must have shape {rows} x {columns} Float elements, got {[*scale.shape]}")
        if scale.stride(0) != 1 or (scale.stride(1) != rows and (columns != 1 or scale.stride(1) != 1)):
            raise ValueError(f"scale_{name} must have strides (1, {rows}); got {[*torch.Tensor.stride(scale)]}")


def _kinds(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> tuple[int, int] | None:
    """Of which blocks the scales of ``_scaled_mm`` are; None: not of blocks."""
    if a.dim() != 2 or b.dim() != 2:
        return None
    by_rows = scale_b.t() if scale_b.dtype is torch.float32 and scale_b.dim() == 2 else scale_b
    kind_a, kind_b = kind_of(a, scale_a), kind_of(b.t(), by_rows)
    return None if kind_a is None or kind_b is None else (kind_a, kind_b)


def _result(left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    result = left @ right.t()
    return (result if bias is None else result + bias.float()).to(dtype)


def _product(
    a: torch.Tensor, b: torch.Tensor, scale_a: Any, kind_a: Any, swizzle_a: Any, scale_b: Any, kind_b: Any, swizzle_b: Any,
    bias: torch.Tensor | None, out_dtype: torch.dtype | None, *rest: Any, **kwargs: Any,
) -> torch.Tensor:  # fmt: skip
    """``_scaled_mm_v2``: of blocks from operands of 32 bits, whose products of eight bits are exact."""
    if block_of(a) is None or not {kind_a[0], kind_b[0]} <= {ALONG, SQUARE, *FINE}:
        given = (a, b, scale_a, kind_a, swizzle_a, scale_b, kind_b, swizzle_b, bias, out_dtype)
        return _stock(*given, *rest, **kwargs)
    sides = []
    for operand, scales, kinds, swizzles in ((a, scale_a, kind_a, swizzle_a), (b.t(), scale_b, kind_b, swizzle_b)):
        values = values_of(operand)
        values = values * spread(scales[0], kinds[0], values.shape, in_tiles=bool(swizzles and swizzles[0]))
        for of_all in scales[1:]:  # a second level: one of the whole operand
            values = values * of_all.float()
        sides.append(values)
    return _result(sides[0], sides[1], bias, out_dtype or a.dtype)


def _product_by_shapes(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, bias: torch.Tensor | None = None,
    scale_result: torch.Tensor | None = None, out_dtype: torch.dtype | None = None, use_fast_accum: bool = False,
) -> torch.Tensor:  # fmt: skip
    """``_scaled_mm``: the same, where its scales are of blocks."""
    kinds = None if block_of(a) is None else _kinds(a, b, scale_a, scale_b)
    if kinds is None:
        return _stock_by_shapes(a, b, scale_a, scale_b, bias, scale_result, out_dtype, use_fast_accum)
    left, right = values_of(a), values_of(b.t())
    left = left * spread(scale_a, kinds[0], left.shape, across=False)
    of_b = scale_b if kinds[1] in FINE else scale_b.t()
    return _result(left, right * spread(of_b, kinds[1], right.shape, across=False), bias, out_dtype or a.dtype)


_stock: Any = torch.ops.aten._scaled_mm_v2.default._op
_stock_by_shapes: Any = torch.ops.aten._scaled_mm.default._op
KERNELS: dict[str, Callable[..., object]] = {
    "aten::_scaled_mm_v2": _product,
    "aten::_scaled_mm": _product_by_shapes,
}


def _whole(arch: int, a: torch.Tensor, b: torch.Tensor) -> str:
    """The same of a product of whole numbers in eight bits."""
    if a.dim() != 2 or b.dim() != 2:
        return ""
    if a.shape[0] <= _FEWEST_ROWS:
        return f"self.size(0) needs to be greater than 16, but got {a.shape[0]}"
    for name, size, side in (("self", a.shape[1], 1), ("mat2", b.shape[1], 1)):
        if size == 0 or size % 8:
            return f"{name}.size({side}) needs to be greater than 0 and a multiple of 8, but got {size}"
    return ""


Refusal = Callable[[int, torch.Tensor, torch.Tensor], str]
_REFUSALS: dict[str, Refusal] = {"_scaled_mm": _scaled, "_scaled_mm_v2": _scaled, "_int_mm": _whole}
"""By operator: what is refused of its first two arguments."""


def refusal_of(name: str) -> Callable[[int, object], None] | None:
    """What raises if CUDA refuses an operator with given arguments on a GPU of a compute capability; None: it never does."""
    why = _REFUSALS.get(name)
    if why is None:
        return None

    def check(arch: int, args: Any) -> None:
        text = why(arch, args[0], args[1]) if len(args) > 1 else ""
        if text:
            raise (ValueError if "Float8_e5m2 matrices" in text else RuntimeError)(text)
        if name == "_scaled_mm_v2":
            _by_blocks(arch, args)
        elif name == "_scaled_mm" and len(args) > _SCALES_AT:
            _require_blocks(arch, _kinds(*args[: _SCALES_AT + 1]) or ())

    return check
