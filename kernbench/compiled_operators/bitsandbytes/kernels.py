"""The kernels of the library, and the functions that make their results as the package's Python does.

Costs: what is only read and written costs its bytes; products of eight bits are those of int8 (``MatrixWork``); a product with
a weight of four bits is the larger of its bytes and its operations, at the rate of 16 bits. UNVERIFIED.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernbench.compiled_operators.bitsandbytes import formats
from kernbench.compiled_operators.kernel_table import KernelTable
from kernbench.cost.by_values import CallOperands
from kernbench.cost.matrix_work import MatrixWork
from kernbench.cost.work import StatedWork

Tensor = torch.Tensor

TABLE = KernelTable("kernbench_bitsandbytes")
operators = TABLE.operators
_kernel, _launch = TABLE.kernel, TABLE.launch

# -- blocks ---------------------------------------------------------------------------------------------------------------


@_kernel(
    "to_eight_bits(Tensor x, Tensor code, int size, Tensor(a!) out, Tensor(b!) scales)", "x", "code", "out", "scales"
)
def _to_eight_bits(x: Tensor, code: Tensor, size: int, out: Tensor, scales: Tensor) -> None:
    scaled, largest = formats.in_blocks(x, size)
    out.copy_(formats.places_of(scaled, code).view(x.shape))
    scales.copy_(largest)


@_kernel(
    "from_eight_bits(Tensor x, Tensor scales, Tensor code, int size, Tensor(a!) out)", "x", "scales", "code", "out"
)
def _from_eight_bits(x: Tensor, scales: Tensor, code: Tensor, size: int, out: Tensor) -> None:
    out.copy_(formats.from_eight_bits(x, scales, code, size))


@_kernel("to_four_bits(Tensor x, int size, str kind, Tensor(a!) out, Tensor(b!) scales)", "x", "out", "scales")
def _to_four_bits(x: Tensor, size: int, kind: str, out: Tensor, scales: Tensor) -> None:
    scaled, largest = formats.in_blocks(x, size)
    stored = formats.packed(formats.places_of(scaled, formats.table_of(kind)), out.dtype)
    out.copy_(stored[: out.numel()].view(out.shape))
    scales.copy_(largest)


@_kernel("from_four_bits(Tensor x, Tensor scales, int size, str kind, Tensor(a!) out)", "x", "scales", "out")
def _from_four_bits(x: Tensor, scales: Tensor, size: int, kind: str, out: Tensor) -> None:
    out.copy_(formats.from_four_bits(x, scales, size, kind, out.shape))


def _scales_of(numbers: Tensor, size: int) -> Tensor:
    """Memory for a scale of each ``size`` numbers."""
    return torch.empty(-(-numbers.numel() // size), device=numbers.device, dtype=torch.float32)


def quantize_blockwise(A: Tensor, code: Tensor, blocksize: int) -> tuple[Tensor, Tensor]:
    """Places in the table ``code`` of 256 values, and scales."""
    A = A.contiguous()
    out = torch.empty_like(A, dtype=torch.uint8)
    scales = _scales_of(A, blocksize)
    _launch("to_eight_bits", A, code, blocksize, out, scales)
    return out, scales


def dequantize_blockwise_into(
    A: Tensor, absmax: Tensor, code: Tensor, blocksize: int, dtype: torch.dtype, out: Tensor
) -> None:
    """The numbers, into ``out``."""
    _launch("from_eight_bits", A.contiguous(), absmax, code, blocksize, out)


def quantize_4bit(A: Tensor, blocksize: int, quant_type: str, quant_storage: torch.dtype) -> tuple[Tensor, Tensor]:
    """Two numbers in a byte, seen as ``quant_storage``, ``[n, 1]``; and scales."""
    A = A.contiguous()
    out = torch.empty(((A.numel() + 1) // (quant_storage.itemsize * 2), 1), device=A.device, dtype=quant_storage)
    scales = _scales_of(A, blocksize)
    _launch("to_four_bits", A, blocksize, quant_type, out, scales)
    return out, scales


def dequantize_4bit_into(
    A: Tensor, absmax: Tensor, blocksize: int, quant_type: str, dtype: torch.dtype, out: Tensor
) -> None:
    """The numbers, into ``out``."""
    _launch("from_four_bits", A.contiguous(), absmax, blocksize, quant_type, out)


# -- products with weights of four bits -----------------------------------------------------------------------------------


def _cost_of_product(operands: CallOperands) -> StatedWork:
    x, out = operands["x"], operands["out"]
    moved = sum(each.nbytes for each in operands.tensors)
    return StatedWork(moved, flops=2 * out.elements * x.shape[-1], matrix=True, dtype=x.format)


@_kernel(
    "product(Tensor x, Tensor weight, Tensor scales, Tensor? small, Tensor? code, Tensor? offset, Tensor? bias, int size, "
    "str kind, Tensor? table, Tensor(a!) out)",
    cost=_cost_of_product,
)
def _product(
    x: Tensor, weight: Tensor, scales: Tensor, small: Tensor | None, code: Tensor | None, offset: Tensor | None,
    bias: Tensor | None, size: int, kind: str, table: Tensor | None, out: Tensor,
) -> None:  # fmt: skip
    """``x @ weight.T + bias``, in float32; ``small``: scales in eight bits, whose own are ``scales``. A ``table`` says the kind
    of the weight by its second value, which is negative for NF4."""
    if table is not None:
        kind = "fp4" if table[1] > 0 else "nf4"
    if small is not None and code is not None and offset is not None:
        scales = formats.from_eight_bits(small, scales, code, 256) + offset
    plain = formats.from_four_bits(weight, scales, size, kind, (out.shape[-1], x.shape[-1])).to(x.dtype).float()
    found = x.float() @ plain.t()
    out.copy_(found if bias is None else found + bias.float())


def gemv_4bit_into(
    A: Tensor, B: Tensor, shapeB: Sequence[int], absmax: Tensor, code: Tensor, blocksize: int, out: Tensor
) -> None:
    """A vector's product; ``code`` is the table of the weight's kind."""
    _launch("product", A, B, absmax, None, None, None, None, blocksize, "", code, out)


def gemm_4bit(
    A: Tensor, B: Tensor, shapeB: Sequence[int], absmax: Tensor, blocksize: int, quant_type: str, bias: Tensor | None = None,
    absmax_8bit: Tensor | None = None, absmax_code: Tensor | None = None, absmax_offset: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The product in one kernel."""
    A = A.contiguous()
    out = torch.empty((*A.shape[:-1], shapeB[0]), dtype=A.dtype, device=A.device)
    _launch("product", A, B, absmax, absmax_8bit, absmax_code, absmax_offset, bias, blocksize, quant_type, None, out)
    return out


