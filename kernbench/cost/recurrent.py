"""How long recurrent layers of cuDNN take (:mod:`kernbench.cost.recurrent_shapes`). What has no other source was measured on an
H100 [H]."""

from __future__ import annotations

from math import ceil

from kernbench.cost.estimate import Estimate
from kernbench.cost.gemm import gemm_time
from kernbench.cost.memory_bound import start_of
from kernbench.cost.operands import Operands
from kernbench.cost.recurrent_shapes import Recurrence
from kernbench.topology.device import DeviceSpec
from kernbench.topology.dtypes import ITEM_BYTES

_SMALL_STEP = {1: (0.5e-6, 1.1e-6), 3: (0.8e-6, 1.6e-6), 4: (2.0e-6, 2.1e-6)}
"""Seconds of a step of a kernel that takes all of them, of 128 units, forward and back, by gates; it grows with the square of
the units [H]."""
_ALIGNED = 8
"""Elements that weights are laid out in multiples of: widths that are none do not take as long as in other products [H]."""
_SPREAD = (0.3, 0.4)


def recurrent_time(device: DeviceSpec, given: Operands, dtype: str, *, gradient: bool) -> Estimate | None:
    """How long the kernels of a call take beyond their starts; None of operands that are no such call's. ``dtype``: the format
    that is multiplied."""
    found = Recurrence.of([each.shape for each in given])
    if found is None:
        return None
    start, small = start_of(device, False), found.small(gradient)
    item = ITEM_BYTES[given[0].format]

    def product(m: int, n: int, k: int) -> float:
        n, k = (ceil(each / _ALIGNED) * _ALIGNED for each in (n, k))
        return max(gemm_time(device, m, n, k, dtype=dtype).seconds - start, 0.0)

    seconds = 0.0
    active = max(found.rows // found.steps, 1)
    for gates, width, units, state in found.layers:
        outer = gates * units
        seconds += product(found.rows, outer, width)
        if gradient:
            seconds += product(outer, width, found.rows) + product(outer, state, found.rows)
        if small:
            seconds += found.steps * _SMALL_STEP[gates][gradient] * max(units / 128, 0.25) ** 2
        else:
            moved = active * units * (2 * gates + 4) * item
            step = product(active, state, outer) if gradient else product(active, outer, state)
            seconds += found.steps * (step + moved / device.hbm_copy_bandwidth)
    return Estimate(seconds, seconds * (1 - _SPREAD[0]), seconds * (1 + _SPREAD[1]), "latency")
