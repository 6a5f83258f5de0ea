"""What is left of the extension: versions, rows that are filled up, dropout, dimensions that change places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kernbench.compiled_operators.transformer_engine.kernels import kernel, launch

Tensor = torch.Tensor


def get_cublasLt_version() -> int:
    """Of CUDA 13.0, as the wheels of 2.20 are built for."""
    return 130000


def get_cudnn_version() -> int:
    """9.15: above the least that the package takes."""
    return 91500


def get_num_cublas_streams() -> int:
    """``transformer_engine/common/util/multi_stream.cpp``."""
    return 4


def get_grouped_gemm_setup_workspace_size(num_tensors: int) -> int:
    """Bytes that are not used here."""
    return 256 * num_tensors


def device_supports_multicast(device_id: int = -1) -> bool:
    """Whether buffers of the package's own communication could be reduced by switches: it is not there."""
    return False


def get_stream_priority_range(device_id: int = -1) -> tuple[int, int]:
    """The least and the highest."""
    return 0, -5


def ubuf_built_with_mpi() -> bool:
    """As the wheels."""
    return False


def nvte_built_with_cublasmp() -> bool:
    """As the wheels."""
    return False


@kernel("swap_first_dims(Tensor x, Tensor! out)", "x", "out")
def _swap_first_dims(x: Tensor, out: Tensor) -> None:
    out.copy_(x.transpose(0, 1))


def swap_first_dims(tensor: Tensor, *, out: Tensor | None = None) -> Tensor:
    """The first two dimensions in each other's place, contiguous."""
    if out is None:
        shape = (tensor.shape[1], tensor.shape[0], *tensor.shape[2:])
        out = torch.empty(shape, dtype=tensor.dtype, device=tensor.device)
    launch("swap_first_dims", tensor, out)
    return out


@kernel("move_rows(Tensor x, Tensor! out, int[] given, int[] made)", "x", "out")
def _move_rows(x: Tensor, out: Tensor, given: list[int], made: list[int]) -> None:
    begin = at = 0
    for rows, room in zip(given, made, strict=True):
        kept = min(rows, room)
        out[at : at + kept] = x[begin : begin + kept]
        out[at + kept : at + room] = 0
        begin, at = begin + rows, at + room


def fused_multi_row_padding(
    input: Tensor, output: Tensor, input_row_list: Sequence[int], padded_input_row_list: Sequence[int]
) -> None:
    """The rows of each group, filled up with zeros to as many as are wanted."""
    launch("move_rows", input, output, list(input_row_list), list(padded_input_row_list))


def fused_multi_row_unpadding(
    input: Tensor, output: Tensor, input_row_list: Sequence[int], unpadded_input_row_list: Sequence[int]
) -> None:
    """The first rows of each group."""
    launch("move_rows", input, output, list(input_row_list), list(unpadded_input_row_list))


@kernel("dropout(Tensor x, Tensor kept, Tensor! out, float p)", "x", "kept", "out")
def _dropout(x: Tensor, kept: Tensor, out: Tensor, p: float) -> None:
    out.copy_(x.float() * kept.view(x.shape) / (1 - p) if p < 1 else torch.zeros_like(x))


def dropout_fwd(input: Any, dropout_probability: float, out: Tensor | None = None) -> list[Tensor]:
    """What is kept, divided by its share; and which that is, a byte for each element where the package has a bit."""
    kept = torch.empty(input.shape, dtype=torch.uint8, device=input.device).bernoulli_(1 - dropout_probability)
    out = torch.empty_like(input) if out is None else out
    launch("dropout", input, kept, out, dropout_probability)
    return [out, kept]


def dropout_bwd(
    grad_output: Tensor, mask: Tensor, dropout_probability: float, grad_input: Tensor | None = None
) -> Tensor:
    """Its gradient."""
    grad_input = torch.empty_like(grad_output) if grad_input is None else grad_input
    launch("dropout", grad_output, mask, grad_input, dropout_probability)
    return grad_input


@kernel("offsets(Tensor sizes, Tensor! out, int factor)", "sizes", "out")
def _offsets(sizes: Tensor, out: Tensor, factor: int) -> None:
    out[0] = 0
    out[1:] = sizes.cumsum(0) * factor


def splits_to_offsets(first_dims: Tensor, logical_last_dim: int) -> Tensor:
    """Where the parts of a tensor begin, in elements, and the end of the last one."""
    out = torch.empty(first_dims.numel() + 1, dtype=torch.int64, device=first_dims.device)
    launch("offsets", first_dims, out, logical_last_dim)
    return out
