"""What programs reach without moving it: stores of a launch that is only counted, and what one wave shares.

Both go by addresses alone, so that a wave of a large product is looked at in milliseconds.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from kernbench.cost.kernel_time import occupancy, suggested_resources
from kernbench.topology.device import DeviceSpec

from .access import Access, flat_index, pieces
from .counts import Counts
from .lift.program import OpInfo
from .values import Aff, Ptr, lane_array

if TYPE_CHECKING:
    from .binding import Launch


def visit(b: Any, info: OpInfo, p: Ptr, tile: tuple[int, ...], dtype: torch.dtype, mask: Any) -> None:
    """Check and count a store as if it were done."""
    if b.x.wave is not None:
        return
    access = Access(b, info, p, tile, dtype.itemsize, mask)
    if access.masked_off:
        return
    if p.den is None and access.dense is None and pieces(access, access.box) is not None:
        return
    flat_index(access)


def wave_bytes(b: Any, p: Ptr, tile: tuple[int, ...], item: int) -> int:
    """Bytes of a tile access of the wave's lanes, those that several lanes share counted once; masks are not looked at."""
    lanes: tuple[int, ...] = b.lanes
    wave: range = b.x.wave
    inside = np.nonzero((b.ids >= wave.start) & (b.ids < wave.stop))
    off = p.off
    steps = off.ts if type(off) is Aff else ()
    varies = [bool(step) for step in (*steps, *(0,) * (len(tile) - len(steps)))]
    first: Any = lane_array(Aff(off.c, off.ls, (), 0, 0, off.arr) if type(off) is Aff else off, lanes)
    if p.den is not None:
        nl = len(lanes)
        varies = [had or size > 1 for had, size in zip(varies, p.den.shape[nl:], strict=True)]
        corner = p.den[(slice(None),) * nl + (0,) * (p.den.dim() - nl)]
        first = first + corner.numpy()
    elements = prod(size for size, does in zip(tile, varies, strict=True) if does)
    return len(np.unique(np.broadcast_to(first, lanes)[inside])) * elements * item


def look_at_wave(counts: Counts, launch: Launch, device: DeviceSpec) -> None:
    """Note in ``counts`` what one wave of a product's programs reads, where programs share what they read."""
    product = any(unit == "tensor" for _, unit in counts.flops)
    if product and counts.bytes_read > 1.2 * counts.unique_bytes_read:
        resident, _ = occupancy(suggested_resources(counts, device), device)
        counts.wave_read = wave_read(launch, device.pes * max(resident, 1))


def wave_read(launch: Launch, programs: int) -> tuple[int, int] | None:
    """Distinct bytes that ``programs`` consecutive programs of a launch read, and how many programs those were.

    They are those in the middle of the grid. Floats are not read and products not computed, so that it takes milliseconds.
    None: the programs wait for somebody, or cannot be followed so.
    """
    from .machine import Execution

    total = prod(launch.grid)
    size = min(total, programs)
    begin = (total - size) // 2
    execution = Execution([launch], dry=True, wave=range(begin, begin + size))
    try:
        if execution.run() != "done":
            return None
    except Exception:  # an address that depends on a float which was not read
        return None
    return execution.distinct, size
