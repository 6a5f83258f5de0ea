"""Quantized tensors: made as the package's C++ makes them, written and read by kernels.

The classes are those of the package's Python, of the rank that asks. Scales are kept in plain order, whether they are marked as
ordered for products or not: a kernel here reads that order, and there are as many.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from kernbench.compiled_operators.transformer_engine.formats import (
    KINDS,
    StoredOperand,
    cast,
    encode,
    scale_of,
    scale_shape,
)
from kernbench.compiled_operators.transformer_engine.kernels import kernel, launch
from kernbench.compiled_operators.transformer_engine.names import torch_format

Tensor = torch.Tensor

_STORAGES = {"Float8TensorStorage": "tensor", "MXFP8TensorStorage": "mx", "Float8BlockwiseQTensorStorage": "block"}
_QUANTIZERS = {
    "Float8Quantizer": "delayed", "Float8CurrentScalingQuantizer": "current", "MXFP8Quantizer": "mx",
    "Float8BlockQuantizer": "block",
}  # fmt: skip
_CLASSES = {
    "tensor": ("float8_tensor", "Float8Tensor"),
    "mx": ("mxfp8_tensor", "MXFP8Tensor"),
    "block": ("float8_blockwise_tensor", "Float8BlockwiseQTensor"),
}


def _kind_of_quantizer(quantizer: object) -> str:
    for each in type(quantizer).__mro__:
        if each.__name__ in _QUANTIZERS:
            return _QUANTIZERS[each.__name__]
    raise NotImplementedError(
        f"The stand-in for transformer_engine has no {type(quantizer).__name__}: of recipes it has DelayedScaling, "
        "Float8CurrentScaling, Float8BlockScaling and MXFP8BlockScaling."
    )


def stored(tensor: Any, by_columns: bool = False) -> tuple[Tensor, Tensor | None, StoredOperand]:
    """Data, scales and how they are stored: by columns where that is wanted and there, else by rows."""
    kind = next((_STORAGES[each.__name__] for each in type(tensor).__mro__ if each.__name__ in _STORAGES), "")
    if not kind:
        if type(tensor).__name__.startswith("NVFP4"):
            raise NotImplementedError("The stand-in for transformer_engine has no NVFP4: use a recipe of eight bits.")
        return tensor, None, StoredOperand()
    if kind == "tensor":
        rows, columns = tensor._data, None if tensor._transpose_invalid else tensor._transpose
        scales = tensor._scale_inv, tensor._scale_inv
    else:
        rows, columns = tensor._rowwise_data, tensor._columnwise_data
        scales = tensor._rowwise_scale_inv, tensor._columnwise_scale_inv
        kind = kind if kind == "mx" else "block2" if tensor._is_2D_scaled else "block1"
    by_columns = columns is not None and (by_columns or rows is None)
    data = columns if by_columns else rows
    if data is None:
        raise RuntimeError(f"A {type(tensor).__name__} without data was given to a kernel.")
    return data, scales[by_columns], StoredOperand(kind, by_columns, int(tensor._fp8_dtype))


def _keeps_transposes() -> bool:
    """Whether products take operands by rows only, and a tensor's transposed data is kept: below compute capability 10."""
    return torch.cuda.get_device_capability()[0] < 10


def create_empty_quantized_tensor(
    quantizer: Any, shape: Sequence[int], dtype: torch.dtype, device: Any = None, pin_memory: bool = False
) -> Any:
    """A tensor of a quantizer's kind whose data is unwritten."""
    kind, shape = _kind_of_quantizer(quantizer), tuple(shape)
    device = torch.device("cuda", torch.cuda.current_device()) if device is None else torch.device(device)
    module, name = _CLASSES["tensor" if kind in ("delayed", "current") else kind]
    made: dict[str, Any] = {"fp8_dtype": quantizer.dtype, "quantizer": quantizer}

    def fresh(size: Sequence[int], of: torch.dtype = torch.uint8) -> Tensor:
        return torch.empty(tuple(size), dtype=of, device=device, pin_memory=pin_memory)

    turned = (shape[-1], *shape[:-1]) if shape else shape
    if kind in ("delayed", "current"):
        apart = _keeps_transposes()
        made["data"] = fresh(shape) if quantizer.rowwise_usage or not apart else None
        made["data_transpose"] = fresh(turned) if quantizer.columnwise_usage and apart else None
        made["fp8_scale_inv"] = fresh((1,), torch.float32)
    else:
        of = KINDS["mx"] if kind == "mx" else KINDS[f"block{quantizer.block_scaling_dim}"]
        rows, width = prod(shape[:-1]), shape[-1]
        if kind == "mx" and (rows % 32 or width % 32):
            raise RuntimeError(f"MXFP8 requires tensor dims that are divisible by 32 (got shape={shape})")
        scales = torch.uint8 if of.powers else torch.float32
        for at, (side, used) in enumerate(
            (("rowwise", quantizer.rowwise_usage), ("columnwise", quantizer.columnwise_usage))
        ):
            made[f"{side}_data"] = fresh(turned if at and of.transposed else shape) if used else None
            made[f"{side}_scale_inv"] = fresh(scale_shape(of, rows, width, bool(at)), scales) if used else None
        made |= (
            {"with_gemm_swizzled_scales": quantizer.optimize_for_gemm} if kind == "mx"
            else {"is_2D_scaled": quantizer.block_scaling_dim == 2}
        )  # fmt: skip
    if quantizer.internal:
        storages = importlib.import_module(f"transformer_engine.pytorch.tensor.storage.{module}_storage")
        return getattr(storages, f"{name}Storage")(**made, fake_dtype=dtype)
    tensors = importlib.import_module(f"transformer_engine.pytorch.tensor.{module}")
    return getattr(tensors, name)(shape=shape, dtype=dtype, **made, device=device)