# -- eight bits: int8 -----------------------------------------------------------------------------------------------------


def _cost_of_int8(operands: CallOperands) -> MatrixWork:
    a, b, out = operands["a"], operands["b"], operands["out"]
    rows = out.elements // max(b.shape[0], 1)
    return MatrixWork(((rows, b.shape[0], a.shape[-1]),), "int8", "fp32")


@_kernel("int8_product(Tensor a, Tensor b, Tensor(a!) out)", cost=_cost_of_int8)
def _int8_product(a: Tensor, b: Tensor, out: Tensor) -> None:
    out.copy_((a.double() @ b.double().t()).to(torch.int32))  # exact


def int8_product_into(A: Tensor, B: Tensor, out: Tensor) -> Tensor:
    """``A [.., k] @ B[n, k].T`` in 32 bits."""
    _launch("int8_product", A, B, out)
    return out


@_kernel("int8_rows(Tensor x, float threshold, Tensor(a!) out, Tensor(b!) scales)", "x", "out", "scales")
def _int8_rows(x: Tensor, threshold: float, out: Tensor, scales: Tensor) -> None:
    rows = x.float().view(-1, x.shape[-1])
    kept = rows if threshold <= 0 else rows.masked_fill(rows.abs() >= threshold, 0)
    largest = kept.abs().amax(-1)
    scales.copy_(largest)
    factor = torch.where(largest > 0, 127 / largest, torch.zeros(()))
    out.copy_((kept * factor[:, None]).round().view(x.shape))


def int8_vectorwise_quant(A: Tensor, threshold: float = 0.0) -> tuple[Tensor, Tensor, Tensor | None]:
    """Rows over their largest magnitudes; columns with outliers, which are left out where there is a ``threshold``."""
    if A.dtype != torch.float16:
        raise ValueError(f"A must be float16, got {A.dtype}")
    out = torch.empty(A.shape, device=A.device, dtype=torch.int8)
    scales = torch.empty(A.numel() // A.shape[-1], device=A.device, dtype=torch.float32)
    columns = None
    if threshold > 0:
        far = A.abs() >= threshold
        columns = torch.argwhere(far.any(dim=0)).view(-1)
    _launch("int8_rows", A, threshold, out, scales)
    if columns is not None and len(scales) > 1:
        out[:, columns] = 0
    return out, scales, columns


@_kernel(
    "int8_scaled(Tensor x, Tensor rows, Tensor columns, Tensor? bias, Tensor(a!) out)",
    "x",
    "rows",
    "columns",
    "bias",
    "out",
)
def _int8_scaled(x: Tensor, rows: Tensor, columns: Tensor, bias: Tensor | None, out: Tensor) -> None:
    found = x.float().view(-1, x.shape[-1]) * rows[:, None] * columns / (127 * 127)
    out.copy_((found if bias is None else found + bias.float()).view(x.shape))


def int8_mm_dequant(
    A: Tensor, row_stats: Tensor, col_stats: Tensor, dtype: torch.dtype | None = None, bias: Tensor | None = None
) -> Tensor:
    """A product of 32 bits as numbers; a bias of another format than float16 is added after."""
    out = torch.empty_like(A, dtype=torch.float16)
    fused = bias if bias is not None and bias.dtype == torch.float16 else None
    _launch("int8_scaled", A, row_stats.reshape(-1), col_stats.reshape(-1), fused, out)
    if bias is not None and fused is None:
        out.add_(bias)
    return out.to(dtype or torch.float16)


NAMES: dict[str, object] = {
    "quantize_blockwise": quantize_blockwise, "dequantize_blockwise_into": dequantize_blockwise_into,
    "quantize_4bit": quantize_4bit, "dequantize_4bit_into": dequantize_4bit_into, "gemv_4bit_into": gemv_4bit_into,
    "gemm_4bit": gemm_4bit, "int8_product_into": int8_product_into, "int8_vectorwise_quant": int8_vectorwise_quant,
    "int8_mm_dequant": int8_mm_dequant,
}  # fmt: skip
"""What :mod:`~kernbench.compiled_operators.bitsandbytes.loading` puts into the package's Python."""
