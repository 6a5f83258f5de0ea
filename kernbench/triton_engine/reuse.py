"""What the programs of one wave share of what they read, which the total of bytes does not tell."""

from __future__ import annotations

from math import prod

from kernbench.cost.kernel_time import occupancy, suggested_resources
from kernbench.errors import MemoryAccessError
from kernbench.topology.device import DeviceSpec

from .binding import Launch
from .counts import Counts
from .machine import Execution
from .memory import AllocationMap


def look_at_wave(counts: Counts, launch: Launch, device: DeviceSpec, memory: AllocationMap | None = None) -> None:
    """Note in ``counts`` what one wave of a product's programs reads, where programs share what they read.

    ``memory``: what pointers point to that they find in memory.
    """
    product = any(unit == "tensor" for _, unit in counts.flops)
    if product and counts.bytes_read > 1.2 * counts.unique_bytes_read:
        resident, _ = occupancy(suggested_resources(counts, device), device)
        counts.wave_read = wave_read(launch, device.pes * max(resident, 1), memory)


def wave_read(launch: Launch, programs: int, memory: AllocationMap | None = None) -> tuple[int, int] | None:
    """Distinct bytes that ``programs`` consecutive programs of a launch read, and how many programs those were.

    They are those in the middle of the grid. Floats are not read and products not computed, so that it takes milliseconds.
    None: the programs wait for another writer, or what they read floats for is an address.
    """
    total = prod(launch.grid)
    size = min(total, programs)
    begin = (total - size) // 2
    execution = Execution([launch], memory, dry=True, wave=range(begin, begin + size))
    try:
        if execution.run() != "done":
            return None
    except MemoryAccessError:  # an address that depends on a float which was not read
        return None
    return execution.distinct, size
