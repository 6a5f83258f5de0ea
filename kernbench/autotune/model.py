"""How long a config takes on a device: what the compiler says it needs, and what the executor counted that it does.

A :class:`ConfigModel` is anything that answers :meth:`~ConfigModel.predict`; :class:`OccupancyRoofline` is the default.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf
from typing import Protocol

from kernbench.cost.gemm import efficiency, kernels_of, shared_memory
from kernbench.topology.device import DeviceSpec
from kernbench.triton_engine.counts import Counts
from kernbench.triton_engine.driver.resources import Resources


@dataclass(frozen=True)
class Prediction:
    """A config on a device.

    Attributes:
        seconds: duration of the launch; infinite if it cannot run there.
        limit: what limits it: ``compute``, ``cache``, ``memory``, ``latency``, or why it cannot run.
        resident: programs that one PE holds at a time.
    """

    seconds: float
    limit: str
    resident: int = 0


class ConfigModel(Protocol):
    """Predicts the duration of a launch of known counts and resources."""

    def predict(self, counts: Counts, resources: Resources, device: DeviceSpec) -> Prediction:
        """The prediction for one launch."""


_REGISTER_BYTES = 4
_WARP_REGISTERS = 256  # registers are given to a warp in units of this many
_MATRIX_WARPS = 4  # an SM has four matrix engines, each fed by its own warps; so has a CU four SIMDs
_DTYPES = {"f64": "fp64", "f32": "tf32", "f16": "fp16", "bf16": "bf16", "i8": "int8"}


class OccupancyRoofline:
    """Waves of resident programs, each wave as slow as its slowest resource.

    - Registers, shared memory, threads and blocks of a PE say how many programs are *resident*; programs run in waves of
      ``PEs x resident``, the last one part full.
    - A wave takes the longest of: matrix, vector and special operations of a PE's programs at its share of the rates (with
      fewer than four warps the matrix engines are partly idle); the bytes that its programs load at its share of the last-level
      cache (spilled registers are loaded too); and one memory latency per loop trip, divided by the stages in flight.
    - The launch is never faster than its distinct bytes at copy bandwidth, and starts after the launch latency.

    Constants of a generation (sustained share of the matrix peak, reuse of operands on the way to the PEs) are those of
    :mod:`kernbench.cost.gemm`. It ranks configs of one kernel; absolute durations are the cost models' business.
    """

    def predict(self, counts: Counts, resources: Resources, device: DeviceSpec) -> Prediction:
        """The prediction for one launch."""
        resident, reason = occupancy(resources, device)
        if not resident:
            return Prediction(inf, reason)
        programs = max(counts.programs, 1)
        slots = device.pes * resident
        whole, rest = divmod(programs, slots)
        parts = dict.fromkeys(("compute", "cache", "latency"), 0.0)
        busy = 0.0
        for waves, concurrent in ((whole, resident), (1 if rest else 0, ceil(rest / device.pes))):
            if waves:
                wave = self._wave(counts, resources, device, concurrent, programs)
                busy += waves * max(wave.values())
                parts = {name: parts[name] + waves * seconds for name, seconds in wave.items()}
        memory = (counts.unique_bytes_read + counts.unique_bytes_written) / device.hbm_copy_bandwidth
        limit = "memory" if memory > busy else max(parts, key=lambda name: parts[name])
        return Prediction(device.launch.latency + device.hbm.latency + max(busy, memory), limit, resident)

    @staticmethod
    def _wave(
        counts: Counts, resources: Resources, device: DeviceSpec, concurrent: int, programs: int
    ) -> dict[str, float]:
        """Seconds that one PE spends on ``concurrent`` programs, by resource."""
        kernels = kernels_of(device)
        each = concurrent / programs
        fed = min(1.0, concurrent * resources.num_warps / _MATRIX_WARPS)
        matrix = vector = special = 0.0
        for (dtype, unit), flops in counts.flops.items():
            name = _DTYPES.get(dtype, "fp8" if dtype.startswith("f8") else "fp32")
            if unit == "tensor":
                matrix += (
                    flops * each / (device.matrix_rate(name) / device.pes * efficiency(device, kernels, name) * fed)
                )
            elif unit == "special":
                special += flops * each / device.pe.special_rate
            else:
                vector += flops * each * device.pes / device.vector_rate("fp32" if name == "tf32" else name)
        trips = max(counts.trips.values(), default=0) / programs
        threads = resources.num_warps * device.target.warp_size
        spilled = resources.spills * threads * 2 * max(trips, 1) * concurrent
        cache = shared_memory(device)
        share = min(cache.bandwidth * kernels.operand_reuse, cache.bandwidth * kernels.pe_share) / device.pes
        moved = (counts.bytes_read + counts.bytes_written) * each + spilled
        in_flight = max(1, resources.num_stages - 1)
        return {
            "compute": max(matrix, vector + special),
            "cache": moved / share,
            "latency": (trips / in_flight + 1) * cache.latency,
        }


def occupancy(resources: Resources, device: DeviceSpec) -> tuple[int, str]:
    """Programs that one PE holds at a time, and what forbids more (or any)."""
    pe = device.pe
    threads = resources.num_warps * device.target.warp_size * resources.num_ctas
    per_warp = ceil(max(resources.registers, 1) * device.target.warp_size / _WARP_REGISTERS) * _WARP_REGISTERS
    registers = per_warp * resources.num_warps * resources.num_ctas * _REGISTER_BYTES
    if resources.shared > pe.tcm_per_block:
        return 0, f"needs {resources.shared:,} bytes of shared memory, there are {pe.tcm_per_block:,}"
    reserved = pe.tcm.size - pe.tcm_per_block  # what the system keeps of every block's share (CUDA: 1 KiB)
    limits = {
        "blocks": pe.max_blocks,
        "registers": pe.registers // registers,
        "shared memory": pe.tcm.size // (resources.shared + reserved) if resources.shared else pe.max_blocks,
        "threads": pe.max_threads // threads,
    }
    reason = min(limits, key=lambda name: limits[name])
    return int(limits[reason]), f"too many {reason}" if not limits[reason] else reason