@kernel("compute_amax(Tensor x, Tensor! amax)", "x", "amax")
def _compute_amax(x: Tensor, amax: Tensor) -> None:
    amax.copy_((x.float().abs().amax() if x.numel() else torch.zeros(())).view(amax.shape))


@kernel(
    "compute_scale(Tensor amax, Tensor! scale, Tensor! inverse, int dtype, bool powers, float epsilon)", "amax", "scale"
)
def _compute_scale(amax: Tensor, scale: Tensor, inverse: Tensor, dtype: int, powers: bool, epsilon: float) -> None:
    scale.copy_(scale_of(amax.float(), torch.finfo(torch_format(dtype)).max, powers, epsilon).view(scale.shape))
    inverse.copy_((1 / scale).view(inverse.shape))


@kernel(
    """quantize_tensor(Tensor x, Tensor scale, Tensor(r!)? rows, Tensor(c!)? columns, Tensor(i!)? inverse, Tensor(m!)? amax, int
    dtype, Tensor? noop)""",
    "x", "rows", "columns",
)  # fmt: skip
def _quantize_tensor(
    x: Tensor, scale: Tensor, rows: Tensor | None, columns: Tensor | None, inverse: Tensor | None, amax: Tensor | None,
    dtype: int, noop: Tensor | None,
) -> None:  # fmt: skip
    if noop is not None and bool(noop.reshape(-1)[0]):
        return
    matrix = x.reshape(-1, x.shape[-1]).float() if x.dim() else x.reshape(1, 1).float()
    data = cast(matrix * scale.reshape(-1)[0], torch_format(dtype))
    if rows is not None:
        rows.copy_(data.view(rows.shape))
    if columns is not None:
        columns.copy_(data.t().reshape(columns.shape))
    if inverse is not None:
        inverse.copy_((1 / scale.reshape(-1)[0]).expand(inverse.shape))
    if amax is not None and matrix.numel():
        amax.copy_(torch.maximum(amax.float().reshape(-1)[0], matrix.abs().amax()).expand(amax.shape))


@kernel(
    """quantize_blocks(Tensor x, Tensor(r!)? rows, Tensor(s!)? row_scales, Tensor(c!)? columns, Tensor(t!)? column_scales, str
    kind, int dtype, bool powers, float epsilon, Tensor? noop)""",
    "x", "rows", "row_scales", "columns", "column_scales",
)  # fmt: skip
def _quantize_blocks(
    x: Tensor, rows: Tensor | None, row_scales: Tensor | None, columns: Tensor | None, column_scales: Tensor | None,
    kind: str, dtype: int, powers: bool, epsilon: float, noop: Tensor | None,
) -> None:  # fmt: skip
    if noop is not None and bool(noop.reshape(-1)[0]):
        return
    matrix = x.reshape(-1, x.shape[-1]).float()
    for by_columns, data, scales in ((False, rows, row_scales), (True, columns, column_scales)):
        if data is not None and scales is not None:
            found, factors = encode(matrix, KINDS[kind], torch_format(dtype), by_columns, powers, epsilon)
            data.copy_(found.reshape(data.shape))
            scales.copy_(factors)


@kernel("dequantize(Tensor data, Tensor scales, str how, Tensor! out)", "data", "scales", "out")
def _dequantize(data: Tensor, scales: Tensor, how: str, out: Tensor) -> None:
    out.copy_(StoredOperand.of(how).matrix(data, scales).reshape(out.shape))


@kernel("transpose(Tensor x, Tensor! out)", "x", "out")
def _transpose(x: Tensor, out: Tensor) -> None:
    out.copy_(x.reshape(-1, x.shape[-1]).t().reshape(out.shape))


