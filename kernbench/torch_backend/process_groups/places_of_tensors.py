"""Where the tensors of a collective are, and how they lie in memory, as NCCL and torch's calls of it take them."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d

from kernbench.simulation.ranks.hosts import Host
from kernbench.simulation.ranks.locations import user_location
from kernbench.simulation.simulation import Simulation
from kernbench.simulation.values.collective_cells import Cells, wholes
from kernbench.torch_backend.gpu.tensors.placement import block_of
from kernbench.torch_backend.process_groups.arguments import Tensors, is_channels_last, require_contiguous
from kernbench.torch_backend.relies_on import Reliance

RELIES_ON = (
    Reliance("sys._getframe", "the frames of the thread that runs, innermost first"),
    Reliance("torch.distributed.distributed_c10d", "what a program calls, and the reducer does not, is in this module",
             has=("all_reduce", "broadcast", "all_gather_into_tensor", "reduce_scatter_tensor")),
)  # fmt: skip


_NO_BACKEND = "No backend type associated with device type cpu"
_ADVICE = 'Move it to the GPU, or let the group have gloo for the host: init_process_group("cpu:gloo,cuda:nccl")'


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


def _decisive(op: str, inputs: Tensors, outputs: Tensors) -> tuple[torch.Tensor, ...]:
    """The tensors of a call by which torch chooses who carries it out: it does not look into lists with one for each rank."""
    if op in ("all_gather", "gather") and len(inputs) == 1 and type(outputs) is not Cells:
        return tuple(inputs)
    if op in ("reduce_scatter", "scatter") and len(outputs) == 1 and type(inputs) is not Cells:
        return tuple(outputs)
    return (*wholes(inputs), *wholes(outputs))


def look_for_host(simulation: Simulation, host: Host, op: str, inputs: Tensors, outputs: Tensors) -> None:
    """Raise torch's error if a call gives NCCL tensors of the host: ValueError of NCCL's, or RuntimeError where no backend of
    the group is for them. A rank that has used no GPU may stand for one whose tensors are all on its GPU: there it is a remark.

    Whole numbers that C++ gives are not looked at: what DDP's reducers agree on (sizes of parameters, order of buckets, which
    were used) it makes here on the host. Parameters, buffers and buckets are where the program has them.
    """
    if not host.uses_gpu and any(_NO_BACKEND in said for said in simulation.remarks):
        return
    if any(block_of(tensor) is not None for tensor in _decisive(op, inputs, outputs)):
        raise ValueError(f"Tensors must be CUDA and dense: {op} was given some of the host")
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("kernbench."):
        frame = frame.f_back
    if (frame is None or frame.f_globals.get("__name__") != dist.distributed_c10d.__name__) and not any(
        tensor.is_floating_point() and block_of(tensor) is None for tensor in (*wholes(inputs), *wholes(outputs))
    ):
        return
    if host.uses_gpu:
        raise RuntimeError(f"{_NO_BACKEND}: {op} of a tensor of the host in a group of NCCL. {_ADVICE}")
    simulation.remarks[
        f"a group of NCCL communicates tensors of the host, first by {op} at {user_location()}. On GPUs torch refuses that "
        f'("{_NO_BACKEND}"). {_ADVICE}'
    ] = None
