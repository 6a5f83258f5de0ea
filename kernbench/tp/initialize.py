"""Weights that do not depend on the tensor parallel size.

A rank draws the layer's whole ("master") weight from the layer's seed, keeps its own part and drops the rest, so a model
split over 1, 2 or 8 ranks is the same model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernbench.tp import comm
from kernbench.tp.parallel_state import get_tensor_model_parallel_rank
from kernbench.tp.random import layer_init_seed, seeded

InitMethod = Callable[[torch.Tensor], Any]


def scaled_init_method_normal(sigma: float, num_layers: int) -> InitMethod:
    """Normal with standard deviation ``sigma / sqrt(2 * num_layers)``, for the layers that write the residual stream."""
    return init_method_normal(sigma / (2.0 * num_layers) ** 0.5)


def init_method_normal(sigma: float) -> InitMethod:
    """Normal with standard deviation ``sigma``."""

    def initialize(tensor: torch.Tensor) -> torch.Tensor:
        return torch.nn.init.normal_(tensor, mean=0.0, std=sigma)

    return initialize


def partition_parameter(
    shape: Sequence[int],
    dim: int | None,
    *,
    rank: int,
    world_size: int,
    init_method: InitMethod | None,
    dtype: torch.dtype | None,
    device: torch.device | str | None = None,
) -> torch.nn.Parameter:
    """This rank's part of a parameter.

    Args:
        shape: of the whole parameter.
        dim: dimension that is split; None for a parameter that every rank has whole.
        init_method: fills the whole one, in fp32; None for zeros.
    """
    dtype = dtype or torch.get_default_dtype()
    part = list(shape)
    if dim is not None:
        part[dim] //= world_size
    if init_method is None:
        values = torch.zeros(part, dtype=dtype, device=device)
    elif not comm.has_values():
        values = torch.empty(part, dtype=dtype, device=device)
    else:
        with torch.no_grad(), seeded(layer_init_seed()):
            master = torch.empty(tuple(shape), dtype=torch.float32, device="cpu")
            init_method(master)
            mine = master if dim is None else master.narrow(dim, rank * part[dim], part[dim])
            values = mine.to(dtype=dtype, device=device or torch.get_default_device(), copy=True)
            values = values.contiguous()
    parameter = torch.nn.Parameter(values, requires_grad=comm.can_differentiate())
    set_tensor_model_parallel_attributes(
        parameter, is_parallel=dim is not None, dim=-1 if dim is None else dim, stride=1
    )
    return parameter


def mark_sequence_parallel(parameter: torch.nn.Parameter, sequence_parallel: bool) -> None:
    """Note, under Megatron-Core's name, that each rank's gradient of ``parameter`` is of its part of the sequence only."""
    parameter.sequence_parallel = sequence_parallel  # type: ignore[attr-defined]


def set_tensor_model_parallel_attributes(tensor: torch.Tensor, is_parallel: bool, dim: int, stride: int) -> None:
    """Note on a parameter how it is split, under Megatron-Core's attribute names, which optimizers and checkpoints read."""
    tensor.tensor_model_parallel = is_parallel  # type: ignore[attr-defined]
    tensor.partition_dim = dim  # type: ignore[attr-defined]
    tensor.partition_stride = stride  # type: ignore[attr-defined]


def param_is_not_tensor_parallel_duplicate(param: torch.Tensor) -> bool:
    """Whether this rank counts ``param`` in a norm over all parameters: it is split, or this is the first rank."""
    return bool(getattr(param, "tensor_model_parallel", False)) or get_tensor_model_parallel_rank() == 0
