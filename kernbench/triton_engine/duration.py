"""How long a launch takes on the target: a hook with a simple default.

The default is a roofline: the longer of compute and memory time, in whole waves of programs, plus the launch
overhead. It answers autotuning and ``do_bench`` when nothing better is installed; a cost model for a described system
replaces it through :func:`set_duration_model`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from .counts import Counts

if TYPE_CHECKING:
    from .driver.resources import Resources


@dataclass(frozen=True)
class Device:
    """What the default model knows of a device. Rates are per device, in SI units (FLOP/s, bytes/s, seconds)."""

    name: str
    processors: int
    tensor_flops: float
    vector_flops: float
    special_ops: float
    bandwidth: float
    launch_overhead: float = 4e-6
    shared_memory: int = 232448
    registers: int = 65536
    max_threads: int = 2048

    @property
    def per_program_latency(self) -> float:
        """Least time of one program: a few dependent memory accesses, seconds."""
        return 2e-6


#: Data-sheet rates (dense, fp16 tensor); NVIDIA A100/H100/B200 and AMD MI300X product briefs.
DEVICES: dict[tuple[str, str], Device] = {
    ("cuda", "80"): Device("A100", 108, 312e12, 19.5e12, 4.9e12, 2.0e12, shared_memory=166912),
    ("cuda", "90"): Device("H100", 132, 989e12, 67e12, 16.7e12, 3.35e12),
    ("cuda", "100"): Device("B200", 148, 2250e12, 80e12, 20e12, 8.0e12),
    ("hip", "gfx942"): Device("MI300X", 304, 1307e12, 163e12, 40e12, 5.3e12, shared_memory=65536),
}

#: Tensor rate relative to fp16, by element type of the operands.
_TENSOR_RATE = {"f32": 0.5, "f64": 0.07, "f8E4M3FN": 2.0, "f8E5M2": 2.0, "i8": 2.0}

Model = Callable[[Counts, "Resources | None", Device], float]


#: Warps that keep a processor's four schedulers busy.
_FEEDING_WARPS = 4


def resident_programs(resources: Resources, device: Device) -> int:
    """Programs that one processor holds at a time, by shared memory, registers and threads; at least one."""
    threads = 32 * resources.num_warps
    limits = [device.max_threads // threads]
    if resources.registers:
        limits.append(device.registers // (resources.registers * threads))
    if resources.shared:
        limits.append(device.shared_memory // resources.shared)
    return max(1, min(limits))


def roofline(counts: Counts, resources: Resources | None, device: Device) -> float:
    """Seconds: ``overhead + max(compute, memory) * tail``, where the processors' last turn may be part full.

    With ``resources``, a processor whose resident programs bring fewer than four warps is partly idle, and what did not fit
    into registers is moved too.
    """
    compute = 0.0
    for (dtype, unit), flops in counts.flops.items():
        if unit == "tensor":
            compute += flops / (device.tensor_flops * _TENSOR_RATE.get(dtype, 1.0))
        elif unit == "special":
            compute += flops / device.special_ops
        else:
            compute += flops / device.vector_flops
    moved = counts.unique_bytes_read + counts.unique_bytes_written
    reread = counts.bytes_read + counts.bytes_written - moved
    memory = moved / device.bandwidth + reread / (device.bandwidth * 3)  # re-reads come from the last-level cache
    turns = ceil(counts.programs / device.processors)
    tail = turns * device.processors / counts.programs if counts.programs else 1.0
    fed = 1.0
    if resources is not None:
        threads = 32 * resources.num_warps
        fed = min(1.0, min(resident_programs(resources, device), max(turns, 1)) * resources.num_warps / _FEEDING_WARPS)
        memory += 2 * resources.spills * threads * counts.programs / (device.bandwidth * 3)
    busy = max(compute, memory) * min(tail, 8.0) / fed
    return device.launch_overhead + max(busy, device.per_program_latency)


_model: Model = roofline


def set_duration_model(model: Model | None) -> None:
    """Install the model that answers ``do_bench`` and autotuning; None restores the default."""
    global _model
    _model = model or roofline


def device_of(backend: str, arch: str) -> Device:
    return DEVICES.get((backend, str(arch)), DEVICES["cuda", "90"])


def estimate(counts: Counts, resources: Resources | None, device: Device) -> float:
    """Modelled duration of a launch in seconds."""
    return _model(counts, resources, device)
