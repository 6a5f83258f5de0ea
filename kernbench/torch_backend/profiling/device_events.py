"""What ran on a rank's GPU while it was profiled, by the names that tools look for.

A Triton kernel has its name. A collective has that of NCCL's kernels, as far as one can tell without NCCL; a copy between host
and GPU that of CUPTI. Which kernel of a library an operation of torch would run is not modelled: it is named as the operation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from kernbench.sim_engine.operation import COMPUTE_STREAM, Operation, shown
from kernbench.simulation.matching.history import Call
from kernbench.torch_backend.profiling.notes import HostNote

Category = Literal["kernel", "gpu_memcpy"]

DEFAULT_STREAM = 7
"""The number that CUPTI has for a process's default stream."""

_COPIES = {
    "host to device": "Memcpy HtoD (Host -> Device)",
    "device to host": "Memcpy DtoH (Device -> Host)",
    "device to device": "Memcpy PtoP (Device -> Device)",
}
_NCCL = {
    "all_reduce": "AllReduce", "reduce": "Reduce", "reduce_scatter": "ReduceScatter", "all_gather": "AllGather",
    "broadcast": "Broadcast", "barrier": "AllReduce",
}  # fmt: skip
_REDUCTIONS = {"avg": "SumPostDiv", "premul_avg": "PreMulSum", "product": "Prod", "min": "MinMax", "max": "MinMax"}
"""NCCL's device functions by reductions, where they are not called the same."""
_DTYPES = {
    torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.float64: "f64", torch.uint8: "u8",
    torch.int8: "i8", torch.int32: "i32", torch.int64: "i64",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class DeviceEvent:
    """Something that ran on a GPU.

    Attributes:
        category: as Kineto calls it.
        name: of the kernel.
        stream: number of its stream.
        begin, end: virtual seconds.
        note: the launch that it came with.
        correlation: number of that launch.
        operation: what the simulation knows of it.
    """

    category: Category
    name: str
    stream: int
    begin: float
    end: float
    note: HostNote
    correlation: int
    operation: Operation


def device_events(notes: Sequence[HostNote]) -> Iterator[DeviceEvent]:
    """What the noted launches ran, in the order of launching; what has not ended is left out."""
    streams = {COMPUTE_STREAM: DEFAULT_STREAM}
    for correlation, note in enumerate(notes, 1):
        for op in note.operations:
            if op.start is None or op.end is None:
                continue
            stream = streams.setdefault(shown(op.stream), DEFAULT_STREAM + len(streams))
            category: Category = "gpu_memcpy" if op.kind == "dma" else "kernel"
            yield DeviceEvent(category, _name(op, note.call), stream, op.start, op.end, note, correlation, op)


def _name(op: Operation, call: Call | None) -> str:
    if call is None:
        return _COPIES.get(op.name, op.name)
    signature = call.signature
    kind = next((name for prefix, name in _NCCL.items() if signature.op.startswith(prefix)), "SendRecv")
    if kind == "SendRecv":
        return "ncclDevKernel_SendRecv"
    if kind in ("AllGather", "Broadcast"):
        return f"ncclDevKernel_{kind}"
    dtype: Any = signature.dtype
    asked = signature.reduction or "sum"
    reduction = _REDUCTIONS.get(asked, asked.capitalize())
    return f"ncclDevKernel_{kind}_{reduction}_{_DTYPES.get(dtype, 'u8')}"
