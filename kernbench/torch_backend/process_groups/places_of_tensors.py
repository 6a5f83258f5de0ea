"""Where the tensors of a collective are, and how they lie in memory, as NCCL and torch's calls of it take them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d

from kernbench.simulation.values.collective_cells import Cells, wholes
from kernbench.torch_backend.gpu.tensors.placement import block_of
from kernbench.torch_backend.process_groups.arguments import Tensors, is_channels_last, require_contiguous
from kernbench.torch_backend.relies_on import Reliance

RELIES_ON = (
    Reliance("sys._getframe", "the frames of the thread that runs, innermost first"),
    Reliance("torch.distributed.distributed_c10d", "what a program calls, and the reducer does not, is in this module",
             has=("all_reduce", "broadcast", "all_gather_into_tensor", "reduce_scatter_tensor")),
)  # fmt: skip


def is_reordered(op: str, inputs: Tensors, outputs: Tensors) -> bool:
    """Whether the memory of a tensor has another order than its elements. Raises ValueError of what NCCL does not take."""
    kept = _copied(op, inputs, outputs)
    if not kept:
        return require_contiguous(op, (*wholes(inputs), *wholes(outputs)))
    return require_contiguous(op, inputs if kept is outputs else outputs) or any(map(is_channels_last, kept))


def _copied(op: str, inputs: Tensors, outputs: Tensors) -> Tensors:
    """Those tensors of a call that the library is not given, because torch copies lists of all_gather's results, and of
    reduce_scatter's parts, to one tensor, and back."""
    if op == "all_gather" and len(inputs) == 1 and type(outputs) is not Cells:
        return outputs
    if op == "reduce_scatter" and len(outputs) == 1 and type(inputs) is not Cells:
        return inputs
    return ()


def require_gpu(op: str, tensors: Sequence[torch.Tensor], on_gpus: int) -> None:
    """Raise RuntimeError, as torch does, if a call gives NCCL tensors of the host; ``on_gpus`` of them are not.

    Whole numbers that C++ gives are not looked at: what DDP's reducers agree on (sizes of parameters, order of buckets, which
    were used) it makes here on the host. Parameters, buffers and buckets are where the program has them.
    """
    if on_gpus and op == "all_to_all":
        raise ValueError("Tensors must be CUDA and dense: all_to_all was given some of the host")
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("kernbench."):
        frame = frame.f_back
    if (frame is not None and frame.f_globals.get("__name__") == dist.distributed_c10d.__name__) or any(
        tensor.is_floating_point() and block_of(tensor) is None for tensor in tensors
    ):
        raise RuntimeError(
            f"No backend type associated with device type cpu: {op} of a tensor of the host in a group of NCCL. Move it to the "
            'GPU, or let the group have gloo for the host: init_process_group("cpu:gloo,cuda:nccl")'
        )