@kernel("column_sums(Tensor x, Tensor! out)", "x", "out")
def _column_sums(x: Tensor, out: Tensor) -> None:
    out.copy_(x.reshape(-1, x.shape[-1]).float().sum(0))


def quantize(tensor: Tensor, quantizer: Any, output: Any = None, noop: Tensor | None = None) -> Any:
    """A tensor in a quantizer's format, in ``output`` where one is given; nothing is written where ``noop`` is one."""
    if quantizer is None:
        return tensor if output is None else output.copy_(tensor)
    tensor = tensor.detach().contiguous()
    out = output
    if out is None:
        out = create_empty_quantized_tensor(quantizer, tensor.shape, tensor.dtype, tensor.device)
    if not tensor.numel():
        return out
    kind = _kind_of_quantizer(quantizer)
    if kind in ("mx", "block"):
        powers, epsilon = kind == "mx" or quantizer.force_pow_2_scales, getattr(quantizer, "amax_epsilon", 0.0)
        of = "mx" if kind == "mx" else f"block{quantizer.block_scaling_dim}"
        data = out._rowwise_data, out._rowwise_scale_inv, out._columnwise_data, out._columnwise_scale_inv
        launch("quantize_blocks", tensor, *data, of, int(quantizer.dtype), powers, epsilon, noop)
        return out
    scale, amax, inverse = getattr(quantizer, "scale", None), getattr(quantizer, "amax", None), out._scale_inv
    if kind == "current":
        both = torch.empty(2, dtype=torch.float32, device=tensor.device)
        amax, scale = both[0], both[1]
        launch("compute_amax", tensor, amax)
        if quantizer.with_amax_reduction:
            group = quantizer._canonicalized_amax_reduction_group()
            torch.distributed.all_reduce(amax, torch.distributed.ReduceOp.MAX, group=group)
        launch(
            "compute_scale",
            amax,
            scale,
            inverse,
            int(quantizer.dtype),
            quantizer.force_pow_2_scales,
            quantizer.amax_epsilon,
        )
        amax = inverse = None
    launch("quantize_tensor", tensor, scale, out._data, out._transpose, inverse, amax, int(quantizer.dtype), noop)
    if out._transpose is not None:
        out._transpose_invalid = False
    return out


def quantize_result(out: Tensor, quantizer: object) -> Any:
    """What a kernel has made, in a quantizer's format where there is one."""
    return out if quantizer is None else quantize(out, quantizer)


def dequantize(input: Any, otype: object) -> Tensor:
    """A quantized tensor in another format."""
    data, scales, how = stored(input)
    out = torch.empty(tuple(input.size()), dtype=torch_format(otype), device=data.device)
    if out.numel():
        launch("dequantize", data, scales, str(how), out)
    return out


def multi_tensor_quantize(tensor_list: Sequence[Tensor], quantizer_list: Sequence[object]) -> list[Any]:
    """Each with its own quantizer."""
    return [quantize(tensor, each) for tensor, each in zip(tensor_list, quantizer_list, strict=True)]


def split_quantize(
    tensor: Tensor,
    split_sections: Sequence[int],
    quantizer_list: Sequence[object],
    disable_bulk_allocation: bool = False,
) -> list[Any]:
    """Parts of the first dimension, each with its own quantizer; they are allocated one by one."""
    parts = torch.split(tensor, list(split_sections))
    return [quantize(part, each) for part, each in zip(parts, quantizer_list, strict=True)]


def bgrad_quantize(input: Tensor, quantizer: object) -> list[Any]:
    """The sums of the columns, and the quantized tensor."""
    sums = torch.empty(input.shape[-1], dtype=input.dtype, device=input.device)
    launch("column_sums", input, sums)
    return [sums, quantize(input, quantizer)]


def fp8_transpose(input: Tensor, dtype: object, *, out: Tensor | None = None) -> Tensor:
    """Bytes with the last dimension first."""
    if out is None:
        out = torch.empty((input.shape[-1], *input.shape[:-1]), dtype=torch.uint8, device=input.device)
    launch("transpose", input, out)
    return out


def compute_amax(input: Tensor, amax: Tensor) -> None:
    """The largest magnitude."""
    launch("compute_amax", input.contiguous(), amax)


def swizzle_scales_for_gemm_(tensor: torch.Tensor) -> None:
    """Mark scales as ordered for products: here they keep their order."""
    if hasattr(tensor, "_with_gemm_swizzled_scales"):
        tensor._with_gemm_swizzled_scales = True


def multi_tensor_swizzle_scales_for_gemm_(tensors: Sequence[Any], rowwise_usage: bool, columnwise_usage: bool) -> None:
    """The same of several."""
    for each in tensors:
        swizzle_scales_for_gemm_(each)


multi_tensor_swizzle_scales_for_gemm_unchecked_ = multi_tensor_swizzle_scales_for_gemm_
