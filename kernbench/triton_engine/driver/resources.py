"""What a kernel needs of a processor, as the real compiler says: registers, shared memory, warps, stages."""

from __future__ import annotations

import re
import subprocess
import tempfile
from typing import Any

from kernbench.cost.kernel_time import Resources
from kernbench.topology.device import DeviceSpec
from kernbench.triton_engine.duration import device_of

from .pipeline import full_kernel
from .target import get_target


def current_device() -> DeviceSpec:
    """The device that kernels are compiled for."""
    target = get_target()
    return device_of(target.backend, str(target.arch))


class Utils:
    """The ``utils`` object that Triton expects of a driver."""

    @staticmethod
    def load_binary(name: str, binary: bytes, shared: int, device: int) -> tuple[Any, Any, int, int, int]:
        """(module, function, registers, spills, max threads per block).

        There is no module: a kernel whose finalizer has one to unload (Triton 3.9) asks for the driver, which may be gone.
        """
        registers, spills = binary_usage(binary) if binary else (0, 0)
        return None, _Handle(name), registers, spills, 1024

    @staticmethod
    def unload_module(module: object) -> None:
        pass

    @staticmethod
    def get_device_properties(device: int) -> dict[str, int]:
        d = current_device()
        return {
            "max_shared_mem": d.pe.tcm_per_block,
            "max_num_regs": d.pe.registers // 4,
            "multiprocessor_count": d.pes,
            "warpSize": d.target.warp_size,
            "sm_clock_rate": int(d.clock / 1000),
            "mem_clock_rate": d.hbm.pins[0],
            "mem_bus_width": d.hbm.pins[1],
        }

    @staticmethod
    def set_printf_fifo_size(size: int) -> None:
        pass


class _Handle:
    """Stands for a loaded function."""

    def __init__(self, name: str) -> None:
        self.name = name


def binary_usage(binary: bytes) -> tuple[int, int]:
    """Registers per thread and spilled bytes of a cubin, by the bundled ``cuobjdump``; zeros if it cannot tell."""
    from triton import knobs

    try:
        tool = knobs.nvidia.cuobjdump.path
    except (AttributeError, RuntimeError):
        return 0, 0
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        try:
            text = subprocess.run(
                [tool, "-res-usage", file.name], capture_output=True, text=True, timeout=20, check=False
            ).stdout
        except (OSError, subprocess.TimeoutExpired):
            return 0, 0
    registers = re.search(r"REG:(\d+)", text)
    local = re.search(r"(?:LOCAL|STACK):(\d+)", text)
    return int(registers[1]) if registers else 0, int(local[1]) if local else 0


def resources(kernel: object) -> Resources:
    """Resources of a compiled kernel (what ``kernel[grid](...)`` returns), compiling it in full if needed.

    Takes 0.1-0.8 s the first time; Triton's cache keeps the result.
    """
    full = full_kernel(kernel)
    m = full.metadata
    amd = full.asm.get("amdgcn")
    if amd:
        vgprs = re.search(r"\.vgpr_count:\s*(\d+)", amd)
        spilled = re.search(r"\.vgpr_spill_count:\s*(\d+)", amd)
        registers, spills = int(vgprs[1]) if vgprs else 0, 4 * int(spilled[1]) if spilled else 0
    else:
        registers, spills = binary_usage(full.asm["cubin"])
    return Resources(registers, spills, m.shared, m.num_warps, m.num_stages, getattr(m, "num_ctas", 1) or 1)
